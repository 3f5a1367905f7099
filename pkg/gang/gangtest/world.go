// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gangtest

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/dynamic-resource-allocation/cel"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Namespace is the namespace of everything that has one.
const Namespace = "ml"

// compiler is shared by all worlds: compiling is most of what a world costs.
var compiler = cel.NewCache(100, cel.Features{})

// RequestName is the name under which pods of a World name their claim.
const RequestName = "gpus"

// Device is a GPU of a World. Its pool is its node.
type Device struct {
	Node, Name, ID, Domain string
	// Siblings are the names of devices of the node that a plan with this one reserves.
	Siblings []string
	// Problem is why it cannot be planned or allocated; "" for none.
	Problem gang.DeviceProblem
}

// DeviceID is how placement names the device.
func (d *Device) DeviceID() placement.DeviceID {
	return placement.DeviceID{Driver: v1alpha1.DriverName, Pool: d.Node, Device: d.Name}
}

// World is the cluster. The maps are by name; objects in them are replaced, never changed in place.
type World struct {
	Now time.Time

	Gangs     map[string]*v1alpha1.GangClaim
	Pods      map[string]*corev1.Pod
	Claims    map[string]*resourceapi.ResourceClaim
	Templates map[string]*resourceapi.ResourceClaimTemplate
	Rules     map[string]*resourceapi.DeviceTaintRule
	Devices   []*Device
	// NodeFull says of nodes that they take no more pods: CPU, say.
	NodeFull map[string]bool

	// Plan is the planner. Default: FirstFit.
	Plan func(*World, placement.Gang) placement.Decision
	// Schedule is one pass of kube-scheduler. Default: Greedy.
	Schedule func(*World)
	// Check is called before each write of the controller with the action that it belongs to; nil for
	// the write of a status. An error fails the write. Default: Invariants.
	Check func(*World, *v1alpha1.GangClaim, gang.Action) error
	// Refuse says why the API server does not evict a pod that is moved; "" for that it does. dryRun is the first
	// asking. Default: nil, never.
	Refuse func(pod *corev1.Pod, dryRun bool) string
	// StalePods are pods that are moved as a cache shows them that is behind, by UID.
	StalePods map[types.UID]*corev1.Pod
	// Blocked is what Observation.MovesBlocked says.
	Blocked string
	// Grace is how long pods take to end.
	Grace time.Duration
	// Evicted are the pods that were moved.
	Evicted []string

	// Events are all that were sent.
	Events []gang.Event

	// CrashAfter lets the controller die after that many more writes; 0 never.
	CrashAfter int
	// Writes counts the writes of the controller.
	Writes int

	// serial grows with every write of anyone.
	serial int
	// remembered are the pods for which the claim controller believes that a claim exists.
	remembered map[types.UID]bool
}

// ErrCrashed is returned by the write after which the controller died.
var ErrCrashed = errors.New("the controller was killed")

// NewWorld returns a cluster with devices and nothing else.
func NewWorld(devices ...*Device) *World {
	return &World{
		Now:        time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC),
		Gangs:      map[string]*v1alpha1.GangClaim{},
		Pods:       map[string]*corev1.Pod{},
		Claims:     map[string]*resourceapi.ResourceClaim{},
		Templates:  map[string]*resourceapi.ResourceClaimTemplate{},
		Rules:      map[string]*resourceapi.DeviceTaintRule{},
		NodeFull:   map[string]bool{},
		Devices:    devices,
		Plan:       FirstFit,
		Schedule:   Greedy,
		Check:      Invariants,
		remembered: map[types.UID]bool{},
	}
}

// Node returns the devices of a node that has so many domains of so many devices.
func Node(name string, domains, size int) []*Device {
	var out []*Device
	for d := range domains {
		for i := range size {
			n := d*size + i
			out = append(out, &Device{
				Node: name, Name: fmt.Sprintf("gpu-%d", n), ID: fmt.Sprintf("%s-%d", name, n), Domain: fmt.Sprintf("%s.%d", name, d),
			})
		}
	}
	return out
}

// Identify gives an object what the API server gives a new one.
func (w *World) Identify(o metav1.Object) {
	w.serial++
	o.SetUID(types.UID(fmt.Sprintf("uid-%04d", w.serial)))
	o.SetCreationTimestamp(metav1.NewTime(w.Now.Truncate(time.Second)))
	w.Bump(o)
}

// Bump gives an object its next resourceVersion.
func (w *World) Bump(o metav1.Object) {
	w.serial++
	o.SetResourceVersion(strconv.Itoa(w.serial))
}

// AddGang creates a GangClaim with the defaults of the API.
func (w *World) AddGang(name string, members, perMember int32, change ...func(*v1alpha1.GangClaim)) *v1alpha1.GangClaim {
	g := &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name, Generation: 1},
		Spec: v1alpha1.GangClaimSpec{
			Members: members, DevicesPerMember: perMember, DeviceClassName: v1alpha1.DriverName,
			Topology: v1alpha1.GangTopology{
				Member: v1alpha1.MemberNVSwitchDomain, Gang: v1alpha1.GangAny, Mode: v1alpha1.TopologyRequired,
			},
			SchedulingTimeout:  &metav1.Duration{Duration: 10 * time.Minute},
			RestartGracePeriod: &metav1.Duration{Duration: 5 * time.Minute},
			Defragmentation:    v1alpha1.DefragmentationNever,
		},
	}
	for _, c := range change {
		c(g)
	}
	w.Identify(g)
	w.Gangs[name] = g
	return g
}

// AddPod creates a pod that names a template, owned by a controller, unless owner is "".
func (w *World) AddPod(name, template, owner string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: Namespace, Name: name},
		Spec: corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{
			Name: RequestName, ResourceClaimTemplateName: ptr.To(template),
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodPending},
	}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{
			APIVersion: "batch/v1", Kind: "Job", Name: owner, UID: types.UID("job-" + owner), Controller: ptr.To(true),
		}}
	}
	for _, c := range change {
		c(p)
	}
	w.Identify(p)
	w.Pods[name] = p
	return p
}

// AddSingle creates a pod with a claim of its own for so many devices of one domain, and no gang.
func (w *World) AddSingle(name string, count int64) *corev1.Pod {
	p := w.AddPod(name, "single-"+name, "singles")
	w.newClaim(p, nil, resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
		Requests: []resourceapi.DeviceRequest{{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{
			DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
		}}},
	}})
	return p
}

func (w *World) newClaim(pod *corev1.Pod, labels map[string]string, spec resourceapi.ResourceClaimSpec) {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: Namespace, Labels: maps.Clone(labels),
			Annotations:     map[string]string{resourceapi.PodResourceClaimAnnotation: RequestName},
			OwnerReferences: []metav1.OwnerReference{*metav1.NewControllerRef(pod, corev1.SchemeGroupVersion.WithKind("Pod"))},
		},
		Spec: *spec.DeepCopy(),
	}
	w.Identify(c)
	c.Name = fmt.Sprintf("%s-%s-%s", pod.Name, RequestName, c.UID)
	w.Claims[c.Name] = c
	w.remembered[pod.UID] = true
}

// UpdatePod changes a pod.
func (w *World) UpdatePod(name string, change func(*corev1.Pod)) {
	p := w.Pods[name].DeepCopy()
	change(p)
	w.Bump(p)
	w.Pods[name] = p
}

// UpdateGang changes a GangClaim, as a person does.
func (w *World) UpdateGang(name string, change func(*v1alpha1.GangClaim)) {
	g := w.Gangs[name].DeepCopy()
	change(g)
	w.Bump(g)
	w.Gangs[name] = g
}

// DeleteGang deletes a GangClaim, which stays while it has finalizers.
func (w *World) DeleteGang(name string) {
	w.UpdateGang(name, func(g *v1alpha1.GangClaim) { g.DeletionTimestamp = ptr.To(metav1.NewTime(w.Now)) })
	if len(w.Gangs[name].Finalizers) == 0 {
		delete(w.Gangs, name)
	}
}

// DeletePod marks a pod as being deleted; RemovePod ends that.
func (w *World) DeletePod(name string) {
	w.UpdatePod(name, func(p *corev1.Pod) { p.DeletionTimestamp = ptr.To(metav1.NewTime(w.Now)) })
}

// RemovePod removes a pod, and with it its claims.
func (w *World) RemovePod(name string) {
	pod := w.Pods[name]
	delete(w.Pods, name)
	w.serial++
	w.dropClaims(pod.UID)
}

func (w *World) dropClaims(pod types.UID) {
	for name, c := range w.Claims {
		if owner := metav1.GetControllerOf(c); owner != nil && owner.UID == pod {
			delete(w.Claims, name)
			w.serial++
		}
	}
}

// EndPod lets a pod end in a phase.
func (w *World) EndPod(name string, phase corev1.PodPhase) {
	w.UpdatePod(name, func(p *corev1.Pod) {
		p.Status.Phase = phase
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{
			Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.NewTime(w.Now)},
		}}}
	})
}

// Sorted returns the objects of a map by creation and name.
func Sorted[T metav1.Object](m map[string]T) []T {
	return slices.SortedFunc(maps.Values(m), func(a, b T) int {
		at, bt := a.GetCreationTimestamp(), b.GetCreationTimestamp()
		return cmp.Or(at.Compare(bt.Time), cmp.Compare(a.GetName(), b.GetName()))
	})
}

// Allocated says which claim has each device.
func (w *World) Allocated() map[placement.DeviceID]*resourceapi.ResourceClaim {
	out := map[placement.DeviceID]*resourceapi.ResourceClaim{}
	for _, c := range w.Claims {
		for _, d := range DevicesOf(c) {
			out[d] = c
		}
	}
	return out
}

// DevicesOf are the devices that a claim has.
func DevicesOf(c *resourceapi.ResourceClaim) []placement.DeviceID {
	var out []placement.DeviceID
	if c.Status.Allocation != nil {
		for _, r := range c.Status.Allocation.Devices.Results {
			out = append(out, placement.DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device})
		}
	}
	return out
}

// Fences says for which gangs a device is reserved.
func (w *World) Fences(d *Device) sets.Set[types.UID] {
	out := sets.New[types.UID]()
	for _, r := range w.Rules {
		s := r.Spec.DeviceSelector
		if r.Spec.Taint.Effect == resourceapi.DeviceTaintEffectNoSchedule && s != nil &&
			ptr.Deref(s.Pool, d.Node) == d.Node && ptr.Deref(s.Device, d.Name) == d.Name {
			out.Insert(types.UID(r.Spec.Taint.Value))
		}
	}
	return out
}
