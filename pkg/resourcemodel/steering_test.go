// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel_test

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	apiequality "k8s.io/apimachinery/pkg/api/equality"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// freeNode has a domain of three GPUs, one of two, and a GPU without.
func freeNode() device.Inventory {
	inv := device.Inventory{NodeName: "node-a"}
	for i, domain := range []string{"node-a.0", "node-a.0", "node-a.0", "node-a.1", "node-a.1", ""} {
		inv.GPUs = append(inv.GPUs, device.GPU{UUID: "GPU-" + string(rune('a'+i)), Index: i, NVSwitchDomain: domain})
	}
	return inv
}

func TestWithFree(t *testing.T) {
	names := func(inv device.Inventory, positions ...int) map[string]bool {
		inUse := map[string]bool{}
		for _, i := range positions {
			inUse[inv.GPUs[i].Name()] = true
		}
		return inUse
	}
	for name, test := range map[string]struct {
		inUse  []int
		change func(*device.Inventory)
		// want is the free count by index of the GPU, -1 for none.
		want  []int64
		whole bool
	}{
		"all are free":                          {want: []int64{3, 3, 3, 2, 2, -1}, whole: true},
		"one in use counts for its domain only": {inUse: []int{1}, want: []int64{2, 2, 2, 2, 2, -1}},
		"a GPU without domain breaks the node":  {inUse: []int{5}, want: []int64{3, 3, 3, 2, 2, -1}},
		"a domain may be full":                  {inUse: []int{3, 4}, want: []int64{3, 3, 3, 0, 0, -1}},
		"a sick GPU is not free": {
			change: func(inv *device.Inventory) { inv.GPUs[0].Health = device.Health{Reason: device.ReasonLost} },
			want:   []int64{2, 2, 2, 2, 2, -1},
		},
		"a degraded GPU is": {
			change: func(inv *device.Inventory) { inv.GPUs[0].Health = device.Health{Degraded: "NVLinkDown"} },
			want:   []int64{3, 3, 3, 2, 2, -1}, whole: true,
		},
		"a GPU in MIG mode is not, and is in no domain": {
			change: func(inv *device.Inventory) { inv.GPUs[0].MIGEnabled = true },
			want:   []int64{-1, 2, 2, 2, 2, -1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			inv := freeNode()
			if test.change != nil {
				test.change(&inv)
			}
			resources := resourcemodel.DriverResources("node-a", inv)
			before := resources.DeepCopy()
			steered := resourcemodel.WithFree(resources, names(inv, test.inUse...))
			if !apiequality.Semantic.DeepEqual(*before, resources) {
				t.Error("the resources that were given changed")
			}
			got := make([]int64, len(inv.GPUs))
			for _, d := range steered.Pools["node-a"].Slices[0].Devices {
				free := d.Attributes[resourcemodel.AttributeNVSwitchDomainFree].IntValue
				if free == nil {
					free = new(int64(-1))
				}
				got[*d.Attributes[resourcemodel.AttributeIndex].IntValue] = *free
				if whole := d.Attributes[resourcemodel.AttributeNodeWhole].BoolValue; whole == nil || *whole != test.whole {
					t.Errorf("GPU %s: the node is whole: %v, want %t", d.Name, whole, test.whole)
				}
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("free GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestWithFreeLeavesPartitionsAlone(t *testing.T) {
	resources := resourcemodel.DriverResources("node-a", freeNode())
	pool := resources.Pools["node-a"]
	pool.Slices[0].Devices[0].Attributes[resourcemodel.AttributeType] = pool.Slices[0].Devices[0].Attributes[resourcemodel.AttributeProductName]
	steered := resourcemodel.WithFree(resources, nil).Pools["node-a"].Slices[0].Devices[0]
	if _, is := steered.Attributes[resourcemodel.AttributeNodeWhole]; is {
		t.Error("a device that is no whole GPU says whether the node is whole")
	}
}
