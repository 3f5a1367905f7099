// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestMetadataSpecs(t *testing.T) {
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	// On disk there is one spec of each claim, written by somebody.
	for _, name := range []string{"gpu.switchyard.dev_metadata_uid-1_a.json", "gpu.switchyard.dev_metadata_uid-2_a.json"} {
		if err := os.WriteFile(path(name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	pattern := path("gpu.switchyard.dev_metadata_uid-1_*.json")
	onDisk := []string{path("gpu.switchyard.dev_metadata_uid-1_a.json")}

	for name, tc := range map[string]struct {
		specs *metadataSpecs
		wrote []string
		globs [][]string // results of calls in a row
	}{
		"what this process wrote is known without looking": {
			specs: &metadataSpecs{},
			wrote: []string{"gpu.switchyard.dev_metadata_uid-1_b.json", "gpu.switchyard.dev_metadata_uid-1_c.json", "gpu.switchyard.dev_metadata_uid-1_b.json"},
			globs: [][]string{{path("gpu.switchyard.dev_metadata_uid-1_b.json"), path("gpu.switchyard.dev_metadata_uid-1_c.json")}},
		},
		"the second time the directory is looked at": {
			specs: &metadataSpecs{},
			wrote: []string{"gpu.switchyard.dev_metadata_uid-1_b.json"},
			globs: [][]string{{path("gpu.switchyard.dev_metadata_uid-1_b.json")}, onDisk},
		},
		"what another process wrote is found in the directory": {
			specs: &metadataSpecs{},
			wrote: []string{"gpu.switchyard.dev_metadata_uid-2_a.json"},
			globs: [][]string{onDisk},
		},
		"other files are not remembered": {
			specs: &metadataSpecs{},
			wrote: []string{"metadata.json", "vendor.example.com_metadata_uid-1_x.json", "gpu.switchyard.dev_metadata_.json"},
			globs: [][]string{onDisk},
		},
		"nothing is remembered without a memory": {
			wrote: []string{"gpu.switchyard.dev_metadata_uid-1_b.json"},
			globs: [][]string{onDisk},
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, name := range tc.wrote {
				tc.specs.wrote(path(name))
			}
			for i, want := range tc.globs {
				got, err := tc.specs.glob(pattern)
				slices.Sort(got)
				if err != nil || !slices.Equal(got, want) {
					t.Errorf("call %d: got %q, %v, want %q", i+1, got, err, want)
				}
			}
		})
	}
}
