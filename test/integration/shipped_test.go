// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/test/harness/plugin"
	"github.com/switchyard-dev/switchyard/test/nvmlstub"
)

// shipped is the program that users install, as make builds it.
const shipped = repository + "/bin/switchyard-kubelet-plugin"

// What other tests simulate is real here: the library is found under the driver root, loaded with dlopen and
// called through C. Only the driver's other files are those of a simulated node.
func TestShippedProgramLoadsNVML(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	if err := n.GPUs.EnsureFiles(); err != nil {
		t.Fatal(err)
	}
	library, err := nvmlstub.Install(t.Context(), n.GPUs.DriverRoot(), nvmlstub.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// The two GPUs of the library, in place of the simulated ones.
	n.devices = []string{"gpu-57ab0000-0000-4000-8000-000000000000", "gpu-57ab0000-0000-4000-8000-000000000001"}
	p := n.running(t, plugin.Options{Binary: shipped, DriverRoot: n.GPUs.DriverRoot(), Args: []string{"--logging-format=json"}})
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", p.PID()))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(maps), library) {
		t.Errorf("the program has not loaded %s", library)
	}
	n.wantDomains(t, []int{0, 1})
	c := n.gpus(t, "claim", n.devices[1])
	n.wantSees(t, n.prepare(t, c), 1)
	n.unprepare(t, c)
	n.wantNothingLeft(t)

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Error(err)
	}
	log, err := os.ReadFile(p.LogFile())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		if !json.Valid([]byte(line)) {
			t.Errorf("a line of the log is no JSON: %s", line)
		}
	}
}
