// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

// deviceOf is a published device by its name.
func (w *randomWorld) deviceOf(name string) resourceapi.Device {
	i := slices.IndexFunc(w.published, func(d resourceapi.Device) bool { return d.Name == name })
	if i < 0 {
		w.fatal("device %s is not published", name)
	}
	return w.published[i]
}

// left is what the allocations leave of the counters (KEP-4815).
func (w *randomWorld) left() map[string]int64 {
	left := w.total
	for _, h := range w.holders {
		for _, name := range h.devices() {
			left = minus(left, w.deviceOf(name))
		}
	}
	return left
}

func minus(left map[string]int64, d resourceapi.Device) map[string]int64 {
	left = maps.Clone(left)
	for _, consumption := range d.ConsumesCounters {
		for name, counter := range consumption.Counters {
			left[consumption.CounterSet+"/"+name] -= counter.Value.Value()
		}
	}
	return left
}

func fitsCounters(left map[string]int64, d resourceapi.Device) bool {
	for _, consumption := range d.ConsumesCounters {
		for name, counter := range consumption.Counters {
			if left[consumption.CounterSet+"/"+name] < counter.Value.Value() {
				return false
			}
		}
	}
	return true
}

// isFree says whether a device could be allocated.
func (w *randomWorld) isFree(d resourceapi.Device, left map[string]int64) bool {
	return fitsCounters(left, d) && !w.isHeld(d)
}

func (w *randomWorld) isHeld(d resourceapi.Device) bool {
	return slices.ContainsFunc(w.holders, func(h *holder) bool { return slices.Contains(h.devices(), d.Name) })
}

// compare compares everything with what the holders have.
func (w *randomWorld) compare() {
	w.t.Helper()
	state, err := w.GPUs.State()
	if err != nil {
		w.fatal("%v", err)
	}
	var held []string
	for _, h := range w.holders {
		held = append(held, h.devices()...)
	}
	slices.Sort(held)
	w.compareAPI(held)
	w.compareCounters(state)
	w.comparePartitions(state, held)
	w.compareRecords(state)
	w.compareSpecs()
}

// same ends the test unless two lists are the same but for their order.
func (w *randomWorld) same(what string, got, want []string) {
	w.t.Helper()
	got, want = slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))
	if !slices.Equal(got, want) {
		w.fatal("%s: got %q, want %q", what, got, want)
	}
}

// compareAPI looks at what the API server has: of what is published nothing changes when claims come and go, and the
// allocations are the holders'.
func (w *randomWorld) compareAPI(held []string) {
	w.t.Helper()
	if versions := w.node.versions(w.t); !maps.Equal(versions, w.versions) {
		w.fatal("the ResourceSlices were %v and are %v", w.versions, versions)
	}
	claims, err := cluster.Client().ResourceV1().ResourceClaims(w.namespace).List(w.t.Context(), metav1.ListOptions{})
	if err != nil {
		w.fatal("%v", err)
	}
	var allocated []string
	for _, c := range claims.Items {
		if c.Status.Allocation == nil {
			w.fatal("claim %s is not allocated", c.Name)
		}
		for _, result := range c.Status.Allocation.Devices.Results {
			allocated = append(allocated, result.Device)
		}
	}
	w.same("devices that are allocated", allocated, held)
}

// compareCounters checks that there is nothing less than nothing, and that exactly those partitions can be allocated that
// NVML would make.
func (w *randomWorld) compareCounters(state simulator.State) {
	w.t.Helper()
	left := w.left()
	for name, n := range left {
		if n < 0 {
			w.fatal("counter %s is at %d", name, n)
		}
	}
	var allocatable, possible []string
	for _, d := range w.published {
		if w.isPartition(d) && w.isFree(d, left) {
			allocatable = append(allocatable, d.Name)
		}
		if i := slices.Index(w.devices, d.Name); w.isWholeOfPartitions(d) && w.isFree(d, left) != (len(state.GPUs[i].MIG.Instances) == 0) {
			w.fatal("%s can be allocated as a whole: %t, and has the instances %+v", d.Name, w.isFree(d, left), state.GPUs[i].MIG.Instances)
		}
	}
	for i := range partitioned {
		for _, instance := range state.PossiblePartitions(i) {
			possible = append(possible, w.nameOf(i, instance))
		}
	}
	w.same("partitions that can be allocated, and those that NVML would make", allocatable, possible)
}

// nameOf is the device's name of a GPU instance.
func (w *randomWorld) nameOf(gpu int, instance simulator.GPUInstance) string {
	return device.PartitionRef{GPU: w.devices[gpu], ProfileID: int(instance.ProfileID), Start: int(instance.Start)}.Name()
}

// comparePartitions checks that NVML has the holders' partitions, each with one compute instance, and that they are noted.
func (w *randomWorld) comparePartitions(state simulator.State, held []string) {
	w.t.Helper()
	var want, made []string
	for _, name := range held {
		if w.isPartition(w.deviceOf(name)) {
			want = append(want, name)
		}
	}
	for i, gpu := range state.GPUs {
		if gpu.MIG == nil {
			continue
		}
		for _, instance := range gpu.MIG.Instances {
			made = append(made, w.nameOf(i, instance))
			if len(instance.Compute) != 1 {
				w.fatal("GPU instance %s has the compute instances %+v", w.nameOf(i, instance), instance.Compute)
			}
		}
	}
	w.same("partitions that NVML has", made, want)
	w.same("partitions that are noted", files(w.t, filepath.Join(w.PluginDir(), "partitions")), want)
}

// uuidOf is the UUID of a device that exists.
func (w *randomWorld) uuidOf(state simulator.State, name string) string {
	for i, gpu := range state.GPUs {
		if name == w.devices[i] {
			return gpu.UUID
		}
		if gpu.MIG == nil {
			continue
		}
		for _, instance := range gpu.MIG.Instances {
			if w.nameOf(i, instance) == name {
				return instance.Compute[0].UUID
			}
		}
	}
	return "none"
}

// compareRecords checks that the checkpoint has the holders' claims, prepared, with the devices that NVML has.
func (w *randomWorld) compareRecords(state simulator.State) {
	w.t.Helper()
	var got, want []string
	for _, h := range w.holders {
		line := fmt.Sprintf("%s %s/%s %s", h.claim.UID, w.namespace, h.claim.Name, checkpoint.Prepared)
		for _, name := range h.devices() {
			line += " " + name + "=" + w.uuidOf(state, name)
		}
		want = append(want, line)
	}
	for _, name := range files(w.t, w.checkpointDir()) {
		if strings.HasPrefix(name, ".lock") {
			continue
		}
		content, err := os.ReadFile(filepath.Join(w.checkpointDir(), name))
		if err != nil {
			w.fatal("%v", err)
		}
		_, body, _ := bytes.Cut(content, []byte("\n")) // after the header
		var record checkpoint.Record
		if err := json.Unmarshal(body, &record); err != nil {
			w.fatal("checkpoint record %s: %v", name, err)
		}
		line := fmt.Sprintf("%s %s/%s %s", strings.TrimSuffix(name, ".json"), record.Namespace, record.Name, record.State)
		for _, d := range record.Devices {
			line += " " + d.Name + "=" + d.UUID
		}
		got = append(got, line)
	}
	w.same("checkpoint records", got, want)
}

// compareSpecs checks that a container of each holder would get its GPUs and the capabilities of its partitions, which no
// other gets, and that there are no specs besides.
func (w *randomWorld) compareSpecs() {
	w.t.Helper()
	specs, err := w.specs()
	if err != nil {
		w.fatal("%v", err)
	}
	var wantFiles, capabilities []string
	for _, h := range w.holders {
		spec, err := inject(specs, h.ids)
		if err != nil {
			w.fatal("claim %s: %v", h.claim.Name, err)
		}
		var want, got []string
		partitions := 0
		for _, name := range h.devices() {
			gpu, of := name, w.deviceOf(name)
			if w.isPartition(of) {
				partitions++
				ref, _ := device.ParsePartitionName(name)
				gpu = ref.GPU
			}
			if node := fmt.Sprintf("/dev/nvidia%d", slices.Index(w.devices, gpu)); !slices.Contains(want, node) {
				want = append(want, node)
			}
		}
		before := len(capabilities)
		for _, node := range spec.Linux.Devices {
			if gpuNode.MatchString(node.Path) {
				got = append(got, node.Path)
			} else if strings.Contains(node.Path, "nvidia-cap") {
				capabilities = append(capabilities, node.Path)
			}
		}
		w.same("GPUs of a container of "+h.claim.Name, got, want)
		if n := len(capabilities) - before; n != 2*partitions {
			w.fatal("a container of %s has %d capabilities for %d partitions", h.claim.Name, n, partitions)
		}
		wantFiles = append(wantFiles, string(h.claim.UID))
	}
	if slices.Sort(capabilities); len(slices.Compact(slices.Clone(capabilities))) != len(capabilities) {
		w.fatal("two containers have a capability: %q", capabilities)
	}
	var gotFiles []string
	for _, name := range files(w.t, w.CDIDir()) {
		if !strings.HasPrefix(name, ".") && !strings.Contains(name, "metadata") {
			gotFiles = append(gotFiles, name)
		}
	}
	if len(gotFiles) != len(wantFiles) || slices.ContainsFunc(wantFiles, func(uid string) bool {
		return !slices.ContainsFunc(gotFiles, func(name string) bool { return strings.Contains(name, uid) })
	}) {
		w.fatal("the CDI specs are %q, want one of each of %q", gotFiles, wantFiles)
	}
}
