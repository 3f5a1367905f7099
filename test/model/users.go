// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// users do what users, operators and hardware do.
type users struct {
	w *world
	// pace is the mean time between two operations.
	pace time.Duration
}

// operation is one of the things that users do; it says what it did, "" for nothing.
type operation struct {
	name   string
	weight int
	do     func(*users) string
}

var operations = []operation{
	{"create a gang", 14, (*users).createGang},
	{"delete a gang", 3, (*users).deleteGang},
	{"delete a workload", 4, (*users).deleteWorkload},
	{"create singles", 8, (*users).createSingles},
	{"delete a pod", 6, (*users).deletePod},
	{"fail a pod", 4, (*users).failPod},
	{"finish a pod", 4, (*users).finishPod},
	{"finish a workload", 5, (*users).finishWorkload},
	{"replace a bare pod", 2, (*users).recreateBare},
	{"surge", 3, (*users).surge},
	{"name a template", 3, (*users).foreignPod},
	{"lose a GPU", 3, (*users).loseGPU},
	{"recover a GPU", 3, (*users).recoverGPU},
	{"relabel a GPU", 1, (*users).relabelGPU},
	{"lose a node", 2, (*users).loseNode},
	{"return a node", 3, (*users).returnNode},
	{"cordon", 2, (*users).cordon},
	{"delete a node", 1, (*users).deleteNode},
	{"change the class", 1, (*users).changeClass},
	{"taint a device", 1, (*users).taintDevice},
	{"wipe a status", 2, (*users).wipeStatus},
	{"replace a gang", 2, (*users).replaceGang},
	{"change a spec", 1, (*users).changeSpec},
	{"delete a rule", 2, (*users).deleteRule},
	{"change a rule", 1, (*users).changeRule},
	{"delete a template", 2, (*users).deleteTemplate},
	{"delete a claim", 2, (*users).deleteClaim},
	{"create a template", 1, (*users).foreignTemplate},
	{"set a quota", 1, (*users).quota},
	{"kill the controller", 5, (*users).crash},
	{"lose the lease", 2, (*users).loseLease},
	{"restart the scheduler", 1, (*users).restartScheduler},
	{"gate a pod", 1, (*users).gatePod},
}

// begin has users do things from now on, until the run is quiet.
func (u *users) begin() {
	for _, count := range []int{1, 2, 4} {
		u.w.must(create(u.w.api, singleTemplate(count)))
	}
	if u.w.partitions {
		u.w.must(create(u.w.api, newPartitionTemplate()))
	}
	u.pace = u.w.pace
	if u.pace == 0 {
		u.pace = anyOf(u, 300*time.Millisecond, time.Second, 3*time.Second, 10*time.Second)
	}
	u.schedule()
}

func (u *users) schedule() {
	pause := time.Duration(u.w.rand.ExpFloat64() * float64(u.pace))
	u.w.after(min(pause, time.Minute), func() {
		if u.w.quiet {
			return
		}
		u.operate()
		u.schedule()
	})
}

func (u *users) operate() {
	weight := func(o operation) int {
		weight := o.weight
		if u.w.moves {
			weight *= moveFactor(o.name)
		}
		if factor, ok := u.w.often[o.name]; ok {
			weight *= factor
		}
		return weight
	}
	all := operations
	if u.w.moves {
		all = slices.Concat(operations, moveOperations)
	}
	total := 0
	for _, o := range all {
		total += weight(o)
	}
	n := u.w.rand.IntN(total)
	for _, o := range all {
		if n -= weight(o); n < 0 {
			if did := o.do(u); did != "" {
				u.w.checker.operations++
				u.w.logf("user: %s", did)
			}
			return
		}
	}
}

func singleTemplate(count int) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("single%d", count)},
		Spec: resourceapi.ResourceClaimTemplateSpec{Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{
			Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &resourceapi.ExactDeviceRequest{
				DeviceClassName: driver, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: int64(count),
			}}},
		}}},
	}
}

// one returns a random object, or nil.
func one[T object](u *users, which func(T) bool) T {
	var all []T
	for _, o := range list[T](&u.w.api.objects) {
		if which == nil || which(o) {
			all = append(all, o)
		}
	}
	found, _ := pick(u.w, all)
	return found
}

func anyOf[T any](u *users, of ...T) T { return of[u.w.rand.IntN(len(of))] }

// newGang is a GangClaim as users write them, with the defaults of the API.
func (u *users) newGang(name string) *v1alpha1.GangClaim {
	g := &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.GangClaimSpec{
			Members: int32(anyOf(u, 1, 2, 2, 2, 3, 4)), DevicesPerMember: int32(anyOf(u, 1, 2, 2, 4, 4, 8)), DeviceClassName: driver,
			Topology: v1alpha1.GangTopology{
				Member: anyOf(u, v1alpha1.MemberNVSwitchDomain, v1alpha1.MemberNVSwitchDomain, v1alpha1.MemberNVSwitchDomain,
					v1alpha1.MemberNUMANode, v1alpha1.MemberPCIeRoot, v1alpha1.MemberNode),
				Gang: anyOf(u, v1alpha1.GangAny, v1alpha1.GangAny, v1alpha1.GangNode, v1alpha1.GangNVSwitchDomain),
				Mode: anyOf(u, v1alpha1.TopologyRequired, v1alpha1.TopologyRequired, v1alpha1.TopologyPreferred),
			},
			SchedulingTimeout:  &metav1.Duration{Duration: anyOf(u, 0, 20*time.Second, 10*time.Minute)},
			RestartGracePeriod: &metav1.Duration{Duration: anyOf(u, 0, 3*time.Second, 30*time.Second)},
			Defragmentation:    v1alpha1.DefragmentationNever,
		},
	}
	if u.w.moves {
		// Small enough to fit, were it not for the singles.
		g.Spec.Members, g.Spec.DevicesPerMember = int32(anyOf(u, 1, 1, 2)), int32(anyOf(u, 2, 4, 4, 4))
		g.Spec.Topology = v1alpha1.GangTopology{
			Member: anyOf(u, v1alpha1.MemberNVSwitchDomain, v1alpha1.MemberNVSwitchDomain, v1alpha1.MemberNode),
			Gang:   v1alpha1.GangAny, Mode: v1alpha1.TopologyRequired,
		}
		g.Spec.Defragmentation = anyOf(u, v1alpha1.DefragmentationNever, v1alpha1.DefragmentationPlan, v1alpha1.DefragmentationEvict, v1alpha1.DefragmentationEvict)
	}
	return g
}

func (u *users) createGang() string {
	name := fmt.Sprintf("g%d", u.w.rand.IntN(6))
	if get[*v1alpha1.GangClaim](&u.w.api.objects, key{Namespace: namespace, Name: name}) != nil {
		return ""
	}
	g := u.newGang(name)
	replicas := int(g.Spec.Members)
	if u.w.rand.IntN(20) == 0 {
		replicas += anyOf(u, -1, 1)
	}
	l := workload{
		keeper: anyOf(u, job, job, deployment, bare), template: name, replicas: replicas,
		cpu: int64(anyOf(u, 100, 1000, 4000)), twice: u.w.rand.IntN(40) == 0,
	}
	makeGang := func() {
		if !u.w.quiet {
			_, _ = create(u.w.api, g) // there may be one by now
		}
	}
	makePods := func() {
		if !u.w.quiet {
			u.w.workloads.add(l)
		}
	}
	later := anyOf(u, 0, 0, u.w.between(0, 5*time.Second))
	if u.w.rand.IntN(4) == 0 {
		makePods()
		u.w.after(later, makeGang)
	} else {
		makeGang()
		u.w.after(later, makePods)
	}
	return fmt.Sprintf("creates gang %s of %d × %d, each in one %s, all in %s, %s, with %d %s pods", name, g.Spec.Members, g.Spec.DevicesPerMember,
		g.Spec.Topology.Member, g.Spec.Topology.Gang, g.Spec.Topology.Mode, replicas, l.keeper)
}

func (u *users) deleteGang() string {
	g := one[*v1alpha1.GangClaim](u, nil)
	if g == nil {
		return ""
	}
	_ = remove[*v1alpha1.GangClaim](u.w.api, keyOf(g), preconditions{})
	if u.w.rand.IntN(2) == 0 {
		for _, l := range u.w.workloads.sorted() {
			if l.template == g.Name {
				u.w.workloads.drop(l)
			}
		}
	}
	return "deletes gang " + g.Name
}

func (u *users) deleteWorkload() string {
	l, ok := pick(u.w, u.w.workloads.sorted())
	if !ok {
		return ""
	}
	u.w.workloads.drop(l)
	return "deletes workload " + l.name
}

func (u *users) createSingles() string {
	if len(u.w.workloads.all) > 14 {
		return ""
	}
	single := workload{
		keeper: anyOf(u, job, bare, deployment), template: fmt.Sprintf("single%d", anyOf(u, 1, 1, 2, 4)), replicas: anyOf(u, 1, 2, 4), cpu: 100,
	}
	if u.w.moves {
		single.movable, single.slow = u.w.rand.IntN(6) > 0, u.w.rand.IntN(12) == 0
		single.priority, single.replicas = anyOf[int32](u, 0, 0, -10), anyOf(u, 1, 1, 2, 3)
		single.keeper, single.template = anyOf(u, job, deployment, deployment), anyOf(u, "single1", "single1", "single1", "single1", "single1", "single2")
	}
	if u.w.partitions && u.w.rand.IntN(3) > 0 {
		single.template = partitionTemplate
	}
	l := u.w.workloads.add(single)
	return fmt.Sprintf("creates %d pods of workload %s", l.replicas, l.name)
}

func (u *users) deletePod() string {
	p := one[*corev1.Pod](u, nil)
	if p == nil {
		return ""
	}
	_ = remove[*corev1.Pod](u.w.api, keyOf(p), preconditions{})
	return "deletes pod " + p.Name
}

func (u *users) failPod() string {
	p := one(u, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if p == nil {
		return ""
	}
	u.w.kubelet.end(keyOf(p), p.UID, corev1.PodFailed)
	return "pod " + p.Name + " fails"
}

func (u *users) finishPod() string {
	p := one(u, func(p *corev1.Pod) bool { return p.Status.Phase == corev1.PodRunning })
	if p == nil {
		return ""
	}
	u.w.kubelet.end(keyOf(p), p.UID, corev1.PodSucceeded)
	return "pod " + p.Name + " succeeds"
}

func (u *users) finishWorkload() string {
	l, ok := pick(u.w, u.w.workloads.sorted())
	if !ok {
		return ""
	}
	u.w.finish(l)
	return "workload " + l.name + " succeeds"
}

// finish lets the pods of a workload that run succeed; the workload is then deleted with what is left.
func (w *world) finish(l *workload) {
	for _, p := range w.workloads.pods(l.name) {
		if p.Status.Phase == corev1.PodRunning {
			w.kubelet.end(keyOf(p), p.UID, corev1.PodSucceeded)
		}
	}
	w.after(w.between(0, 2*time.Second), func() { w.workloads.drop(l) })
}

func (u *users) recreateBare() string {
	for _, l := range u.w.workloads.sorted() {
		if l.keeper != bare {
			continue
		}
		have := 0
		for _, p := range u.w.workloads.pods(l.name) {
			if !over(p) {
				have++
			}
		}
		if have < l.replicas {
			u.w.workloads.create(l)
			return "replaces a bare pod of workload " + l.name
		}
	}
	return ""
}

func (u *users) surge() string {
	l, ok := pick(u.w, u.w.workloads.sorted())
	if !ok || l.keeper != deployment {
		return ""
	}
	l.surge = 1 - l.surge
	u.w.workloads.soon(l.name)
	return fmt.Sprintf("workload %s surges by %d", l.name, l.surge)
}

func (u *users) foreignPod() string {
	g := one[*v1alpha1.GangClaim](u, nil)
	if g == nil {
		return ""
	}
	l := u.w.workloads.add(workload{keeper: anyOf(u, bare, job), template: g.Name, replicas: 1, cpu: 100})
	u.w.after(u.w.between(0, anyOf(u, 10*time.Second, time.Minute)), func() {
		if !u.w.quiet && u.w.workloads.all[l.name] != nil {
			u.w.workloads.drop(l)
		}
	})
	return "creates a pod that names the template of gang " + g.Name
}
