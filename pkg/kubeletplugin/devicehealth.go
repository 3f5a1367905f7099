// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/health"
)

const (
	// healthDirName is the directory in the plugin directory that keeps what is known against each GPU
	// over a restart of the plugin: a file "<device>.json" for each GPU against which something is known.
	// Who removes a file says that the GPU was repaired.
	healthDirName = "health"
	healthFileExt = ".json"
	// healthFileVersion is the version of the files' format. A file of another version is left alone, and
	// written anew when there is something to write.
	healthFileVersion = 1
)

type healthFile struct {
	Version int `json:"version"`
	// BootID is the boot on which the record was made: a reboot resets every GPU.
	BootID string        `json:"bootID"`
	Record health.Record `json:"record"`
}

// deviceHealth is what is known against the node's GPUs. It belongs to discovery's goroutine.
type deviceHealth struct {
	policy health.Policy
	dir    string
	bootID string
	// records are by device name.
	records map[string]*health.Record
	// written is what the file of each record holds.
	written map[string]string
}

// openDeviceHealth reads what was known on this boot. A file that cannot be read is an error for the caller
// to report, beside all the others: it concerns one GPU.
func openDeviceHealth(pluginDir, bootID string, policy health.Policy, now time.Time) (*deviceHealth, error) {
	h := &deviceHealth{
		policy:  policy,
		dir:     filepath.Join(pluginDir, healthDirName),
		bootID:  bootID,
		records: map[string]*health.Record{},
		written: map[string]string{},
	}
	if err := os.MkdirAll(h.dir, 0o750); err != nil {
		return h, fmt.Errorf("create the directory of GPU health: %w", err)
	}
	_, err := atomicfile.RemoveStale(h.dir, func(string) bool { return true })
	errs := []error{err}
	entries, err := os.ReadDir(h.dir)
	errs = append(errs, err)
	for _, entry := range entries {
		name, ok := strings.CutSuffix(entry.Name(), healthFileExt)
		if !ok || strings.HasPrefix(name, ".") {
			continue
		}
		if err := h.load(name, now); err != nil {
			errs = append(errs, fmt.Errorf("read the health of GPU %s: %w", name, err))
		}
	}
	return h, errors.Join(errs...)
}

// load reads the file of a GPU, and removes one of another boot.
func (h *deviceHealth) load(name string, now time.Time) error {
	data, err := os.ReadFile(h.path(name))
	if err != nil {
		return err
	}
	var file healthFile
	if err := json.Unmarshal(data, &file); err != nil {
		return fmt.Errorf("%s: %w", h.path(name), err)
	}
	switch {
	case file.BootID != h.bootID:
		return os.Remove(h.path(name))
	case file.Version != healthFileVersion:
		return nil
	}
	file.Record.NotAfter(now)
	h.records[name] = &file.Record
	h.written[name] = string(data)
	return nil
}

func (h *deviceHealth) path(name string) string { return filepath.Join(h.dir, name+healthFileExt) }

// record returns the record of a GPU, to be changed.
func (h *deviceHealth) record(name string) *health.Record {
	if h.records[name] == nil {
		h.records[name] = &health.Record{}
	}
	return h.records[name]
}

// look notes what a look at the hardware, which began at a time, found of the GPUs of an inventory. readings
// are by UUID; nil says that they could not be read.
func (h *deviceHealth) look(inv device.Inventory, readings map[string]health.Readings, began time.Time) {
	for _, gpu := range inv.GPUs {
		reading, ok := readings[gpu.UUID]
		if !ok {
			reading.Incomplete = true
		}
		h.record(gpu.Name()).Look(gpu.Health, reading, h.policy, began)
	}
}

// driverUnloaded notes that the kernel driver is not loaded.
func (h *deviceHealth) driverUnloaded() {
	for _, record := range h.records {
		record.DriverUnloaded()
	}
}

// judge returns an inventory with the health of each GPU decided.
func (h *deviceHealth) judge(inv device.Inventory) device.Inventory {
	inv.GPUs = slices.Clone(inv.GPUs)
	for i := range inv.GPUs {
		gpu := &inv.GPUs[i]
		gpu.Health = health.Judge(gpu.Health, h.problems(*gpu))
	}
	return inv
}

// problems returns what is wrong with a GPU of an inventory that is not judged yet.
func (h *deviceHealth) problems(gpu device.GPU) []health.Problem {
	record := h.records[gpu.Name()]
	if record == nil {
		record = &health.Record{}
	}
	return record.Problems(gpu, h.policy)
}

// forget drops the record of every GPU whose file was removed, and returns their names, sorted.
func (h *deviceHealth) forget() []string {
	var forgotten []string
	for name := range h.written {
		if _, err := os.Stat(h.path(name)); errors.Is(err, fs.ErrNotExist) {
			delete(h.records, name)
			delete(h.written, name)
			forgotten = append(forgotten, name)
		}
	}
	slices.Sort(forgotten)
	return forgotten
}

// save writes what changed. It need not outlive a power loss: the next boot forgets it.
func (h *deviceHealth) save() error {
	var errs []error
	for name, record := range h.records {
		if err := h.saveOne(name, *record); err != nil {
			errs = append(errs, fmt.Errorf("save the health of GPU %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

func (h *deviceHealth) saveOne(name string, record health.Record) error {
	written, exists := h.written[name]
	if record.Empty() {
		if !exists {
			return nil
		}
		if err := os.Remove(h.path(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		delete(h.written, name)
		return nil
	}
	data, err := json.Marshal(healthFile{Version: healthFileVersion, BootID: h.bootID, Record: record})
	if err != nil || exists && written == string(data) {
		return err
	}
	if err := atomicfile.Write(h.path(name), data, 0o600); err != nil {
		return err
	}
	h.written[name] = string(data)
	return nil
}
