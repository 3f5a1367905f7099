// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gangtest

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// RunCluster lets everything that is not the controller do what it has to do now.
func (w *World) RunCluster() {
	w.RunClaimController()
	w.Schedule(w)
	w.RunKubelet()
}

// RunClaimController makes the claims of pods whose template exists, and drops those of pods that ended.
// Like the real one it does not make a second claim for a pod, after the first was deleted, before the
// pod is touched.
func (w *World) RunClaimController() {
	for _, p := range Sorted(w.Pods) {
		ended := p.Status.Phase == corev1.PodSucceeded || p.Status.Phase == corev1.PodFailed
		if ended {
			w.dropClaims(p.UID)
		}
		if ended || p.DeletionTimestamp != nil || w.ClaimOf(p) != nil || w.remembered[p.UID] {
			continue
		}
		if t := w.Templates[*p.Spec.ResourceClaims[0].ResourceClaimTemplateName]; t != nil {
			w.newClaim(p, t.Spec.Labels, t.Spec.Spec)
		}
	}
}

// ClaimOf returns the claim that was generated for a pod, or nil.
func (w *World) ClaimOf(p *corev1.Pod) *resourceapi.ResourceClaim {
	for _, c := range Sorted(w.Claims) {
		if metav1.IsControlledBy(c, p) {
			return c
		}
	}
	return nil
}

// Greedy is a kube-scheduler that gives each pod, oldest first, the first devices of one domain that are
// free, selected, and not fenced for another.
func Greedy(w *World) {
	for _, p := range Sorted(w.Pods) {
		c := w.ClaimOf(p)
		if c == nil || p.Spec.NodeName != "" || p.DeletionTimestamp != nil || c.DeletionTimestamp != nil {
			continue
		}
		if c.Status.Allocation == nil {
			if devices := w.FirstDevices(c); devices != nil {
				w.Allocate(c.Name, devices)
			}
		}
		if c = w.ClaimOf(p); c.Status.Allocation == nil {
			w.unschedulable(p)
			continue
		}
		w.UpdatePod(p.Name, func(p *corev1.Pod) {
			p.Spec.NodeName = DevicesOf(c)[0].Pool
			p.Status.Conditions = nil
		})
	}
}

func (w *World) unschedulable(p *corev1.Pod) {
	if len(p.Status.Conditions) > 0 {
		return
	}
	w.UpdatePod(p.Name, func(p *corev1.Pod) {
		p.Status.Conditions = []corev1.PodCondition{{
			Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable,
			Message: "cannot allocate all claims", LastTransitionTime: metav1.NewTime(w.Now),
		}}
	})
}

// FirstDevices returns the devices that Greedy gives a claim, or nil.
func (w *World) FirstDevices(c *resourceapi.ResourceClaim) []*Device {
	request := c.Spec.Devices.Requests[0].Exactly
	held := w.Allocated()
	byDomain := map[string][]*Device{}
	for _, d := range w.Devices {
		key := d.Node + "/" + d.Domain
		if held[d.DeviceID()] != nil || d.Problem != "" || w.NodeFull[d.Node] || !w.tolerates(request, d) || !Selects(request, d) {
			continue
		}
		byDomain[key] = append(byDomain[key], d)
		if got := byDomain[key]; len(got) == int(request.Count) {
			return got
		}
	}
	return nil
}

func (w *World) tolerates(r *resourceapi.ExactDeviceRequest, d *Device) bool {
	for gang := range w.Fences(d) {
		if !slices.ContainsFunc(r.Tolerations, func(t resourceapi.DeviceToleration) bool {
			return t.Key == v1alpha1.ReservedTaintKey && t.Value == string(gang)
		}) {
			return false
		}
	}
	return true
}

// Selects evaluates the CEL selectors of a request on a device.
func Selects(r *resourceapi.ExactDeviceRequest, d *Device) bool {
	device := cel.Device{Driver: v1alpha1.DriverName, Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
		"id": {StringValue: ptr.To(d.ID)}, "nvswitchDomain": {StringValue: ptr.To(d.Domain)},
	}}
	for _, s := range r.Selectors {
		compiled := compiler.GetOrCompile(s.CEL.Expression)
		if compiled.Error != nil {
			return false
		}
		if ok, _, err := compiled.DeviceMatches(context.Background(), device); err != nil || !ok {
			return false
		}
	}
	return true
}

// Allocate writes an allocation, as only kube-scheduler does.
func (w *World) Allocate(claim string, devices []*Device) {
	c := w.Claims[claim].DeepCopy()
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Request: c.Spec.Devices.Requests[0].Name, Driver: v1alpha1.DriverName, Pool: d.Node, Device: d.Name,
		})
	}
	w.Bump(c)
	w.Claims[claim] = c
}

// RunKubelet starts pods whose claim is allocated and, when it is a gang's, marked ready, and ends pods
// that are being deleted.
func (w *World) RunKubelet() {
	for _, p := range Sorted(w.Pods) {
		if p.DeletionTimestamp != nil {
			if len(p.Finalizers) == 0 && w.Now.Sub(p.DeletionTimestamp.Time) >= w.Grace {
				w.RemovePod(p.Name)
			}
			continue
		}
		c := w.ClaimOf(p)
		if p.Spec.NodeName == "" || p.Status.Phase != corev1.PodPending || c == nil {
			continue
		}
		if c.Labels[v1alpha1.GangLabel] != "" && c.Annotations[v1alpha1.ReadyAnnotation] != c.Labels[v1alpha1.PlanLabel] {
			continue
		}
		w.UpdatePod(p.Name, func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning })
	}
}
