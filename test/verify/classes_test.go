// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"context"
	"fmt"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	dracel "k8s.io/dynamic-resource-allocation/cel"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// published is a GPU as the driver publishes it.
func published(gpu device.GPU) dracel.Device {
	pool := resourcemodel.DriverResources("node-a", device.Inventory{GPUs: []device.GPU{gpu}}).Pools["node-a"]
	d := pool.Slices[0].Devices[0]
	return dracel.Device{Driver: v1alpha1.DriverName, Attributes: d.Attributes, Capacity: d.Capacity}
}

// barePartition has nothing but what every MIG partition has.
func barePartition() dracel.Device {
	profile := mig.Profile{Name: "1g.10gb", Slices: 1, MemoryBytes: 1, MaxInstances: 1, Placements: []mig.Placement{{Size: 1}}}
	gpu := device.GPU{UUID: "GPU-0", MIGEnabled: true, MIG: &device.MIG{Profiles: []mig.Profile{profile}}}
	for _, slice := range resourcemodel.DriverResources("node-a", device.Inventory{GPUs: []device.GPU{gpu}}).Pools["node-a"].Slices {
		for _, d := range slice.Devices {
			if *d.Attributes[resourcemodel.AttributeType].StringValue == resourcemodel.TypeMIG {
				return dracel.Device{Driver: v1alpha1.DriverName, Attributes: d.Attributes, Capacity: d.Capacity}
			}
		}
	}
	panic("a GPU in MIG mode has no partition")
}

// bareGPU has nothing but what every GPU has.
var bareGPU = published(device.GPU{UUID: "GPU-0"})

func TestDeviceClassesSelect(t *testing.T) {
	linked := published(device.GPU{UUID: "GPU-1", NVSwitchDomain: "node-a.0", NVSwitchDomainSize: 8})
	unlinked := published(device.GPU{UUID: "GPU-2"})
	partition := barePartition()
	partition.Attributes[resourcemodel.AttributeNVSwitchDomain] = linked.Attributes[resourcemodel.AttributeNVSwitchDomain]
	foreign := dracel.Device{Driver: "gpu.example.com", Attributes: linked.Attributes}
	const mebibyte = 1 << 20
	// As NVML counts them: an A100 with 80 GB and one with 40, an H100 with 80 GB, an L40S, a B200.
	a100 := published(device.GPU{UUID: "GPU-4", MemoryBytes: 81920 * mebibyte, ComputeCapability: "8.0"})
	a100Small := published(device.GPU{UUID: "GPU-5", MemoryBytes: 40960 * mebibyte, ComputeCapability: "8.0"})
	h100 := published(device.GPU{UUID: "GPU-6", MemoryBytes: 81559 * mebibyte, ComputeCapability: "9.0"})
	l40s := published(device.GPU{UUID: "GPU-7", MemoryBytes: 46068 * mebibyte, ComputeCapability: "8.9"})
	b200 := published(device.GPU{UUID: "GPU-8", MemoryBytes: 183359 * mebibyte, ComputeCapability: "10.0"})
	partition.Attributes[resourcemodel.AttributeCUDAComputeCapability] = b200.Attributes[resourcemodel.AttributeCUDAComputeCapability]
	partition.Capacity[resourcemodel.CapacityMemory] = b200.Capacity[resourcemodel.CapacityMemory]

	share := published(device.GPU{
		UUID: "GPU-9", MemoryBytes: 183359 * mebibyte, Multiprocessors: 148, ComputeCapability: "10.0", NVSwitchDomain: "node-a.0", NVSwitchDomainSize: 8,
		Shares: &device.Shares{Strategy: "MPS", MaxClaims: 4, MemoryStep: 1024 * mebibyte},
	})

	tests := map[string]struct{ yes, no []dracel.Device }{
		"share.gpu.switchyard.dev":  {yes: []dracel.Device{share}, no: []dracel.Device{linked, bareGPU, partition, foreign}},
		"gpu.switchyard.dev":        {yes: []dracel.Device{linked, unlinked}, no: []dracel.Device{partition, share, foreign}},
		"nvlink.gpu.switchyard.dev": {yes: []dracel.Device{linked}, no: []dracel.Device{unlinked, partition, share, foreign}},
		"80gb.gpu.switchyard.dev":   {yes: []dracel.Device{a100, h100, b200}, no: []dracel.Device{a100Small, l40s, bareGPU, partition, share, foreign}},
		"fp8.gpu.switchyard.dev":    {yes: []dracel.Device{l40s, h100, b200}, no: []dracel.Device{a100, bareGPU, partition, share, foreign}},
		"mig.gpu.switchyard.dev":    {yes: []dracel.Device{partition}, no: []dracel.Device{linked, bareGPU, share, foreign, {Driver: foreign.Driver, Attributes: partition.Attributes}}},
	}
	for name, class := range classes(t) {
		test, ok := tests[name]
		if !ok {
			t.Errorf("class %s has no test", name)
			continue
		}
		delete(tests, name)
		t.Run(name, func(t *testing.T) {
			for i, d := range slices.Concat(test.yes, test.no) {
				if got, want := selects(t, class, d), i < len(test.yes); got != want {
					t.Errorf("device of %s with %v: selected %t, want %t", d.Driver, d.Attributes, got, want)
				}
			}
		})
	}
	for name := range tests {
		t.Errorf("class %s is not in the manifests", name)
	}
}

func classes(t *testing.T) map[string]*resourceapi.DeviceClass {
	t.Helper()
	objects, err := decode(read(t, "deployments/manifests/device-classes.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]*resourceapi.DeviceClass{}
	for _, o := range objects {
		class := o.(*resourceapi.DeviceClass)
		found[class.Name] = class
	}
	return found
}

// selects evaluates a class's selectors. An expression that fails at run time fails the test.
func selects(t *testing.T, class *resourceapi.DeviceClass, d dracel.Device) bool {
	t.Helper()
	for _, selector := range class.Spec.Selectors {
		match, err := matches(selector.CEL.Expression, d)
		if err != nil {
			t.Fatal(err)
		}
		if !match {
			return false
		}
	}
	return true
}

// matches evaluates a selector as the scheduler does.
func matches(expression string, d dracel.Device) (bool, error) {
	compiled := dracel.GetCompiler(dracel.Features{}).CompileCELExpression(expression, dracel.Options{})
	if compiled.Error != nil {
		return false, fmt.Errorf("%s: %w", expression, compiled.Error)
	}
	match, _, err := compiled.DeviceMatches(context.Background(), d)
	if err != nil {
		return false, fmt.Errorf("%s: %w", expression, err)
	}
	return match, nil
}
