// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
)

// newMetadata lays the metadata of claims default/<name>, with UID <name>-uid and request gpus, out as
// the helper does.
func newMetadata(t *testing.T, inUse func(namespace, name string) bool, names ...string) metadataFiles {
	t.Helper()
	dir := t.TempDir()
	m := metadataFiles{pluginDir: dir, cdiDir: filepath.Join(dir, "cdi"), inUse: inUse}
	write := func(path string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := m.operations().WriteFile(path, []byte("{}"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range names {
		write(filepath.Join(dir, metadataDirName, "default_"+name, "gpus", "metadata.json"))
		write(filepath.Join(m.cdiDir, metadataSpecPrefix+name+"-uid_gpus.json"))
	}
	return m
}

// left lists the claims that still have a directory, and those that still have a spec.
func (m metadataFiles) left(t *testing.T) (directories []string, specs []types.UID) {
	t.Helper()
	for _, entry := range must[[]os.DirEntry](t)(os.ReadDir(filepath.Join(m.pluginDir, metadataDirName))) {
		directories = append(directories, entry.Name())
	}
	for uid := range must[map[types.UID][]string](t)(m.specs()) {
		specs = append(specs, uid)
	}
	slices.Sort(specs)
	return directories, specs
}

// TestPreparingAgainWritesNoMetadata: each file that is created costs a Prepare a good part of a millisecond.
func TestPreparingAgainWritesNoMetadata(t *testing.T) {
	m := newMetadata(t, func(string, string) bool { return false }, "a")
	path := filepath.Join(m.directory("default", "a"), "gpus", "metadata.json")
	before := must[os.FileInfo](t)(os.Lstat(path))
	write := func(content string) os.FileInfo {
		t.Helper()
		if err := m.operations().WriteFile(path, []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
		return must[os.FileInfo](t)(os.Lstat(path))
	}
	if !os.SameFile(before, write("{}")) {
		t.Error("the same content was written again")
	}
	if os.SameFile(before, write("[]")) {
		t.Error("other content was not written")
	}
}

func TestMetadataOfAClaimIsRemoved(t *testing.T) {
	m := newMetadata(t, func(string, string) bool { return false }, "a", "b")
	if err := m.remove("default", "a", "a-uid"); err != nil {
		t.Fatal(err)
	}
	if directories, specs := m.left(t); !slices.Equal(directories, []string{"default_b"}) || !slices.Equal(specs, []types.UID{"b-uid"}) {
		t.Errorf("left are %v and %v, want those of b", directories, specs)
	}
	if err := m.remove("default", "a", "a-uid"); err != nil {
		t.Errorf("removing it again: %v", err)
	}
}

// TestAClaimWithTheLongestNameEnds: the helper's directory for it, "<namespace>_<name>", is longer than a file system allows.
func TestAClaimWithTheLongestNameEnds(t *testing.T) {
	m := newMachine(t, 1)
	p := m.run("")
	claim := allocated([]resourceapi.DeviceRequestAllocationResult{result("gpus", testNode, gpu(0))})
	claim.Name, claim.UID = strings.Repeat("n", 253), "long-uid"
	must[*resourceapi.ResourceClaim](t)(m.client.ResourceV1().ResourceClaims(claim.Namespace).Create(t.Context(), claim, metav1.CreateOptions{}))
	if got := p.nodePrepare(claim)["long-uid"]; got.GetError() != "" || len(got.GetDevices()) != 1 {
		t.Fatalf("prepared as %v", got)
	}
	p.nodeUnprepare(claim)
	if err := p.metadata.remove(claim.Namespace, claim.Name, claim.UID); err != nil {
		t.Errorf("as the reconciler does it: %v", err)
	}
}

func TestMetadataOfAClaimThatTookTheNameStays(t *testing.T) {
	m := newMetadata(t, func(_, name string) bool { return name == "a" }, "a")
	if err := m.remove("default", "a", "earlier-uid"); err != nil {
		t.Fatal(err)
	}
	if directories, specs := m.left(t); len(directories) != 1 || len(specs) != 1 {
		t.Errorf("left are %v and %v, want those of the later claim", directories, specs)
	}
}

func TestSweepRemovesMetadataOfNobody(t *testing.T) {
	m := newMetadata(t, func(_, name string) bool { return name == "prepared" }, "prepared", "stray")
	temporary := []string{
		filepath.Join(m.cdiDir, "."+metadataSpecPrefix+"stray-uid_gpus.json.1234.tmp"),
		filepath.Join(m.pluginDir, ".inventory.json.1234.tmp"),
		filepath.Join(m.pluginDir, ".shares.json.1234.tmp"),
	}
	foreign := filepath.Join(m.cdiDir, ".other.example.com_metadata_x.json.1234.tmp")
	for _, path := range append(temporary, foreign) {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := m.sweep(func(uid types.UID) bool { return uid == "prepared-uid" }); err != nil {
		t.Fatal(err)
	}
	if directories, specs := m.left(t); !slices.Equal(directories, []string{"default_prepared"}) || !slices.Equal(specs, []types.UID{"prepared-uid"}) {
		t.Errorf("left are %v and %v, want those of the prepared claim", directories, specs)
	}
	for _, path := range temporary {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("the temporary file %s of a killed process is still there", path)
		}
	}
	if _, err := os.Stat(foreign); err != nil {
		t.Errorf("another driver's file is gone: %v", err)
	}
}

func TestMissingMetadataIsNoticed(t *testing.T) {
	m := newMetadata(t, func(string, string) bool { return true }, "a")
	for name, test := range map[string]struct {
		uid      types.UID
		requests []string
		want     bool
	}{
		"all is there": {"a-uid", []string{"gpus"}, false},
		"a subrequest is filed under its request": {"a-uid", []string{"gpus/big"}, false},
		"a request without files":                 {"a-uid", []string{"gpus", "more"}, true},
		"a claim of another UID has no CDI spec":  {"b-uid", []string{"gpus"}, true},
		"a claim without devices has no metadata": {"b-uid", nil, false},
	} {
		t.Run(name, func(t *testing.T) {
			if got := m.missing("default", "a", test.uid, test.requests); got != test.want {
				t.Errorf("missing = %v, want %v", got, test.want)
			}
		})
	}
}

func TestUnprepareRemovesTheMetadataDirectory(t *testing.T) {
	for name, test := range map[string]struct {
		others []string // prepared claims of the same name
		gone   bool
	}{
		"of a claim that has its name for itself":    {nil, true},
		"but not that of a claim with the same name": {[]string{"later-uid"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t, 1)
			p := m.ready()
			claim := m.claim("a", gpu(0))
			p.mustPrepare(claim)
			for _, uid := range test.others {
				p.names.add(checkpoint.Record{ClaimUID: types.UID(uid), Namespace: claim.Namespace, Name: claim.Name})
			}
			directory := p.metadata.directory(claim.Namespace, claim.Name)
			if err := os.MkdirAll(filepath.Join(directory, "gpus"), 0o750); err != nil {
				t.Fatal(err)
			}
			if err := p.unprepareClaim(t.Context(), claim.UID); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(directory); os.IsNotExist(err) != test.gone {
				t.Errorf("stat of the directory: %v; want it gone: %v", err, test.gone)
			}
		})
	}
}
