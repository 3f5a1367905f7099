// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// Node is what to make a node of.
type Node struct {
	Name string
	// Profile is the name of an embedded profile of pkg/simulator; empty for a node without GPUs.
	Profile string
	// MIG has all GPUs in MIG mode.
	MIG bool
	// CPU and Memory are the node's capacity and allocatable; 64 and 512Gi when empty.
	CPU, Memory string
	Labels      map[string]string
	Taints      []corev1.Taint
}

// Inventory is what the node plugin finds on a node of a profile, as change has it.
func Inventory(ctx context.Context, nodeName, profileName string, change ...func(*profile.Profile)) (_ device.Inventory, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("inventory of a %s called %s: %w", profileName, nodeName, err)
		}
	}()
	hardware, err := profile.Load(profileName)
	if err != nil {
		return device.Inventory{}, err
	}
	for _, c := range change {
		c(&hardware)
	}
	temp, err := os.MkdirTemp("/tmp", "syf")
	if err != nil {
		return device.Inventory{}, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(temp)) }()
	dir := filepath.Join(temp, "sim")
	if err := simulator.Create(dir, hardware, simulator.Options{NodeName: nodeName}); err != nil {
		return device.Inventory{}, err
	}
	sim, err := simulator.Open(dir)
	if err != nil {
		return device.Inventory{}, err
	}
	library, err := nvml.Open(nvml.Options{NodeName: nodeName, SysfsRoot: sim.SysfsRoot(), Lib: sim.NVML()})
	if err != nil {
		return device.Inventory{}, err
	}
	defer func() { err = errors.Join(err, library.Close()) }()
	seen, err := library.Discover(ctx)
	return device.Merge(device.Inventory{}, seen), err
}

// Slices are the ResourceSlices that the node plugin publishes of an inventory.
func Slices(inventory device.Inventory) []resourceapi.ResourceSlice {
	pool := resourcemodel.DriverResources(inventory.NodeName, inventory).Pools[inventory.NodeName]
	var slices []resourceapi.ResourceSlice
	for i, slice := range pool.Slices {
		slices = append(slices, resourceapi.ResourceSlice{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%d", inventory.NodeName, v1alpha1.DriverName, i)},
			Spec: resourceapi.ResourceSliceSpec{
				Driver:   v1alpha1.DriverName,
				NodeName: ptr.To(inventory.NodeName),
				Pool:     resourceapi.ResourcePool{Name: inventory.NodeName, Generation: 1, ResourceSliceCount: int64(len(pool.Slices))},
				Devices:  slice.Devices, SharedCounters: slice.SharedCounters,
			},
		})
	}
	return slices
}

// Add makes a node, Ready, and publishes its GPUs.
func Add(ctx context.Context, client kubernetes.Interface, n Node) (err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("add node %s: %w", n.Name, err)
		}
	}()
	node := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: n.Name, Labels: map[string]string{corev1.LabelHostname: n.Name, corev1.LabelOSStable: "linux"}},
		Spec:       corev1.NodeSpec{Taints: n.Taints},
	}
	maps.Copy(node.Labels, n.Labels)
	if _, err := client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		return err
	}
	if err := SetReady(ctx, client, n); err != nil {
		return err
	}
	if n.Profile == "" {
		return nil
	}
	inventory, err := Inventory(ctx, n.Name, n.Profile, func(p *profile.Profile) {
		if n.MIG {
			p.Product.MIG.Enabled = true
		}
	})
	if err != nil {
		return err
	}
	for _, slice := range Slices(inventory) {
		if _, err := client.ResourceV1().ResourceSlices().Create(ctx, &slice, metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	return nil
}

// SetReady gives a Node object its labels and its capacity and lets pods be scheduled to it, as a kubelet and
// the node lifecycle controller do.
func SetReady(ctx context.Context, client kubernetes.Interface, n Node) error {
	status, err := json.Marshal(map[string]any{"status": corev1.NodeStatus{
		Capacity:    capacity(n),
		Allocatable: capacity(n),
		Conditions: []corev1.NodeCondition{{
			Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady",
			LastHeartbeatTime: metav1.Now(), LastTransitionTime: metav1.Now(),
		}},
	}})
	if err != nil {
		return err
	}
	if _, err := client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, status, metav1.PatchOptions{}, "status"); err != nil {
		return err
	}
	// Admission taints a new node as not ready; the node lifecycle controller, which does not run, would
	// take that off again. Other controllers are writing the new node, too.
	spec := map[string]any{"spec": map[string]any{"taints": n.Taints}}
	if len(n.Labels) > 0 {
		spec["metadata"] = map[string]any{"labels": n.Labels}
	}
	patch, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	_, err = client.CoreV1().Nodes().Patch(ctx, n.Name, types.MergePatchType, patch, metav1.PatchOptions{})
	return err
}

// Remove deletes a node and its ResourceSlices.
func Remove(ctx context.Context, client kubernetes.Interface, name string) error {
	err := errors.Join(
		client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{}),
		client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{},
			metav1.ListOptions{FieldSelector: resourceapi.ResourceSliceSelectorNodeName + "=" + name}))
	if err != nil {
		return fmt.Errorf("remove node %s: %w", name, err)
	}
	return nil
}

func capacity(n Node) corev1.ResourceList {
	amount := func(value, otherwise string) resource.Quantity {
		if value == "" {
			value = otherwise
		}
		return resource.MustParse(value)
	}
	return corev1.ResourceList{
		corev1.ResourceCPU:              amount(n.CPU, "64"),
		corev1.ResourceMemory:           amount(n.Memory, "512Gi"),
		corev1.ResourcePods:             resource.MustParse("110"),
		corev1.ResourceEphemeralStorage: resource.MustParse("1Ti"),
	}
}
