// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// driverPlaces are where parts of the driver may be added, below its root, also when nothing of it is there yet: programs,
// libraries, the list of libraries, firmware. An installer copies them one after the other, and NVML answers before it is through.
var driverPlaces = []string{
	"usr/bin", "usr/lib", "usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "bin", "lib64", "etc/ld.so.cache", "lib/firmware/nvidia",
}

// daemonPlaces are what nvcdi mounts of the daemons of the driver, which come and go as they like.
var daemonPlaces = []string{"run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket", "tmp/nvidia-mps"}

// place is a directory of driver files, or a list of them, or what a daemon made, as it was when nvcdi looked for them.
type place struct {
	path string
	// itself says that what is in it does not matter.
	itself bool
	state  placeState
}

// placeState is what changes when a file is added to a directory, replaced or removed, or when another one is mounted there.
// That of what does not exist is zero.
type placeState struct {
	device, inode uint64
	changed       int64 // in ns since 1970
}

func (p place) now() placeState {
	var stat unix.Stat_t
	if unix.Stat(p.path, &stat) != nil {
		return placeState{}
	}
	now := placeState{device: stat.Dev, inode: stat.Ino}
	if !p.itself {
		now.changed = stat.Mtim.Nano()
	}
	return now
}

// fileTime is the time, in ns since 1970, that no later change of a file is stamped with less than: that of the kernel's last tick.
func fileTime() int64 {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_REALTIME_COARSE, &now); err != nil {
		return 0 // everything counts as changed
	}
	return now.Nano()
}

// daemonsOf lists what daemons may have made, as it is before nvcdi looks.
func daemonsOf(root string) []place {
	places := make([]place, len(daemonPlaces))
	for i, path := range daemonPlaces {
		places[i] = place{path: filepath.Join(root, path), itself: true}
		places[i].state = places[i].now()
	}
	return places
}

// placesOf lists where the driver files of edits are, and where others may come. What has changed since nvcdi began to look
// may have been seen or not: it counts as changed. What is stamped with the future has not changed since.
func placesOf(root string, began int64, edits ...specs.ContainerEdits) []place {
	var paths []string
	for _, path := range driverPlaces {
		paths = append(paths, filepath.Join(root, path))
	}
	for _, e := range edits {
		for _, mount := range e.Mounts {
			// What daemons make is in directories of other things.
			if info, err := os.Stat(mount.HostPath); err == nil && info.Mode().IsRegular() {
				paths = append(paths, filepath.Dir(mount.HostPath))
			}
		}
	}
	slices.Sort(paths)
	var places []place
	for _, path := range slices.Compact(paths) {
		p := place{path: path}
		p.state = p.now()
		if p.state.changed >= began && p.state.changed <= time.Now().UnixNano() {
			p.state = placeState{inode: unchangeable}
		}
		places = append(places, p)
	}
	return places
}

// unchangeable is an inode that nothing has.
const unchangeable = ^uint64(0)

// moved reports whether driver files were added, replaced or removed since.
func (k *kept) moved() bool {
	return slices.ContainsFunc(k.places, func(p place) bool { return p.now() != p.state })
}
