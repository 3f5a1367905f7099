// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// What is known by UID would stay for ever: the planner would look for a place for a gang that is gone.
func TestAnObjectThatWasMadeAnewIsGoneFirst(t *testing.T) {
	made := func(uid types.UID) *v1alpha1.GangClaim {
		return &v1alpha1.GangClaim{ObjectMeta: metav1.ObjectMeta{Name: "gang", UID: uid}}
	}
	var got []string
	// The informer adds, changes, and relists after its watch was down.
	add := func(_ client.Object, set func(old, object any), _ func(any)) error {
		set(nil, made("1"))
		set(made("1"), made("1"))
		set(made("1"), made("2"))
		return nil
	}
	err := follow(add, func(old, gang *v1alpha1.GangClaim) {
		before := ""
		if old != nil {
			before = string(old.UID)
		}
		got = append(got, "set "+before+"→"+string(gang.UID))
	}, func(gang *v1alpha1.GangClaim) { got = append(got, "remove "+string(gang.UID)) })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"set →1", "set 1→1", "remove 1", "set →2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A gang that waits hears of nothing else: in a quiet cluster it would time out beside the room that it waits for.
func TestWhatMayFreeRoomWakesThePlanner(t *testing.T) {
	runs := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "runs", Generation: 1}, Spec: corev1.PodSpec{NodeName: "node"}}
	two := runs.DeepCopy()
	two.Status.AllocatedResources = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("2")}
	has := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "has"}}
	allocated := func(device string) *resourceapi.ResourceClaim {
		claim := has.DeepCopy()
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Device: device}},
		}}
		return claim
	}
	wanted := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: "data"}}
	for name, test := range map[string]struct {
		change func(*feed)
		wakes  bool
	}{
		"a pod is resized": {func(f *feed) {
			less := runs.DeepCopy()
			less.Generation++
			f.setPod(runs, less)
		}, true},
		"a pod is told to end, which is another generation, too": {func(f *feed) {
			ends := runs.DeepCopy()
			ends.Generation++
			ends.DeletionTimestamp = ptr.To(metav1.Now())
			f.setPod(runs, ends)
		}, false},
		"a pod has lost a label": {func(f *feed) {
			labelled := runs.DeepCopy()
			labelled.Labels = map[string]string{"app": "a"}
			f.setPod(labelled, runs)
		}, true},
		"the kubelet has taken from a pod what it does not request any more": {func(f *feed) { f.setPod(two, runs) }, true},
		"the kubelet says for the first time what a pod has":                 {func(f *feed) { f.setPod(runs, two) }, false},
		"a pod says something about itself":                                  {func(f *feed) { f.setPod(runs, runs.DeepCopy()) }, false},
		"a claim gives its device back":                                      {func(f *feed) { f.setClaim(allocated("a"), has) }, true},
		"a claim has another device than before":                             {func(f *feed) { f.setClaim(allocated("a"), allocated("b")) }, true},
		"a claim gets a device":                                              {func(f *feed) { f.setClaim(has, allocated("a")) }, false},
		"a volume claim is bound": {func(f *feed) {
			f.setVolumeClaim(wanted, &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{VolumeName: "v"}})
		}, true},
		"a volume claim gets the StorageClass that became the default": {func(f *feed) {
			classed := wanted.DeepCopy()
			classed.Spec.StorageClassName = ptr.To("disks")
			f.setVolumeClaim(wanted, classed)
		}, true},
		"a volume claim is told of by a controller": {func(f *feed) {
			labelled := wanted.DeepCopy()
			labelled.Labels = map[string]string{"app": "a"}
			f.setVolumeClaim(wanted, labelled)
		}, false},
		"a volume is there": {func(f *feed) { f.setVolume(nil, &corev1.PersistentVolume{}) }, true},
		"a volume is free again": {func(f *feed) {
			f.setVolume(&corev1.PersistentVolume{Status: corev1.PersistentVolumeStatus{Phase: corev1.VolumeBound}}, &corev1.PersistentVolume{})
		}, true},
		"a volume is as it was":          {func(f *feed) { f.setVolume(&corev1.PersistentVolume{}, &corev1.PersistentVolume{}) }, false},
		"a volume is gone":               {func(f *feed) { f.deleteVolume(&corev1.PersistentVolume{}) }, false},
		"a claim is told of by a driver": {func(f *feed) { f.setClaim(allocated("a"), allocated("a")) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPlanner(newFakeCluster(0), clock.RealClock{}, func(types.NamespacedName) {}, nil)
			test.change(&feed{cluster: placement.NewCluster(), planner: p, usage: func() {}})
			if woken := len(p.wakeLater)+len(p.wake) > 0; woken != test.wakes {
				t.Errorf("the planner is woken: %t, want %t", woken, test.wakes)
			}
		})
	}
}
