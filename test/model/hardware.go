// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	driver    = v1alpha1.DriverName
	namespace = "ml"
)

// shape is how the GPUs of a node are wired.
type shape struct {
	name          string
	domains, size int
	// plain GPUs have no NVSwitch domain.
	plain bool
	// parts is in how many partitions each GPU may be had instead.
	parts int
}

// inParts is a node whose GPUs may be partitioned.
var inParts = shape{name: "a domain of four GPUs in halves", domains: 1, size: 4, parts: 2}

var shapes = []shape{
	{name: "two domains of four", domains: 2, size: 4},
	{name: "one domain of eight", domains: 1, size: 8},
	{name: "two domains of two", domains: 2, size: 2},
	{name: "four GPUs without NVLink", domains: 1, size: 4, plain: true},
}

// setUpHardware makes two to four nodes with GPUs, and the DeviceClass.
func (w *world) setUpHardware() {
	n := 2 + w.rand.IntN(3)
	for i := range n {
		s := shapes[0]
		if w.rand.IntN(2) == 0 {
			s = shapes[w.rand.IntN(len(shapes))]
		}
		if w.moves {
			s = shapes[0]
		}
		if w.partitions && i != n-1 {
			s = inParts
		}
		name := fmt.Sprintf("node-%d", i)
		w.must(create(w.api, newNode(name)))
		w.must(create(w.api, newSlice(name, s)))
		if s.parts > 0 {
			w.must(create(w.api, newCounters(name, s)))
		}
	}
	w.must(create(w.api, newClass()))
	if w.partitions {
		w.must(create(w.api, newPartitionClass()))
	}
}

// must is for writes that cannot fail.
func (w *world) must(_ any, err error) {
	if err != nil {
		w.fail("the model: %w", err)
	}
}

func newNode(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU:  resource.MustParse("16"),
				corev1.ResourcePods: resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	}
}

func newClass() *resourceapi.DeviceClass {
	return &resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: driver},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].?type.orValue("") == "gpu"`,
		}}}},
	}
}

func newSlice(node string, s shape) *resourceapi.ResourceSlice {
	slice := partitionable{&resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{Name: node + "-slice"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver: driver, NodeName: ptr.To(node),
			Pool: resourceapi.ResourcePool{Name: node, Generation: 1, ResourceSliceCount: 1},
		},
	}}
	for d := range s.domains {
		for i := range s.size {
			n := d*s.size + i
			attributes := map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"type":                            {StringValue: ptr.To("gpu")},
				"id":                              {StringValue: ptr.To(fmt.Sprintf("%s-%d", node, n))},
				"resource.kubernetes.io/pcieRoot": {StringValue: ptr.To(fmt.Sprintf("pci%04d:%02d", d, i/2))},
				"resource.kubernetes.io/numaNode": {IntValue: ptr.To(int64(n * 2 / (s.domains * s.size)))},
			}
			if !s.plain {
				attributes["nvswitchDomain"] = resourceapi.DeviceAttribute{StringValue: ptr.To(fmt.Sprintf("%s.%d", node, d))}
			}
			slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
				Name: fmt.Sprintf("gpu-%d", n), Attributes: attributes,
				Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
			})
		}
	}
	slice.addPartitions(s.parts)
	return slice.ResourceSlice
}

func nodeReady(node *corev1.Node) bool {
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

func setReady(node *corev1.Node, ready bool) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: status}}
}
