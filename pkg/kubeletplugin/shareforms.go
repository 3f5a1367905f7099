// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// NodeShares says which GPUs several claims may have at the same time.
type NodeShares struct {
	// Field names the entry of the node configuration, for messages.
	Field  string
	GPUs   device.Selection
	Shares device.Shares
}

const (
	// shareFileName is the file in the plugin directory that says which GPUs are published as shared, and how.
	shareFileName = "shares.json"
	// shareFileVersion is the version of its format.
	shareFileVersion = 1
	// reconfigureSettle is how long the API server must have had a GPU's taint before nobody is expected to
	// allocate it any more: a scheduler decides on what it knew, and writes a little later.
	reconfigureSettle = 10 * time.Second
	// reconfigureMaxWait is the longest wait between two questions about who has a GPU. Everybody's claims have to
	// be listed for the answer.
	reconfigureMaxWait = 5 * time.Minute
)

// shareFile outlives reboots, as allocations do.
type shareFile struct {
	Version int `json:"version"`
	// GPUs are the shared ones, by device name; any other GPU is a claim's alone.
	GPUs map[string]device.Shares `json:"gpus"`
}

// shareForms decides in which form each GPU is published: to one claim alone, or shared, and how. The node
// configuration says what is wanted. A form that was published stays until nobody holds the GPU, neither on this
// node nor in the API: in another form the scheduler would not see who does. It belongs to discovery.
type shareForms struct {
	path   string
	wanted []NodeShares
	// published are the GPUs that are shared, as in the file.
	published map[string]device.Shares
	// waiting are the GPUs that are to get another form.
	waiting map[string]*reconfiguration
	// problems say why GPUs are not shared although the configuration names them.
	problems []string
}

// reconfiguration is a GPU that is to get another form.
type reconfiguration struct {
	// tainted is when the API server was seen to have the taint; zero before.
	tainted time.Time
	// wait and next are how long to wait between questions, and when to ask again.
	wait time.Duration
	next time.Time
	// held says that somebody had the GPU when it was last asked.
	held bool
}

// openShareForms continues with the forms that the process before this one published.
func openShareForms(dir string, wanted []NodeShares) (*shareForms, error) {
	f := &shareForms{path: filepath.Join(dir, shareFileName), wanted: wanted, published: map[string]device.Shares{}, waiting: map[string]*reconfiguration{}}
	data, err := os.ReadFile(f.path)
	if errors.Is(err, os.ErrNotExist) {
		return f, nil
	}
	if err != nil {
		return f, fmt.Errorf("read which GPUs are shared: %w", err)
	}
	var file shareFile
	if err := json.Unmarshal(data, &file); err != nil {
		return f, fmt.Errorf("read which GPUs are shared, %s: %w", f.path, err)
	}
	if file.Version != shareFileVersion {
		return f, fmt.Errorf("read which GPUs are shared: %s has version %d, this release knows %d", f.path, file.Version, shareFileVersion)
	}
	for name, shares := range file.GPUs {
		if shares.MaxClaims < 2 || shares.MemoryStep == 0 {
			return f, fmt.Errorf("read which GPUs are shared, %s: GPU %s has maxClaims %d and memoryStep %d", f.path, name, shares.MaxClaims, shares.MemoryStep)
		}
		f.published[name] = shares
	}
	return f, nil
}

// save writes the file, so that it outlives a power loss.
func (f *shareForms) save() error {
	data, err := json.Marshal(shareFile{Version: shareFileVersion, GPUs: f.published})
	if err != nil {
		return err
	}
	return atomicfile.WriteDurable(f.path, data, 0o600)
}

// apply returns the inventory with each GPU in the form in which it is published, and marks those that are to get
// another.
func (f *shareForms) apply(inv device.Inventory, now time.Time) device.Inventory {
	inv.GPUs = slices.Clone(inv.GPUs)
	f.problems = nil
	waiting := map[string]*reconfiguration{}
	for i := range inv.GPUs {
		gpu := &inv.GPUs[i]
		published := f.form(gpu.Name())
		wanted, problem := f.want(*gpu)
		if problem != "" {
			f.problems = append(f.problems, problem)
		}
		gpu.Shares, gpu.Reconfiguring = published, !sameShares(published, wanted)
		if !gpu.Reconfiguring {
			continue
		}
		waiting[gpu.Name()] = f.waiting[gpu.Name()]
		if waiting[gpu.Name()] == nil {
			waiting[gpu.Name()] = &reconfiguration{next: now}
		}
	}
	f.waiting = waiting
	return inv
}

// form is how a GPU is published; nil for one that is a claim's alone.
func (f *shareForms) form(name string) *device.Shares {
	if shares, ok := f.published[name]; ok {
		return &shares
	}
	return nil
}

// want is how a GPU should be published, and why that is not what the configuration says.
func (f *shareForms) want(gpu device.GPU) (*device.Shares, string) {
	for _, entry := range f.wanted {
		if !entry.GPUs.Selects(gpu) {
			continue
		}
		if err := entry.Shares.Check(gpu); err != nil {
			return nil, fmt.Sprintf("GPU %s (PCI %s) is not shared as %s says: %v", gpu.Name(), gpu.PCIBusID, entry.Field, err)
		}
		return &entry.Shares, ""
	}
	return nil, ""
}

func sameShares(a, b *device.Shares) bool { return a == b || a != nil && b != nil && *a == *b }

// due reports whether it is time to ask who has the GPUs that wait.
func (f *shareForms) due(now time.Time) bool {
	for _, r := range f.waiting {
		if !now.Before(r.next) {
			return true
		}
	}
	return false
}

// soon reports whether a GPU may get its form within seconds.
func (f *shareForms) soon() bool {
	for _, r := range f.waiting {
		if !r.held {
			return true
		}
	}
	return false
}

// postpone notes that all GPUs that wait are held on this node.
func (f *shareForms) postpone(now time.Time) {
	for _, r := range f.waiting {
		r.held, r.next = true, now // to look here costs nothing
	}
}

// holders is what is known about who has a node's GPUs.
type holders struct {
	// held are the devices that a record of this node or an allocation in the API names.
	held map[string]bool
	// published are the devices that the API server has in slices, and whether they have the taint.
	published map[string]bool
}

// settle gives the GPUs that wait and that nobody can have any more the form that is wanted, and reports whether
// there was one. A GPU that is not in the API yet is known to no scheduler.
func (f *shareForms) settle(inv device.Inventory, known holders, now time.Time) (bool, error) {
	before := maps.Clone(f.published)
	for _, gpu := range inv.GPUs {
		name := gpu.Name()
		r := f.waiting[name]
		if r == nil {
			continue
		}
		tainted, published := known.published[name]
		if tainted && r.tainted.IsZero() {
			r.tainted = now
		}
		free := !published || !r.tainted.IsZero() && now.Sub(r.tainted) >= reconfigureSettle
		if known.held[name] || !free {
			r.again(known.held[name], now)
			continue
		}
		delete(f.waiting, name)
		if shares, _ := f.want(gpu); shares != nil {
			f.published[name] = *shares
		} else {
			delete(f.published, name)
		}
	}
	if maps.Equal(before, f.published) {
		return false, nil
	}
	// The file first: who reads it after a crash finds at worst a form that is not published yet, on a GPU whose
	// taint is.
	if err := f.save(); err != nil {
		f.published = before
		return false, fmt.Errorf("write which GPUs are shared: %w", err)
	}
	return true, nil
}

// again sets when to ask again: soon while the taint settles, more and more rarely while somebody has the GPU.
func (r *reconfiguration) again(held bool, now time.Time) {
	r.held = held
	switch {
	case r.tainted.IsZero():
		r.wait = time.Second
	case !held:
		r.wait = max(time.Second, reconfigureSettle-now.Sub(r.tainted))
	default:
		r.wait = min(max(2*r.wait, reconfigureSettle), reconfigureMaxWait)
	}
	r.next = now.Add(r.wait)
}
