// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// partitionLedger says which MIG partitions this driver has made, or was about to make: a file for each in
// the plugin directory, with the boot ID and the load of the kernel driver as content. Only what is in it is ever destroyed; everything
// else belongs to an administrator.
//
// An entry is written before the first call of NVML and removed after the last, so that a partition of
// ours without an entry cannot exist, whenever the process dies and whatever becomes of checkpoint
// records. No partition outlives a reboot, so entries need not outlive a power loss, and those of another
// boot mean nothing; nor do those of another load of the kernel driver.
type partitionLedger struct {
	dir, bootID, moduleDir string
}

// partitionDirName is the directory of the ledger in the plugin directory.
const partitionDirName = "partitions"

// openPartitionLedger forgets what was made on other boots, and by other loads of the driver. moduleDir may be empty.
func openPartitionLedger(pluginDir, bootID, moduleDir string) (*partitionLedger, error) {
	l := &partitionLedger{dir: filepath.Join(pluginDir, partitionDirName), bootID: bootID, moduleDir: moduleDir}
	if err := os.MkdirAll(l.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for MIG partitions: %w", err)
	}
	isPartition := func(base string) bool {
		_, ok := device.ParsePartitionName(base)
		return ok
	}
	if _, err := atomicfile.RemoveStale(l.dir, isPartition); err != nil {
		return nil, fmt.Errorf("tidy the directory for MIG partitions: %w", err)
	}
	entries, err := os.ReadDir(l.dir)
	if err != nil {
		return nil, fmt.Errorf("read the directory for MIG partitions: %w", err)
	}
	for _, entry := range entries {
		if isPartition(entry.Name()) && !l.hasName(entry.Name()) {
			if err := os.Remove(filepath.Join(l.dir, entry.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, fmt.Errorf("forget a MIG partition of another boot: %w", err)
			}
		}
	}
	return l, nil
}

func (l *partitionLedger) add(ref device.PartitionRef) error {
	// Somebody may have tidied up.
	err := os.MkdirAll(l.dir, 0o700)
	if err == nil {
		err = atomicfile.Write(filepath.Join(l.dir, ref.Name()), []byte(l.bootID+"\n"+l.driverLoad()), 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that MIG partition %s is about to be made: %w", ref.Name(), err)
	}
	return nil
}

func (l *partitionLedger) remove(ref device.PartitionRef) error {
	if err := os.Remove(filepath.Join(l.dir, ref.Name())); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note that MIG partition %s is gone: %w", ref.Name(), err)
	}
	return nil
}

func (l *partitionLedger) has(ref device.PartitionRef) bool { return l.hasName(ref.Name()) }

func (l *partitionLedger) hasName(name string) bool {
	content, err := os.ReadFile(filepath.Join(l.dir, name))
	if err != nil {
		return false
	}
	bootID, load, _ := strings.Cut(string(content), "\n")
	now := l.driverLoad()
	return strings.TrimSpace(bootID) == l.bootID && (load == "" || now == "" || load == now)
}

// driverLoad tells one load of the kernel driver from the next, by the inode of its directory in sysfs, whose numbers
// are not used again soon; empty when it is not loaded, or there is no telling.
func (l *partitionLedger) driverLoad() string {
	var stat unix.Stat_t
	if l.moduleDir == "" || unix.Stat(l.moduleDir, &stat) != nil {
		return ""
	}
	return strconv.FormatUint(stat.Ino, 10)
}

// list returns the partitions of this boot, in no order.
func (l *partitionLedger) list() ([]device.PartitionRef, error) {
	entries, err := os.ReadDir(l.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the MIG partitions that were made: %w", err)
	}
	var refs []device.PartitionRef
	for _, entry := range entries {
		if ref, ok := device.ParsePartitionName(entry.Name()); ok && l.has(ref) {
			refs = append(refs, ref)
		}
	}
	return refs, nil
}
