// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

func TestFragmentationOutput(t *testing.T) {
	c := journey(t)
	for file, args := range map[string][]string{
		"fragmentation.txt":            {"fragmentation"},
		"fragmentation-wide.txt":       {"fragmentation", "-o", "wide", "--sizes", "8,4,4"},
		"fragmentation-no-headers.txt": {"fragmentation", "--no-headers"},
		"fragmentation.json":           {"fragmentation", "--sizes", "4", "-o", "json"},
	} {
		t.Run(file, func(t *testing.T) { c.golden(t, file, args...) })
	}
}

func TestFragmentationCountsWhatIsTaintedOrReserved(t *testing.T) {
	troubled(t).golden(t, "fragmentation-troubled.txt", "fragmentation")
}

// Of a node whose slices are not all there yet nothing is allocated.
func TestFragmentationSaysWhoseGPUsAreNotCounted(t *testing.T) {
	c := testCluster{}.with(gpuNode(t, "node-a", "hgx-h100")...)
	for i := range 2 {
		if slice, is := c[i].(*resourceapi.ResourceSlice); is {
			slice.Spec.Pool.ResourceSliceCount++
		}
	}
	for _, cluster := range []testCluster{c, c.with(gpuNode(t, "node-b", "t4")...)} {
		out, _, err := cluster.run(t, "fragmentation")
		if err != nil || !strings.Contains(out, "not counted, since their slices are being updated: node-a\n") {
			t.Errorf("got %v\n%s", err, out)
		}
	}
}

func TestFragmentationErrors(t *testing.T) {
	c := journey(t).connection(t, interceptor.Funcs{})
	mustFail(t, c, "--sizes: 0 is not between 1 and 8192", "fragmentation", "--sizes", "0")
	mustFail(t, c, `invalid argument "x" for "--sizes" flag`, "fragmentation", "--sizes", "x")
}
