// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelpers "k8s.io/component-helpers/resource"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// States of a claim.
const (
	claimAllocated = "Allocated"
	claimPending   = "Pending"
	claimMissing   = "Missing"
)

func namesOf[T client.Object](list []T) []string {
	var names []string
	for _, o := range list {
		names = append(names, o.GetName())
	}
	return names
}

// pod explains a pod: the first of its claims that it waits for is the reason, but one whose devices are free only where
// there is no other.
func (x *explainer) pod(ctx context.Context, namespace, name string) (explanation, error) {
	pod, there := find(x.pods, namespace, name)
	if !there {
		return explanation{}, fmt.Errorf("pod %s/%s does not exist; kubectl get pods -n %s lists those that do", namespace, name, namespace)
	}
	e := explanation{Kind: kindPod, Namespace: namespace, Name: name, State: string(pod.Status.Phase), Scheduler: unschedulable(pod)}
	var waits *explanation
	add := func(view claimView, why explanation) {
		e.Claims = append(e.Claims, view)
		if why.Message != "" && (waits == nil || waits.Reason == reasonHasPlace && why.Reason != reasonHasPlace) {
			waits = &why
		}
	}
	for _, reference := range pod.Spec.ResourceClaims {
		view, why, err := x.podClaim(ctx, pod, reference)
		if err != nil {
			return explanation{}, err
		}
		add(view, why)
	}
	x.extendedResources(ctx, pod, add)
	switch {
	case len(e.Claims) == 0:
		e.Message = "it has no spec.resourceClaims and no extended resource of a DeviceClass, and so asks for no GPU of driver " + v1alpha1.DriverName
	case pod.DeletionTimestamp != nil:
		e.State, e.Message = "Terminating", "it is ending, and keeps its devices until it has ended"
	case placement.Ended(pod):
		e.Message = "it has ended, and needs no devices any more"
	case len(pod.Spec.SchedulingGates) > 0:
		e.Reason, e.Message = corev1.PodReasonSchedulingGated, "it has the scheduling gate "+pod.Spec.SchedulingGates[0].Name+", and waits until that is removed"
	case waits != nil:
		why := amongOthers(*waits, len(e.Claims))
		e.Reason, e.Message, e.Help, e.Blocking = why.Reason, why.Message, why.Help, why.Blocking
	case pod.Spec.NodeName == "":
		e.Message = "its claims have their devices; kube-scheduler has not bound it to the node yet"
	default:
		e.Message = "it is on node " + pod.Spec.NodeName + " with " + deviceNames(e.Claims)
		e.Help = x.gate(pod)
	}
	return e, nil
}

// gate says what a pod that has its devices and does not run waits for.
func (x *explainer) gate(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodPending {
		return ""
	}
	for _, status := range pod.Status.ResourceClaimStatuses {
		claim, there := find(x.claims, pod.Namespace, ptr.Deref(status.ResourceClaimName, ""))
		if there && claim.Labels[v1alpha1.GangLabel] != "" && claim.Annotations[v1alpha1.ReadyAnnotation] == "" {
			return "its gang is not complete yet: its containers start when all members have their devices; kubectl switchyard explain gang says what is missing"
		}
	}
	return "its containers have not started; kubectl describe pod shows the kubelet's Events"
}

// unschedulable is what kube-scheduler says of a pod that it cannot place.
func unschedulable(pod *corev1.Pod) string {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodScheduled && condition.Status == corev1.ConditionFalse {
			return condition.Message
		}
	}
	return ""
}

func deviceNames(claims []claimView) string {
	var names []string
	for _, c := range claims {
		for _, d := range c.Devices {
			names = append(names, d.String())
		}
	}
	if len(names) == 0 {
		return "no device of driver " + v1alpha1.DriverName
	}
	return strings.Join(names, ", ")
}

// podClaim looks at one claim of a pod, and says why the pod waits for it, if it does.
func (x *explainer) podClaim(ctx context.Context, pod *corev1.Pod, reference corev1.PodResourceClaim) (view claimView, why explanation, err error) {
	view = claimView{Request: reference.Name, State: claimMissing}
	name := ptr.Deref(reference.ResourceClaimName, "")
	if template := ptr.Deref(reference.ResourceClaimTemplateName, ""); template != "" {
		forPod, made := generated(pod, reference.Name)
		if !made {
			why, err = x.noClaim(ctx, pod, template)
			view.Message = why.Message
			return view, why, err
		}
		name = forPod
	}
	if name == "" { // kube-controller-manager found that none is needed
		view.State = claimAllocated
		return view, why, nil
	}
	view, why = x.namedClaim(ctx, pod, view, name)
	return view, why, nil
}

// namedClaim looks at the claim of a name that a pod has for a request.
func (x *explainer) namedClaim(ctx context.Context, pod *corev1.Pod, view claimView, name string) (_ claimView, why explanation) {
	view.Claim = name
	claim, there := find(x.claims, pod.Namespace, name)
	if !there {
		why.Reason, why.Message = "ClaimMissing", fmt.Sprintf("ResourceClaim %s does not exist: create it, or correct spec.resourceClaims of the pod", name)
		view.Message = why.Message
		return view, why
	}
	view.State, view.Devices = claimPending, x.devicesOf(claim)
	if claim.Status.Allocation != nil {
		view.State = claimAllocated
		if other := inUseByOthers(claim, pod); other != "" && pod.Spec.NodeName == "" {
			why.Reason, why.Message = "ClaimInUse", fmt.Sprintf("ResourceClaim %s is reserved for %d pods, as many as it can be, %s among them", name, len(claim.Status.ReservedFor), other)
			view.Message = why.Message
		}
		return view, why
	}
	why = x.pending(ctx, claim, pod)
	view.Message = why.Message
	return view, why
}

// extendedResources looks at what a pod asks for as extended resources of DeviceClasses (KEP-5004): kube-scheduler
// makes one claim for all of it, once it has a node.
func (x *explainer) extendedResources(ctx context.Context, pod *corev1.Pod, add func(claimView, explanation)) {
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil {
		var names []string
		for _, mapping := range status.RequestMappings {
			names = append(names, mapping.ResourceName)
		}
		slices.Sort(names)
		add(x.namedClaim(ctx, pod, claimView{Request: strings.Join(slices.Compact(names), ","), State: claimMissing}, status.ResourceClaimName))
		return
	}
	requests := resourcehelpers.PodRequests(pod, resourcehelpers.PodResourcesOptions{})
	for _, name := range slices.Sorted(maps.Keys(requests)) {
		class, count := placement.ClassOfResource(slices.Values(x.classes), name), requests[name]
		if class == nil || count.IsZero() {
			continue
		}
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: "for " + string(name), UID: pod.UID}}
		claim.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: class.Name, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count.Value(),
		}}}
		why := x.pending(ctx, claim, pod)
		add(claimView{Request: string(name), State: claimPending, Message: why.Message}, why)
	}
}

// generated is the claim that was made for a pod from a template; its name is empty where none was needed.
func generated(pod *corev1.Pod, request string) (name string, made bool) {
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.Name == request {
			return ptr.Deref(status.ResourceClaimName, ""), true
		}
	}
	return "", false
}

// inUseByOthers names a consumer of a claim that has as many as it may have, this pod not among them.
func inUseByOthers(claim *resourceapi.ResourceClaim, pod *corev1.Pod) string {
	reserved := claim.Status.ReservedFor
	if len(reserved) < resourceapi.ResourceClaimReservedForMaxSize ||
		slices.ContainsFunc(reserved, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID }) {
		return ""
	}
	return reserved[0].Name
}

// noClaim says why a pod has no claim from its template: mostly because that of a gang is not made yet.
func (x *explainer) noClaim(ctx context.Context, pod *corev1.Pod, template string) (explanation, error) {
	if _, is := find(x.gangs, pod.Namespace, template); is {
		e, err := x.gang(ctx, pod.Namespace, template)
		if err == nil {
			e.Message = fmt.Sprintf("gang %s: %s", template, e.Message)
		}
		return e, err
	}
	if _, is := find(x.templates, pod.Namespace, template); is {
		return explanation{Reason: "ClaimNotMade", Message: fmt.Sprintf("kube-controller-manager has not made its claim from ResourceClaimTemplate %s yet; its Events say why, if that lasts", template)}, nil
	}
	return explanation{
		Reason:  "TemplateMissing",
		Message: fmt.Sprintf("there is neither a ResourceClaimTemplate %s nor a GangClaim of that name: create one of them, or correct spec.resourceClaims of the pod", template),
	}, nil
}

// pending says where a claim that is not allocated would find its devices.
func (x *explainer) pending(ctx context.Context, claim *resourceapi.ResourceClaim, pod *corev1.Pod) explanation {
	if e, wrong := x.fault(claim); wrong {
		return e
	}
	e := explanation{Reason: "NotAllocated", Message: fmt.Sprintf("ResourceClaim %s is not allocated", claim.Name)}
	a, understood := x.planClaim(ctx, claim, pod)
	if !understood {
		e.Help = "the planner does not understand claims like this one: several requests, alternatives, all devices, capacity, or constraints other than " +
			"one matchAttribute of nvswitchDomain, numaNode or pcieRoot"
		return e
	}
	e.Reason, e.Message = a.reason, inClaim(a.message)
	for _, p := range a.blocking {
		e.Blocking = append(e.Blocking, p.String())
	}
	switch {
	case a.reason == reasonHasPlace:
		e.Help = "kube-scheduler tries again when something changes; what it says is of its last try"
	case len(e.Blocking) > 0:
		e.Help = "it fits when " + few(e.Blocking) + " " + plural(len(e.Blocking), "ends", "end") + "; a GangClaim with one member can have pods moved (docs/guide/defragmentation.md)"
	}
	return e
}

// amongOthers says what a place for a claim is worth where its pod has others.
func amongOthers(why explanation, claims int) explanation {
	if why.Reason == reasonHasPlace && claims > 1 {
		why.Help = fmt.Sprintf("the pod has %d claims, and needs the devices of all of them on one node: each was looked at by itself", claims)
	}
	return why
}

func plural(n int, one, many string) string {
	if n == 1 {
		return one
	}
	return many
}

// devicesOf are the devices that a claim has of our driver.
func (x *explainer) devicesOf(claim *resourceapi.ResourceClaim) []placeView {
	if claim.Status.Allocation == nil {
		return nil
	}
	var list []placeView
	for _, r := range claim.Status.Allocation.Devices.Results {
		if r.Driver == v1alpha1.DriverName {
			list = append(list, x.place(r.Pool, r.Device))
		}
	}
	return list
}

// claim explains a ResourceClaim.
func (x *explainer) claim(ctx context.Context, namespace, name string) (explanation, error) {
	claim, there := find(x.claims, namespace, name)
	if !there {
		return explanation{}, fmt.Errorf("ResourceClaim %s/%s does not exist; kubectl get resourceclaims -n %s lists those that do", namespace, name, namespace)
	}
	e := explanation{Kind: kindClaim, Namespace: namespace, Name: name, State: claimPending}
	pod := x.consumer(claim)
	if claim.Status.Allocation != nil {
		e.State = claimAllocated
		e.Claims = []claimView{{Claim: name, State: claimAllocated, Devices: x.devicesOf(claim)}}
		e.Message = "it has " + deviceNames(e.Claims)
		switch n := len(claim.Status.ReservedFor); {
		case n == 0:
			e.Help = "no pod uses it; its devices are free again when it is deleted"
		case pod != nil:
			e.Message += ", for pod " + pod.Name
		default:
			e.Message += fmt.Sprintf(", for %d %s", n, plural(n, "consumer that is no pod, or gone", "consumers"))
		}
		return e, nil
	}
	if pod == nil {
		e.Reason, e.Message = "NoPod", "no pod that waits names it: a claim gets its devices when kube-scheduler places a pod"
		return e, nil
	}
	why := amongOthers(x.pending(ctx, claim, pod), len(pod.Spec.ResourceClaims))
	e.Reason, e.Message, e.Help, e.Blocking, e.Scheduler = why.Reason, why.Message, why.Help, why.Blocking, unschedulable(pod)
	return e, nil
}

// consumer is a pod that a claim is reserved for; of a claim that is reserved for none, one that it was made for or is named by.
func (x *explainer) consumer(claim *resourceapi.ResourceClaim) *corev1.Pod {
	owner := metav1.GetControllerOfNoCopy(claim)
	reserved := func(pod *corev1.Pod) bool {
		return slices.ContainsFunc(claim.Status.ReservedFor, func(r resourceapi.ResourceClaimConsumerReference) bool { return r.UID == pod.UID })
	}
	wants := func(pod *corev1.Pod) bool {
		return len(claim.Status.ReservedFor) == 0 && (owner != nil && owner.UID == pod.UID ||
			slices.ContainsFunc(pod.Spec.ResourceClaims, func(c corev1.PodResourceClaim) bool { return ptr.Deref(c.ResourceClaimName, "") == claim.Name }))
	}
	for _, pod := range x.pods {
		if pod.Namespace == claim.Namespace && !placement.Ended(pod) && (reserved(pod) || wants(pod)) {
			return pod
		}
	}
	return nil
}
