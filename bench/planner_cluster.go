// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math/rand/v2"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/placement"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// plannerCluster is a cluster of nodes with 8 GPUs in two domains, as the node plugin publishes them.
type plannerCluster struct {
	*placement.Cluster
	devices map[string][]string // by node
	singles []*resourceapi.ResourceClaim
	claims  int
}

// newPlannerCluster fills a part of the GPUs: in use are 70 % by claims for a node, 15 % by claims for a
// domain, the rest by claims for one.
func newPlannerCluster(nodes, load int, random *rand.Rand) *plannerCluster {
	c := &plannerCluster{Cluster: placement.NewCluster(), devices: map[string][]string{}}
	c.SetClass(&resourceapi.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.DriverName},
		Spec: resourceapi.DeviceClassSpec{Selectors: []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
			Expression: `device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].?type.orValue("") == "gpu"`,
		}}}},
	})
	names := make([]string, nodes)
	for i := range nodes {
		names[i] = fmt.Sprintf("node-%04d", i)
		c.addNode(names[i])
	}
	random.Shuffle(nodes, func(i, j int) { names[i], names[j] = names[j], names[i] })
	use := nodes * 8 * load / 100
	free := map[string][]string{}
	for _, name := range names {
		switch devices := c.devices[name]; {
		case use*100 > nodes*8*load*30/100:
			c.claim(name, devices...)
			use -= 8
		case use*100 > nodes*8*load*15/100:
			c.claim(name, devices[:4]...)
			use -= 4
			free[name] = devices[4:]
		default:
			free[name] = devices
		}
	}
	for use > 0 {
		name := names[random.IntN(nodes)]
		if left := free[name]; len(left) > 0 {
			at := random.IntN(len(left))
			c.singles = append(c.singles, c.claim(name, left[at]))
			free[name] = append(left[:at:at], left[at+1:]...)
			use--
		}
	}
	return c
}

func (c *plannerCluster) addNode(name string) {
	inventory := device.Inventory{NodeName: name, DriverVersion: "580.105.08", CUDADriverVersion: "13.0"}
	for i := range 8 {
		inventory.GPUs = append(inventory.GPUs, device.GPU{
			UUID:              fmt.Sprintf("GPU-%s-%d", name, i),
			Index:             i,
			Minor:             new(i),
			ProductName:       "NVIDIA A100-SXM4-40GB",
			Brand:             "Nvidia",
			Architecture:      "Ampere",
			ComputeCapability: "8.0",
			PCIBusID:          fmt.Sprintf("0000:%02x:00.0", 16+i),
			PCIeRoot:          fmt.Sprintf("pci0000:%02x", 16+i/2),
			NUMANode:          new(i / 4),
			MemoryBytes:       40 << 30,
			Multiprocessors:   108,
			NVLinks:           12,
			NVSwitchDomain:    fmt.Sprintf("%s.%d", name, i/4), NVSwitchDomainSize: 4,
		})
	}
	for i, s := range resourcemodel.DriverResources(name, inventory).Pools[name].Slices {
		for _, d := range s.Devices {
			c.devices[name] = append(c.devices[name], d.Name)
		}
		c.SetSlice(&resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", name, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver: v1alpha1.DriverName, NodeName: &name, Devices: s.Devices,
				Pool: resourceapi.ResourcePool{Name: name, Generation: 1, ResourceSliceCount: 1},
			},
		})
	}
	c.SetNode(&corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{
			Allocatable: corev1.ResourceList{
				corev1.ResourceCPU:    resource.MustParse("128"),
				corev1.ResourceMemory: resource.MustParse("1Ti"),
				corev1.ResourcePods:   resource.MustParse("110"),
			},
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}},
		},
	})
}

// claim allocates devices to a pod that runs on the node.
func (c *plannerCluster) claim(node string, devices ...string) *resourceapi.ResourceClaim {
	c.claims++
	name := fmt.Sprintf("pod-%d", c.claims)
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, UID: types.UID(name)},
		Status: resourceapi.ResourceClaimStatus{
			Allocation:  &resourceapi.AllocationResult{},
			ReservedFor: []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: name, UID: types.UID(name)}},
		},
	}
	for _, d := range devices {
		claim.Status.Allocation.Devices.Results = append(claim.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: "gpu", Driver: v1alpha1.DriverName, Pool: node, Device: d,
		})
	}
	c.SetClaim(claim)
	c.SetPod(plannerPod("default", name, node))
	return claim
}

func plannerPod(namespace, name, node string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, UID: types.UID(name)},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("8"), corev1.ResourceMemory: resource.MustParse("32Gi")},
		}}}},
	}
}

// change ends a pod with one GPU and starts another on the same GPU.
func (c *plannerCluster) change(random *rand.Rand) {
	at := random.IntN(len(c.singles))
	old := c.singles[at]
	key := types.NamespacedName{Namespace: old.Namespace, Name: old.Name}
	c.DeleteClaim(key)
	c.DeletePod(key)
	was := old.Status.Allocation.Devices.Results[0]
	c.singles[at] = c.claim(was.Pool, was.Device)
}

func gangToPlan(name string, members, perMember int32, scope v1alpha1.MemberScope) placement.Gang {
	gang := placement.Gang{Claim: &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)},
		Spec: v1alpha1.GangClaimSpec{
			Members: members, DevicesPerMember: perMember, DeviceClassName: v1alpha1.DriverName,
			Topology: v1alpha1.GangTopology{Member: scope, Gang: v1alpha1.GangAny, Mode: v1alpha1.TopologyRequired},
		},
	}}
	for i := range members {
		gang.Pods = append(gang.Pods, plannerPod("ml", fmt.Sprintf("%s-%d", name, i), ""))
	}
	return gang
}
