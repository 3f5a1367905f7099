// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// Options are what a node needs beside its profile.
type Options struct {
	// NodeName is the Kubernetes node name. Two nodes of one name have GPUs of equal UUIDs.
	NodeName string
	// Seed gives nodes of equal name and profile different UUIDs.
	Seed string
	// DeviceNodes is DeviceNodesCharacter unless set.
	DeviceNodes DeviceNodes
}

// Node is a simulated GPU node. It may be used by several goroutines, and its directory by several
// processes.
type Node struct {
	dir    string
	now    func() time.Time
	logger klog.Logger
	lib    *library
	calls  callRecorder

	mu      sync.Mutex
	stamp   fileStamp
	current *snapshot
}

// snapshot is a state that was read and is not changed any more, with what follows from it.
type snapshot struct {
	State
	links profile.LinkTable
	// visible are the positions of the GPUs that NVML counts, by NVML's index.
	visible []int
}

func newSnapshot(s State) *snapshot {
	snap := &snapshot{State: s, links: s.Profile.Links()}
	for i, gpu := range s.GPUs {
		if gpu.Health != HealthRemoved {
			snap.visible = append(snap.visible, i)
		}
	}
	return snap
}

// ErrExists says that a directory holds a node already.
var ErrExists = errors.New("there is a simulated node already")

// Create puts a node together in a directory, which is made if need be. It fails with ErrExists where
// there is one. A directory that a killed Create left half done is completed.
func Create(dir string, p Profile, o Options) error {
	if err := profile.Validate(p).ToAggregate(); err != nil {
		return fmt.Errorf("create simulated node in %s: profile %q: %w", dir, p.Name, err)
	}
	if msgs := validation.IsDNS1123Subdomain(o.NodeName); len(msgs) > 0 {
		return fmt.Errorf("create simulated node in %s: node name %q: %s", dir, o.NodeName, msgs[0])
	}
	switch o.DeviceNodes {
	case "", DeviceNodesCharacter, DeviceNodesFiles:
	default:
		return fmt.Errorf("create simulated node in %s: device nodes of kind %q: use %s or %s", dir, o.DeviceNodes, DeviceNodesCharacter, DeviceNodesFiles)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("create simulated node: %w", err)
	}
	err := withLock(dir, func() error {
		if _, err := os.Stat(filepath.Join(dir, stateFile)); err == nil {
			return ErrExists
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s := newState(p, o)
		if err := materialize(dir, s); err != nil {
			return err
		}
		// The state comes last: a node that can be opened is complete.
		return writeState(dir, s)
	})
	if err != nil {
		return fmt.Errorf("create simulated node in %s: %w", dir, err)
	}
	return nil
}

// Open opens the node in a directory.
func Open(dir string) (*Node, error) {
	absolute, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("open simulated node: %w", err)
	}
	n := &Node{dir: absolute, now: time.Now, logger: klog.LoggerWithName(klog.Background(), "simulator")}
	n.calls.path = filepath.Join(absolute, callLog)
	n.lib = newLibrary(n)
	if _, err := n.snapshot(); err != nil {
		return nil, fmt.Errorf("open simulated node: %w", err)
	}
	return n, nil
}

// NVML is the node's NVML. It is the same value at every call, and counts Init and Shutdown as the real
// one does.
func (n *Node) NVML() nvml.Interface { return n.lib }

// Dir is the node's directory.
func (n *Node) Dir() string { return n.dir }

// DriverRoot stands for the root directory of a machine with the driver installed.
func (n *Node) DriverRoot() string { return DriverRoot(n.dir) }

// DevRoot is the directory that holds dev, as nvcdi's WithDevRoot wants it.
func (n *Node) DevRoot() string { return DriverRoot(n.dir) }

// SysfsRoot stands for /sys.
func (n *Node) SysfsRoot() string { return SysfsRoot(n.dir) }

// DriverRoot is the driver root, and the root of the device nodes, of the node in a directory.
func DriverRoot(dir string) string { return filepath.Join(dir, rootDir) }

// ProcRoot stands for /proc.
func (n *Node) ProcRoot() string { return ProcRoot(n.dir) }

// ProcRoot stands for /proc on the node in a directory; it holds what the driver says of MIG.
func ProcRoot(dir string) string { return filepath.Join(dir, rootDir, "proc") }

// SysfsRoot stands for /sys on the node in a directory.
func SysfsRoot(dir string) string { return filepath.Join(dir, rootDir, "sys") }

// State returns the node's state now.
func (n *Node) State() (State, error) {
	s, _, err := readState(n.dir)
	return s, err
}

// Update changes the node's state. Updates from any process happen one after the other; when change
// fails nothing is changed.
func (n *Node) Update(change func(*State) error) error {
	return withLock(n.dir, func() error {
		s, _, err := readState(n.dir)
		if err != nil {
			return err
		}
		before, couldUse := filesSeen(s), capabilities(s)
		if err := change(&s); err != nil {
			return err
		}
		s.Generation++
		if err := writeState(n.dir, s); err != nil {
			return err
		}
		switch {
		case filesSeen(s) != before:
			return materialize(n.dir, s)
		case !maps.Equal(capabilities(s), couldUse):
			if err := errors.Join(makeCapabilities(n.DriverRoot(), s), makeSMI(n.DriverRoot(), s)); err != nil {
				return fmt.Errorf("make simulated MIG capabilities: %w", err)
			}
		}
		return nil
	})
}

// EnsureFiles makes the files of the driver root that are missing or different, as after a reboot that
// emptied /dev, and removes what killed processes left half written.
func (n *Node) EnsureFiles() error {
	return withLock(n.dir, func() error {
		if err := removeUnfinished(n.dir); err != nil {
			return err
		}
		s, _, err := readState(n.dir)
		if err != nil {
			return err
		}
		return materialize(n.dir, s)
	})
}

// snapshot returns the state, read anew if the file has changed.
func (n *Node) snapshot() (*snapshot, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	stamp, err := stampOf(filepath.Join(n.dir, stateFile))
	if err == nil && n.current != nil && stamp == n.stamp {
		return n.current, nil
	}
	s, stamp, err := readState(n.dir)
	if err != nil {
		return nil, err
	}
	n.current, n.stamp = newSnapshot(s), stamp
	return n.current, nil
}
