// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"io/fs"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// commonNodes are the nodes without which CUDA does not start. nvcdi leaves out silently what it does
// not find: /dev/nvidia-uvm is often made long after the other nodes.
var commonNodes = []string{"/dev/nvidiactl", "/dev/nvidia-uvm"}

// node is a device node of kept edits, as this process sees it.
type node struct {
	path   string
	number deviceNumber
	// absent: it is needed and nvcdi did not find it.
	absent bool
}

type deviceNumber struct{ major, minor int64 }

var errNotCharacterDevice = errors.New("it is not a character device")

// statNode returns the number of a character device.
func statNode(path string) (deviceNumber, error) {
	var stat unix.Stat_t
	// As the container runtime does: lstat(2).
	if err := unix.Lstat(path, &stat); err != nil {
		return deviceNumber{}, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	if stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return deviceNumber{}, errNotCharacterDevice
	}
	return deviceNumber{int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))}, nil
}

// nodesOf lists the nodes of edits that are not translated to the host yet, and those of needed that
// are not among them.
func nodesOf(edits specs.ContainerEdits, devRoot string, needed ...string) []node {
	var nodes []node
	found := map[string]bool{}
	for _, dn := range edits.DeviceNodes {
		path := dn.HostPath
		if path == "" {
			path = dn.Path
		}
		nodes = append(nodes, node{path: path, number: deviceNumber{dn.Major, dn.Minor}})
		found[dn.Path] = true
	}
	for _, path := range needed {
		if !found[path] {
			nodes = append(nodes, node{path: filepath.Join(devRoot, path), absent: true})
		}
	}
	return nodes
}

// neededNodes is the node of a GPU; a GPU without a minor number (WSL) has none of its own.
func neededNodes(gpu device.GPU) []string {
	if gpu.Minor == nil {
		return nil
	}
	return []string{"/dev/nvidia" + strconv.Itoa(*gpu.Minor)}
}

// checkNodes looks at nodes. stale says that they are not what they were when the edits were made.
func checkNodes(nodes []node) (stale bool, path string, err error) {
	for _, n := range nodes {
		number, err := statNode(n.path)
		if err != nil {
			return !n.absent, n.path, err
		}
		if n.absent || number != n.number {
			return true, n.path, errNodeChanged
		}
	}
	return false, "", nil
}

var errNodeChanged = errors.New("it changes while it is looked at")
