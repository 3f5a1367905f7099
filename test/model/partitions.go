// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"maps"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// partitionClass is the DeviceClass of partitions.
	partitionClass = "mig." + driver
	// partitionTemplate is that of users who want a partition.
	partitionTemplate = "singlepart"
)

// partitionable is a slice of GPUs.
type partitionable struct{ *resourceapi.ResourceSlice }

// addPartitions lets each GPU be had in so many equal parts: gpu-0-mig-0, gpu-0-mig-1 and so on.
func (s partitionable) addPartitions(parts int) {
	if parts == 0 {
		return
	}
	s.Spec.Pool.ResourceSliceCount++
	var partitions []resourceapi.Device
	for i := range s.Spec.Devices {
		gpu := &s.Spec.Devices[i]
		gpu.ConsumesCounters = []resourceapi.DeviceCounterConsumption{{CounterSet: gpu.Name, Counters: slicesOf(parts)}}
		for p := range parts {
			attributes := maps.Clone(gpu.Attributes)
			attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("mig")}
			attributes["id"] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprintf("%s-%d", *attributes["id"].StringValue, p))}
			partitions = append(partitions, resourceapi.Device{
				Name: fmt.Sprintf("%s-mig-%d", gpu.Name, p), Attributes: attributes,
				ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: gpu.Name, Counters: slicesOf(1)}},
			})
		}
	}
	s.Spec.Devices = append(s.Spec.Devices, partitions...)
}

func slicesOf(n int) map[string]resourceapi.Counter {
	return map[string]resourceapi.Counter{"slices": {Value: *resource.NewQuantity(int64(n), resource.DecimalSI)}}
}

// newCounters is the slice with the counters of a node's GPUs.
func newCounters(node string, s shape) *resourceapi.ResourceSlice {
	slice := newSlice(node, s)
	slice.Name, slice.Spec.Devices = node+"-counters", nil
	for i := range s.domains * s.size {
		slice.Spec.SharedCounters = append(slice.Spec.SharedCounters, resourceapi.CounterSet{Name: fmt.Sprintf("gpu-%d", i), Counters: slicesOf(s.parts)})
	}
	return slice
}

func newPartitionClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: partitionClass},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].?type.orValue("") == "mig"`,
		}}}},
	}
}

func newPartitionTemplate() *resourceapi.ResourceClaimTemplate {
	t := singleTemplate(1)
	t.Name = partitionTemplate
	t.Spec.Spec.Devices.Requests[0].Exactly.DeviceClassName = partitionClass
	return t
}

// hasDevices says of a slice that it lists any, and not counters.
func hasDevices(s *resourceapi.ResourceSlice) bool { return len(s.Spec.Devices) > 0 }

// excludes says that two devices cannot be allocated both: they are one, or one is a part of the other.
func (d device) excludes(o device) bool {
	return d.pool == o.pool && (d.name == o.name || strings.HasPrefix(d.name, o.name+"-mig-") || strings.HasPrefix(o.name, d.name+"-mig-"))
}

// forgetSiblings is what a controller does that fences planned devices only.
func forgetSiblings(g *v1alpha1.GangClaim) *v1alpha1.GangClaim {
	if g.Status.Plan == nil {
		return g
	}
	g = g.DeepCopy()
	for i := range g.Status.Plan.Placements {
		for j := range g.Status.Plan.Placements[i].Devices {
			g.Status.Plan.Placements[i].Devices[j].Siblings = nil
		}
	}
	return g
}
