// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func remove(name string) func(*simulated) error {
	return func(s *simulated) error { return os.Remove(s.dev(name)) }
}

func replaceByFile(name string) func(*simulated) error {
	return func(s *simulated) error {
		return errors.Join(os.Remove(s.dev(name)), os.WriteFile(s.dev(name), nil, 0o666))
	}
}

func replaceByLink(name string) func(*simulated) error {
	return func(s *simulated) error {
		return errors.Join(os.Remove(s.dev(name)), os.Symlink("/dev/null", s.dev(name)))
	}
}

func makeNode(name string, minor uint32) func(*simulated) error {
	return func(s *simulated) error {
		if err := os.Remove(s.dev(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return unix.Mknod(s.dev(name), unix.S_IFCHR|0o666, int(unix.Mkdev(1, minor)))
	}
}

// The container lacked device nodes, and the pod failed in a way that named nothing.
func TestFieldCase17_MissingDeviceNodeIsNamedBeforeAnythingIsWritten(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*simulated) error
		node   string
		// others: the node is needed for every GPU, not for GPU 1 alone.
		others bool
	}{
		"the GPU's node is missing":         {remove("nvidia1"), "nvidia1", false},
		"the GPU's node is a regular file":  {replaceByFile("nvidia1"), "nvidia1", false},
		"the GPU's node is a symbolic link": {replaceByLink("nvidia1"), "nvidia1", false},
		"the control node is missing":       {remove("nvidiactl"), "nvidiactl", true},
		"unified memory is not loaded":      {remove("nvidia-uvm"), "nvidia-uvm", true},
		"unified memory's node is a file":   {replaceByFile("nvidia-uvm"), "nvidia-uvm", true},
	} {
		for _, when := range []string{"before Refresh", "after Refresh"} {
			t.Run(name+" "+when, func(t *testing.T) {
				s := newSimulated(t, "dgx-a100", func(o *Options) { o.DevRoot = o.DriverRoot })
				inv := s.inventory(t)
				steps := []func() error{
					func() error { return test.change(s) },
					func() error { return s.Refresh(s.ctx, inv) },
				}
				if when == "after Refresh" {
					slices.Reverse(steps)
				}
				for _, step := range steps {
					if err := step(); err != nil {
						t.Fatal(err)
					}
				}
				gpu := devicesOf(inv.GPUs[0], inv.GPUs[1])
				_, err := s.WriteClaim("a", gpu)
				var missing *DeviceNodeError
				if !errors.As(err, &missing) {
					t.Fatalf("error is %v, want *DeviceNodeError", err)
				}
				if missing.Node != s.dev(test.node) || (missing.Device != gpu[1].Name) != test.others {
					t.Errorf("error names node %s of device %s", missing.Node, missing.Device)
				}
				if !strings.Contains(err.Error(), "nvidia-modprobe") {
					t.Errorf("error %q does not say what to do", err)
				}
				if checkErr := s.Check(gpu); checkErr == nil {
					t.Error("Check passed")
				}
				if got := s.specFiles(t); len(got) != 0 {
					t.Errorf("spec directory holds %v", got)
				}
				if _, err := s.WriteClaim("b", devicesOf(inv.GPUs[2])); (err != nil) != test.others {
					t.Errorf("another GPU: %v", err)
				}
			})
		}
	}
}

// nvidia-uvm is loaded by the first program that needs it, long after the plugin has started.
func TestNodesThatAppearLateAreFound(t *testing.T) {
	for _, late := range []string{"nvidia-uvm", "nvidia0"} {
		t.Run(late, func(t *testing.T) {
			s := newSimulated(t, "t4")
			if err := remove(late)(s); err != nil {
				t.Fatal(err)
			}
			devices := devicesOf(s.refreshed(t)[0])
			if _, err := s.WriteClaim("a", devices); err == nil {
				t.Fatal("no error while the node is missing")
			}
			if err := makeNode(late, 3)(s); err != nil {
				t.Fatal(err)
			}
			names := write(t, s.Writer, "a", devices...)
			if got := inject(t, s.specDir, names...); !slices.Contains(got, "/dev/"+late) {
				t.Errorf("the container gets %v", got)
			}
		})
	}
}

// A driver that is loaded again may get another major number for nvidia-uvm: a spec with the old one
// lets the container open something else.
func TestNodesThatChangeTheirNumberAreFollowed(t *testing.T) {
	s := newSimulated(t, "t4")
	devices := devicesOf(s.refreshed(t)[0])
	write(t, s.Writer, "a", devices...)
	if err := makeNode("nvidia-uvm", 5)(s); err != nil {
		t.Fatal(err)
	}
	write(t, s.Writer, "a", devices...)
	for _, node := range readSpec(t, s.specPath("a")).ContainerEdits.DeviceNodes {
		if node.Path == "/dev/nvidia-uvm" && node.Minor != 5 {
			t.Errorf("the spec has minor %d, the node 5", node.Minor)
		}
	}
}

func TestOptionalNodesMayGo(t *testing.T) {
	s := newSimulated(t, "t4")
	devices := devicesOf(s.refreshed(t)[0])
	for _, name := range []string{"nvidia-uvm-tools", "nvidia-modeset"} {
		if err := remove(name)(s); err != nil {
			t.Fatal(err)
		}
	}
	names := write(t, s.Writer, "a", devices...)
	if got, want := inject(t, s.specDir, names...), []string{"/dev/nvidia-uvm", "/dev/nvidia0", "/dev/nvidiactl"}; !slices.Equal(got, want) {
		t.Errorf("the container gets %v, want %v", got, want)
	}
}
