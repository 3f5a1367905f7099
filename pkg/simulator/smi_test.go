// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// runSMI runs the nvidia-smi that containers get, with the device nodes of the given names.
func runSMI(t *testing.T, n *Node, devices []string, args ...string) (stdout string, exit int) {
	t.Helper()
	dev := t.TempDir()
	for _, name := range devices {
		if err := errors.Join(os.MkdirAll(filepath.Dir(filepath.Join(dev, name)), 0o700), os.WriteFile(filepath.Join(dev, name), nil, 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(n.DriverRoot(), "usr/bin/nvidia-smi"), args...)
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "SWITCHYARD_SIM_DEV=" + dev}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	var failed *exec.ExitError
	switch {
	case errors.As(err, &failed):
		return string(out), failed.ExitCode()
	case err != nil:
		t.Fatal(err)
	case stderr.Len() > 0:
		t.Errorf("wrote to standard error: %s", stderr.String())
	}
	return string(out), 0
}

func TestSMIListsWhatIsVisible(t *testing.T) {
	n := newNode(t, "hgx-h100")
	s, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	out, exit := runSMI(t, n, []string{"nvidiactl", "nvidia3", "nvidia6"}, "-L")
	want := "GPU 0: NVIDIA H100 80GB HBM3 (UUID: " + s.GPUs[3].UUID + ")\nGPU 1: NVIDIA H100 80GB HBM3 (UUID: " + s.GPUs[6].UUID + ")\n"
	if out != want || exit != 0 {
		t.Errorf("exit %d, got\n%swant\n%s", exit, out, want)
	}
}

func TestSMIListsTheMIGDevicesWhoseCapabilitiesAreHere(t *testing.T) {
	n := newNode(t, "hgx-h100")
	if err := n.SetMIGMode(1, true); err != nil {
		t.Fatal(err)
	}
	for _, start := range []int{4, 5} {
		if _, err := n.CreatePartition(1, "1g.10gb", start); err != nil {
			t.Fatal(err)
		}
	}
	s, err := n.State()
	if err != nil {
		t.Fatal(err)
	}
	// GPU instance 11 and its compute instance 0 of the GPU with minor number 1.
	out, _ := runSMI(t, n, []string{"nvidiactl", "nvidia1", "nvidia-caps/nvidia-cap237", "nvidia-caps/nvidia-cap238"}, "-L")
	want := "GPU 0: NVIDIA H100 80GB HBM3 (UUID: " + s.GPUs[1].UUID + ")\n  MIG 1g.10gb  Device 0: (UUID: " + s.GPUs[1].MIG.Instances[0].Compute[0].UUID + ")\n"
	if out != want {
		t.Errorf("got\n%swant\n%s", out, want)
	}
}

func TestSMITopology(t *testing.T) {
	n := newNode(t, "a100-2x4")
	if err := n.SetNVLink(0, 0, false); err != nil { // one of the four to GPU 1
		t.Fatal(err)
	}
	out, exit := runSMI(t, n, []string{"nvidiactl", "nvidia0", "nvidia1", "nvidia3", "nvidia4"}, "topo", "-m")
	matrix, legend, _ := strings.Cut(out, "\n\nLegend:")
	want := strings.Join([]string{
		"	GPU0	GPU1	GPU2	GPU3	CPU Affinity	NUMA Affinity",
		"GPU0	 X 	NV3	NV4	SYS	0-31,64-95	0",
		"GPU1	NV3	 X 	NV4	SYS	0-31,64-95	0",
		"GPU2	NV4	NV4	 X 	SYS	0-31,64-95	0",
		"GPU3	SYS	SYS	SYS	 X 	32-63,96-127	1",
	}, "\n")
	if matrix != want || legend == "" || exit != 0 {
		t.Errorf("exit %d, got\n%s\nwant\n%s", exit, matrix, want)
	}
}

func TestSMIWithoutDevices(t *testing.T) {
	n := newNode(t, "t4")
	cases := map[string]struct {
		devices []string
		args    []string
		exit    int
	}{
		"no driver":       {nil, nil, 9},
		"no GPU":          {[]string{"nvidiactl"}, []string{"-L"}, 6},
		"summary":         {[]string{"nvidiactl", "nvidia0"}, nil, 0},
		"unknown command": {[]string{"nvidiactl", "nvidia0"}, []string{"-q"}, 2},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			if _, exit := runSMI(t, n, c.devices, c.args...); exit != c.exit {
				t.Errorf("exit %d, want %d", exit, c.exit)
			}
		})
	}
}
