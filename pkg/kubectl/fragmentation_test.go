// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"testing"

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

func TestFragmentationErrors(t *testing.T) {
	c := journey(t).connection(t, interceptor.Funcs{})
	mustFail(t, c, "--sizes: 0 is not between 1 and 8192", "fragmentation", "--sizes", "0")
	mustFail(t, c, `invalid argument "x" for "--sizes" flag`, "fragmentation", "--sizes", "x")
}
