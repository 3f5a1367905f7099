// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// wish is what a pod asks for.
type wish struct {
	what    string
	request resourceapi.ExactDeviceRequest
	// wants says which devices do; ofOneGPU that all must be of one.
	wants    func(resourceapi.Device) bool
	ofOneGPU bool
	// refused is what the plugin says to what the scheduler may give; empty where it prepares it.
	refused string
}

func textOf(d resourceapi.Device, attribute resourceapi.QualifiedName) string {
	return ptr.Deref(d.Attributes[attribute].StringValue, "")
}

func (w *randomWorld) isPartition(d resourceapi.Device) bool {
	return textOf(d, resourcemodel.AttributeType) == resourcemodel.TypeMIG
}

// isWholeOfPartitions says that a device is the whole of a GPU that is in MIG mode.
func (w *randomWorld) isWholeOfPartitions(d resourceapi.Device) bool {
	return !w.isPartition(d) && len(d.ConsumesCounters) > 0
}

// randomWish makes up what the next pod asks for.
func (w *randomWorld) randomWish() wish {
	const attributes = `device.attributes["` + v1alpha1.DriverName + `"]`
	partitions := slices.DeleteFunc(slices.Clone(w.published), func(d resourceapi.Device) bool { return !w.isPartition(d) })
	like := partitions[w.random.IntN(len(partitions))]
	profile := textOf(like, resourcemodel.AttributeProfile)
	request := func(class string, count int, expression string) resourceapi.ExactDeviceRequest {
		r := resourceapi.ExactDeviceRequest{DeviceClassName: class, Count: int64(count), AllocationMode: resourceapi.DeviceAllocationModeExactCount}
		if expression != "" {
			r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
		}
		return r
	}
	ofProfile := func(d resourceapi.Device) bool { return textOf(d, resourcemodel.AttributeProfile) == profile }
	switch w.random.IntN(10) {
	case 0, 1, 2, 3:
		return wish{what: "any " + profile, request: request("mig."+v1alpha1.DriverName, 1, attributes+`.profile == "`+profile+`"`), wants: ofProfile}
	case 4, 5:
		parent, start := textOf(like, resourcemodel.AttributeParentUUID), *like.Attributes[resourcemodel.AttributePlacementStart].IntValue
		return wish{
			what: like.Name,
			request: request("mig."+v1alpha1.DriverName, 1, fmt.Sprintf(`%[1]s.profile == %[2]q && %[1]s.parentUUID == %[3]q && %[1]s.placementStart == %[4]d`,
				attributes, profile, parent, start)),
			wants: func(d resourceapi.Device) bool { return d.Name == like.Name },
		}
	case 6:
		return wish{what: "two " + profile + " of one GPU", request: request("mig."+v1alpha1.DriverName, 2, attributes+`.profile == "`+profile+`"`), wants: ofProfile, ofOneGPU: true}
	case 7:
		r := request(v1alpha1.DriverName, 1, "")
		r.Tolerations = []resourceapi.DeviceToleration{{Key: resourcemodel.TaintMIGEnabled, Operator: resourceapi.DeviceTolerationOpExists}}
		r.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: attributes + `.uuid == "` + textOf(like, resourcemodel.AttributeParentUUID) + `"`}}}
		return wish{what: "all of a GPU in MIG mode", request: r, refused: "is in MIG mode", wants: func(d resourceapi.Device) bool {
			return w.isWholeOfPartitions(d) && textOf(d, resourcemodel.AttributeUUID) == textOf(like, resourcemodel.AttributeParentUUID)
		}}
	default:
		count := 1 + w.random.IntN(3)
		return wish{what: fmt.Sprintf("%d whole GPUs", count), request: request(v1alpha1.DriverName, count, ""), wants: func(d resourceapi.Device) bool {
			return !w.isPartition(d) && !w.isWholeOfPartitions(d)
		}}
	}
}

// canBeHad says whether the allocations so far leave what a wish asks for.
func (w *randomWorld) canBeHad(wish wish) bool {
	var more func(left map[string]int64, from int, chosen []resourceapi.Device) bool
	more = func(left map[string]int64, from int, chosen []resourceapi.Device) bool {
		if int64(len(chosen)) == wish.request.Count {
			return true
		}
		for i, d := range w.published[from:] {
			if !wish.wants(d) || !w.isFree(d, left) ||
				wish.ofOneGPU && len(chosen) > 0 && textOf(chosen[0], resourcemodel.AttributeParentUUID) != textOf(d, resourcemodel.AttributeParentUUID) {
				continue
			}
			if more(minus(left, d), from+i+1, append(chosen, d)) {
				return true
			}
		}
		return false
	}
	return more(w.left(), 0, nil)
}

// patchOptions are those of patches as administrator.
var patchOptions = metav1.PatchOptions{}

// schedule makes a pod with a claim and waits until the scheduler has placed it. It returns nil for one that there is no
// room for, after the scheduler has said so.
func (w *randomWorld) schedule(wish wish) *holder {
	w.t.Helper()
	canBeHad := w.canBeHad(wish)
	w.note("%s", wish.what)
	name := fmt.Sprintf("c-%d-%d", w.operation, len(w.holders))
	spec := resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{{Name: "gpu", Exactly: &wish.request}}}}
	if wish.ofOneGPU {
		spec.Devices.Constraints = []resourceapi.DeviceConstraint{{MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(v1alpha1.DriverName + "/" + string(resourcemodel.AttributeParentUUID)))}}
	}
	claims := cluster.Client().ResourceV1().ResourceClaims(w.namespace)
	c, err := claims.Create(w.t.Context(), &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	if err != nil {
		w.fatal("%v", err)
	}
	w.createPod(name)
	h := &holder{claim: c, pod: name}
	placed := false
	eventually(w.t, fmt.Sprintf("the scheduler has decided about %s, which can be had: %t", wish.what, canBeHad), func() error {
		pod, err := cluster.Client().CoreV1().Pods(w.namespace).Get(w.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		placed = pod.Spec.NodeName != ""
		refused := slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
			return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
		})
		// It may have to hear of claims that are gone.
		if !placed && (canBeHad || !refused) {
			return fmt.Errorf("the pod's conditions are %+v", pod.Status.Conditions)
		}
		return nil
	})
	if placed != canBeHad {
		w.fatal("the counters allow it: %t, and the scheduler gave it: %t", canBeHad, placed)
	}
	if !placed {
		w.count("no room")
		w.forget(h)
		return nil
	}
	if h.claim, err = claims.Get(w.t.Context(), name, metav1.GetOptions{}); err != nil {
		w.fatal("%v", err)
	}
	w.note("= %s", h.devices())
	w.holders = append(w.holders, h)
	return h
}

func (w *randomWorld) createPod(name string) {
	w.t.Helper()
	_, err := cluster.Client().CoreV1().Pods(w.namespace).Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			SchedulerName:                schedulerOfRandom,
			AutomountServiceAccountToken: ptr.To(false),
			Tolerations:                  []corev1.Toleration{{Operator: corev1.TolerationOpExists}}, // no kubelet says that the node is ready
			Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
				NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchFields: []corev1.NodeSelectorRequirement{{
					Key: metav1.ObjectNameField, Operator: corev1.NodeSelectorOpIn, Values: []string{w.Name},
				}}}},
			}}},
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpu", ResourceClaimName: &name}},
			Containers:     []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{Claims: []corev1.ResourceClaim{{Name: "gpu"}}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		w.fatal("%v", err)
	}
}

func (w *randomWorld) endPod(h *holder) {
	w.t.Helper()
	if h.pod == "" {
		return
	}
	err := cluster.Client().CoreV1().Pods(w.namespace).Delete(w.t.Context(), h.pod, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if err != nil && !apierrors.IsNotFound(err) {
		w.fatal("%v", err)
	}
}

// callAtOnce prepares and unprepares claims at the same time, in one call each or all in one, and returns the errors.
func (w *randomWorld) callAtOnce(begin, end []*holder) map[*holder]error {
	var mu sync.Mutex
	errs := map[*holder]error{}
	var calls sync.WaitGroup
	ended := func(h *holder, err error) {
		mu.Lock()
		defer mu.Unlock()
		errs[h] = err
	}
	for _, h := range end {
		calls.Go(func() { ended(h, w.kubelet.Unprepare(w.t.Context(), h.claim)) })
	}
	prepare := func(holders ...*holder) {
		var claims []*resourceapi.ResourceClaim
		for _, h := range holders {
			claims = append(claims, h.claim)
		}
		results, err := w.kubelet.Prepare(w.t.Context(), claims...)
		for _, h := range holders {
			h.ids = nil
			for _, d := range results[h.claim.UID].Devices {
				h.ids = append(h.ids, d.CdiDeviceIds...)
			}
			ended(h, errors.Join(err, results[h.claim.UID].Err))
		}
	}
	if w.random.IntN(2) == 0 && len(begin) > 0 {
		w.note("in one call")
		calls.Go(func() { prepare(begin...) })
	} else {
		for _, h := range begin {
			calls.Go(func() { prepare(h) })
		}
	}
	calls.Wait()
	return errs
}

// severalAtOnce has pods begin and end at the same time. The plugin dies meanwhile: "now", or at a step. The kubelet repeats
// the calls, unless the pod was deleted.
func (w *randomWorld) severalAtOnce(dies string) {
	var begin, end []*holder
	if len(w.holders) > 0 {
		for _, i := range w.random.Perm(len(w.holders))[:min(len(w.holders), w.random.IntN(3))] {
			end = append(end, w.holders[i])
		}
	}
	for range 2 + w.random.IntN(3) {
		wish := w.randomWish()
		if wish.refused != "" {
			continue
		}
		if h := w.schedule(wish); h != nil {
			begin = append(begin, h)
		}
	}
	for _, h := range end {
		w.note("end %s", h.claim.Name)
		w.endPod(h)
	}
	var dead sync.WaitGroup
	switch dies {
	case "":
	case "now":
		dead.Go(w.plugin.Kill)
	default:
		w.arm(w.t, dies)
	}
	errs := w.callAtOnce(begin, end)
	dead.Wait()
	if dies == "" {
		for h, err := range errs {
			if err != nil {
				w.fatal("claim %s: %v", h.claim.Name, err)
			}
		}
		w.count("at once")
		for range begin {
			w.count("prepared")
		}
	} else {
		w.rise(dies)
		w.repeat(begin, end, errs)
	}
	for _, h := range end {
		w.forget(h)
	}
}

// rise starts the plugin again after it died at a step, or is to die since it did not come there.
func (w *randomWorld) rise(step string) {
	w.t.Helper()
	err := os.Remove(w.CrashFile())
	if step != "now" && errors.Is(err, fs.ErrNotExist) {
		<-w.plugin.Done()
		w.count("killed at a step")
	}
	w.plugin.Kill()
	w.note("killed %s", strings.ReplaceAll(step, ":", " "))
	w.count("killed")
	w.startPlugin()
}

// repeat makes calls again of which some have failed. Some pods that were to begin are deleted instead.
func (w *randomWorld) repeat(begin, end []*holder, errs map[*holder]error) {
	w.t.Helper()
	for _, h := range end {
		w.unprepare(w.t, h.claim)
	}
	for _, h := range begin {
		switch {
		case errs[h] == nil:
			w.count("prepared")
		case w.random.IntN(2) == 0:
			w.prepareHolder(h)
		default:
			w.end(h)
		}
	}
}
