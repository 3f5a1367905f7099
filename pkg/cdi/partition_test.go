// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// partitioned makes a node whose second GPU has a partition.
func partitioned(t *testing.T) (*simulated, ClaimDevice) {
	t.Helper()
	s := newSimulated(t, "hgx-h100")
	s.options.ProcRoot = s.ProcRoot()
	if err := s.SetMIGMode(1, true); err != nil {
		t.Fatal(err)
	}
	made, err := s.CreatePartition(1, "3g.40gb", 4)
	if err != nil {
		t.Fatal(err)
	}
	gpu := s.refreshed(t)[1]
	return s, ClaimDevice{Name: gpu.Partitions()[0].Name(), Partition: Partition{
		GPU: gpu.Name(), Made: true, GPUInstance: int(made.ID), ComputeInstance: int(made.Compute[0].ID),
	}}
}

func TestPartitionGetsItsCapabilityNodesAndNoOther(t *testing.T) {
	s, device := partitioned(t)
	names, err := s.WriteClaim("a", []ClaimDevice{device})
	if err != nil {
		t.Fatal(err)
	}
	if len(names) != 1 || !strings.HasSuffix(names[0], device.Name) {
		t.Errorf("CDI names %v", names)
	}
	spec := readSpec(t, s.specPath("a"))
	var nodes []string
	for _, node := range spec.Devices[0].ContainerEdits.DeviceNodes {
		nodes = append(nodes, node.Path)
		if host := filepath.Join(s.DriverRoot(), node.Path); node.HostPath != host || node.Major != 1 || node.Minor != 3 {
			t.Errorf("node %+v, want that of %s", node, host)
		}
	}
	// GPU instance 2 of the GPU with minor number 1, and its compute instance 0.
	if diff := cmp.Diff([]string{"/dev/nvidia1", "/dev/nvidia-caps/nvidia-cap156", "/dev/nvidia-caps/nvidia-cap157"}, nodes); diff != "" {
		t.Error(diff)
	}
	if n := len(spec.Devices[0].ContainerEdits.Mounts); n > 0 {
		t.Errorf("%d mounts beside those of all devices", n)
	}
}

func TestFieldCase17_MissingCapabilityNodesAreMade(t *testing.T) {
	s, device := partitioned(t)
	if err := errors.Join(os.RemoveAll(s.dev("nvidia-caps")), os.WriteFile(filepath.Join(s.ProcRoot(), "devices"), []byte("Character devices:\n  1 mem\n195 nvidia\n240 nvidia-caps\n"), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WriteClaim("a", []ClaimDevice{device}); err != nil {
		t.Fatal(err)
	}
	for _, node := range readSpec(t, s.specPath("a")).Devices[0].ContainerEdits.DeviceNodes[1:] {
		number, err := statNode(node.HostPath)
		if err != nil || number.major != 240 || number.minor != node.Minor || !strings.HasSuffix(node.Path, fmt.Sprint("nvidia-cap", node.Minor)) {
			t.Errorf("node %+v: %+v, %v", node, number, err)
		}
	}
}

func TestFieldCase17_PartitionWithoutItsCapabilityNodes(t *testing.T) {
	for name, test := range map[string]struct {
		damage func(s *simulated) error
		words  []string
	}{
		"no node of the compute instance": {func(s *simulated) error { return os.Remove(s.dev("nvidia-caps/nvidia-cap157")) }, []string{"nvidia-cap157", "nvidia-modprobe -f /proc/driver/nvidia/capabilities/gpu1/mig/gi2/ci0/access"}},
		"no node of the GPU":              {func(s *simulated) error { return os.Remove(s.dev("nvidia1")) }, []string{"nvidia1"}},
		"a file in the node's place": {func(s *simulated) error {
			return errors.Join(os.Remove(s.dev("nvidia-caps/nvidia-cap156")), os.WriteFile(s.dev("nvidia-caps/nvidia-cap156"), nil, 0o600))
		}, []string{"nvidia-cap156", "not a character device"}},
		"the instance is gone": {func(s *simulated) error { return s.DestroyPartition(1, 2) }, []string{"nvidia-caps", "gpu1/mig/gi2/access"}},
		"a capability without a number": {func(s *simulated) error {
			path := filepath.Join(s.ProcRoot(), "driver/nvidia/capabilities/gpu1/mig/gi2/access")
			return errors.Join(os.Remove(path), os.WriteFile(path, []byte("DeviceFileMode: 292\n"), 0o600))
		}, []string{"DeviceFileMinor"}},
	} {
		t.Run(name, func(t *testing.T) {
			s, device := partitioned(t)
			if err := test.damage(s); err != nil {
				t.Fatal(err)
			}
			_, err := s.WriteClaim("a", []ClaimDevice{device})
			var missing *DeviceNodeError
			if !errors.As(err, &missing) || missing.Device != device.Name {
				t.Fatalf("error is %v, want *DeviceNodeError", err)
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("%q does not say %q", err, word)
				}
			}
			if files := s.specFiles(t); len(files) > 0 {
				t.Errorf("%v were written", files)
			}
		})
	}
}

func TestPartitionThatIsNotMadeCanBeCheckedOnly(t *testing.T) {
	s, device := partitioned(t)
	device.Partition = Partition{GPU: device.Partition.GPU}
	if err := s.Check([]ClaimDevice{device}); err != nil {
		t.Errorf("checking: %v", err)
	}
	var edits *DeviceEditsError
	if _, err := s.WriteClaim("a", []ClaimDevice{device}); !errors.As(err, &edits) {
		t.Errorf("writing: %v", err)
	}
	device.Partition.GPU = "gpu-none"
	var unknown *UnknownDeviceError
	if err := s.Check([]ClaimDevice{device}); !errors.As(err, &unknown) {
		t.Errorf("a GPU that does not exist: %v", err)
	}
}
