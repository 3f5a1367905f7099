// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package claim makes ResourceClaims that are already allocated, in a cluster without a scheduler.
// It stands in for kube-scheduler, which in a real cluster is the only writer of status.allocation;
// only tests and benchmarks may import it.
//
// It imports client-go and the API types. It promises allocations that pass the API server's
// validation and have the shape that the scheduler writes: results by request (parent/subrequest for
// firstAvailable), configurations of the class before those of the claim, a node selector and
// reservations.
package claim

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Builder collects what a claim asks for and what it got.
type Builder struct {
	node         string
	claim        resourceapi.ResourceClaim
	results      []resourceapi.DeviceRequestAllocationResult
	classConfigs []resourceapi.DeviceAllocationConfiguration
	reservations []resourceapi.ResourceClaimConsumerReference
}

// New begins a claim whose devices are in the pool of the node.
func New(namespace, name, node string) *Builder {
	return &Builder{
		node:  node,
		claim: resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}},
	}
}

// Request asks for exactly the devices, by count.
func (b *Builder) Request(name string, devices ...string) *Builder {
	return b.exactly(name, &resourceapi.ExactDeviceRequest{
		AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count:          int64(len(devices)),
	}, devices)
}

// All asks for all matching devices of the node and got the devices.
func (b *Builder) All(name string, devices ...string) *Builder {
	return b.exactly(name, &resourceapi.ExactDeviceRequest{AllocationMode: resourceapi.DeviceAllocationModeAll}, devices)
}

// Admin asks for the devices with administrative access. The namespace must carry the label
// resource.kubernetes.io/admin-access: "true".
func (b *Builder) Admin(name string, devices ...string) *Builder {
	return b.exactly(name, &resourceapi.ExactDeviceRequest{
		AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count:          int64(len(devices)),
		AdminAccess:    ptr.To(true),
	}, devices)
}

func (b *Builder) exactly(name string, request *resourceapi.ExactDeviceRequest, devices []string) *Builder {
	request.DeviceClassName = v1alpha1.DriverName
	b.claim.Spec.Devices.Requests = append(b.claim.Spec.Devices.Requests, resourceapi.DeviceRequest{Name: name, Exactly: request})
	return b.got(name, request.AdminAccess, devices)
}

// FirstAvailable asks for the subrequests in order, of one device class, and got the devices for the
// chosen one.
func (b *Builder) FirstAvailable(name string, subrequests []string, chosen string, devices ...string) *Builder {
	request := resourceapi.DeviceRequest{Name: name}
	for _, subrequest := range subrequests {
		request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
			Name:            subrequest,
			DeviceClassName: v1alpha1.DriverName,
			AllocationMode:  resourceapi.DeviceAllocationModeExactCount,
			Count:           int64(len(devices)),
		})
	}
	b.claim.Spec.Devices.Requests = append(b.claim.Spec.Devices.Requests, request)
	return b.got(name+"/"+chosen, nil, devices)
}

func (b *Builder) got(request string, adminAccess *bool, devices []string) *Builder {
	for _, device := range devices {
		b.results = append(b.results, resourceapi.DeviceRequestAllocationResult{
			Request:     request,
			Driver:      v1alpha1.DriverName,
			Pool:        b.node,
			Device:      device,
			AdminAccess: adminAccess,
		})
	}
	return b
}

// Shared asks for one device in as many shares as there are share IDs (KEP-5075).
func (b *Builder) Shared(name, device string, shareIDs ...types.UID) *Builder {
	b.exactly(name, &resourceapi.ExactDeviceRequest{
		AllocationMode: resourceapi.DeviceAllocationModeExactCount,
		Count:          int64(len(shareIDs)),
	}, slices.Repeat([]string{device}, len(shareIDs)))
	for i, id := range shareIDs {
		b.results[len(b.results)-len(shareIDs)+i].ShareID = ptr.To(id)
	}
	return b
}

// Consuming says how much each share of the last request has, by capacity.
func (b *Builder) Consuming(capacity map[resourceapi.QualifiedName]resource.Quantity) *Builder {
	last := b.results[len(b.results)-1].Request
	for i := range b.results {
		if b.results[i].Request == last {
			b.results[i].ConsumedCapacity = capacity
		}
	}
	return b
}

// Config adds opaque parameters (JSON) of the claim for the requests, all of them when none is named.
func (b *Builder) Config(parameters string, requests ...string) *Builder {
	b.claim.Spec.Devices.Config = append(b.claim.Spec.Devices.Config, resourceapi.DeviceClaimConfiguration{
		Requests:            requests,
		DeviceConfiguration: opaque(parameters),
	})
	return b
}

// ClassConfig adds opaque parameters (JSON) that the device class of the requests had.
func (b *Builder) ClassConfig(parameters string, requests ...string) *Builder {
	b.classConfigs = append(b.classConfigs, resourceapi.DeviceAllocationConfiguration{
		Source:              resourceapi.AllocationConfigSourceClass,
		Requests:            requests,
		DeviceConfiguration: opaque(parameters),
	})
	return b
}

func opaque(parameters string) resourceapi.DeviceConfiguration {
	return resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
		Driver:     v1alpha1.DriverName,
		Parameters: runtime.RawExtension{Raw: []byte(parameters)},
	}}
}

// Gang makes the claim that of a gang's member, of a plan. Admission policies let only the controller of
// Switchyard and the claim controller create such claims.
func (b *Builder) Gang(uid types.UID, plan, gangClaim string) *Builder {
	b.claim.Labels = map[string]string{v1alpha1.GangLabel: string(uid), v1alpha1.PlanLabel: plan}
	b.claim.Annotations = map[string]string{v1alpha1.GangClaimAnnotation: gangClaim}
	return b
}

// ReservedFor reserves the claim for a pod. A claim that is reserved for none gets a reservation for a
// pod that is not there: the scheduler, too, reserves a claim together with its allocation.
func (b *Builder) ReservedFor(pod *corev1.Pod) *Builder {
	b.reservations = append(b.reservations, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod.Name, UID: pod.UID})
	return b
}

// Create creates the claim and writes its allocation.
func (b *Builder) Create(ctx context.Context, client kubernetes.Interface) (*resourceapi.ResourceClaim, error) {
	claims := client.ResourceV1().ResourceClaims(b.claim.Namespace)
	created, err := claims.Create(ctx, &b.claim, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create claim %s/%s: %w", b.claim.Namespace, b.claim.Name, err)
	}
	if len(b.reservations) == 0 {
		b.ReservedFor(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: b.claim.Name, UID: "of-" + created.UID}})
	}
	created.Status = resourceapi.ResourceClaimStatus{Allocation: b.allocation(), ReservedFor: b.reservations}
	allocated, err := claims.UpdateStatus(ctx, created, metav1.UpdateOptions{})
	if err != nil {
		return nil, errors.Join(
			fmt.Errorf("allocate claim %s/%s: %w", b.claim.Namespace, b.claim.Name, err),
			claims.Delete(ctx, created.Name, metav1.DeleteOptions{}))
	}
	return allocated, nil
}

func (b *Builder) allocation() *resourceapi.AllocationResult {
	configs := slices.Clone(b.classConfigs)
	for _, config := range b.claim.Spec.Devices.Config {
		configs = append(configs, resourceapi.DeviceAllocationConfiguration{
			Source:              resourceapi.AllocationConfigSourceClaim,
			Requests:            config.Requests,
			DeviceConfiguration: config.DeviceConfiguration,
		})
	}
	return &resourceapi.AllocationResult{
		Devices: resourceapi.DeviceAllocationResult{Results: b.results, Config: configs},
		NodeSelector: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchFields: []corev1.NodeSelectorRequirement{{
				Key:      metav1.ObjectNameField,
				Operator: corev1.NodeSelectorOpIn,
				Values:   []string{b.node},
			}},
		}}},
	}
}

// Delete deletes the claim as a user does who does not wait for the pods: it is gone when Delete
// returns, whether or not it is prepared anywhere.
func Delete(ctx context.Context, client kubernetes.Interface, claim *resourceapi.ResourceClaim) error {
	err := client.ResourceV1().ResourceClaims(claim.Namespace).Delete(ctx, claim.Name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &claim.UID},
	})
	if err != nil {
		return fmt.Errorf("delete claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return nil
}
