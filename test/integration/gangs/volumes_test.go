// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// storageClass makes one of the test's own, whose claims are bound in this mode.
func (e *env) storageClass(provisioner string, mode storagev1.VolumeBindingMode) *storagev1.StorageClass {
	e.t.Helper()
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}, Provisioner: provisioner, VolumeBindingMode: &mode}
	e.create(class)
	e.removed(class)
	return class
}

// removed removes an object that is in no namespace when the test has ended.
func (e *env) removed(object client.Object) {
	e.t.Cleanup(func() {
		if err := e.client.Delete(context.Background(), object); err != nil {
			e.t.Error(err)
		}
	})
}

var aGibibyte = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}

func (e *env) volumeClaim(name string, class *storagev1.StorageClass) *corev1.PersistentVolumeClaim {
	e.t.Helper()
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany},
			Resources: corev1.VolumeResourceRequirements{Requests: aGibibyte},
		},
	}
	e.create(claim)
	return claim
}

// volume makes one that can be used on a node, or everywhere if that is empty; for a claim, or for any of its class.
func (e *env) volume(name string, class *storagev1.StorageClass, node string, claim *corev1.PersistentVolumeClaim) {
	e.t.Helper()
	volume := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: e.namespace + "-" + name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class.Name, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteMany}, Capacity: aGibibyte,
			PersistentVolumeSource: corev1.PersistentVolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/none"}},
		},
	}
	if node != "" {
		volume.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: corev1.LabelHostname, Operator: corev1.NodeSelectorOpIn, Values: []string{node}}},
		}}}}
	}
	if claim != nil {
		volume.Spec.ClaimRef = &corev1.ObjectReference{Kind: "PersistentVolumeClaim", APIVersion: "v1", Namespace: e.namespace, Name: claim.Name, UID: claim.UID}
	}
	e.create(volume)
	e.removed(volume)
}

func mounts(spec *corev1.PodSpec, claim string) {
	spec.Volumes = []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{
		PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim},
	}}}
}

// A member whose volume nobody provisions holds its devices and has no node: the others are not kept waiting on
// theirs, nobody starts, and all is given back.
func TestAMemberIsHeldByAVolumeThatWaits(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	class := e.storageClass("volumes.example.com/nobody", storagev1.VolumeBindingWaitForFirstConsumer)
	claim := e.volumeClaim("data", class)
	gang := e.gang("train", 2, 4)
	e.start()
	e.job("train", 1)
	e.job("held", 1, func(job *batchv1.Job) {
		spec := &job.Spec.Template.Spec
		spec.ResourceClaims[0].ResourceClaimTemplateName = ptr.To("train")
		mounts(spec, claim.Name)
	})
	e.reaches(gang, v1alpha1.StepReleasing)
	e.eventually("the plan is taken back", func() error {
		if e.get(gang); gang.Status.Plan != nil && gang.Status.Plan.Step != v1alpha1.StepTakingBack {
			return errors.New(describe(gang))
		}
		return nil
	})
	for _, pod := range append(e.podsOf("train"), e.podsOf("held")...) {
		if pod.Status.Phase == corev1.PodRunning {
			t.Errorf("pod %s runs without the other", pod.Name)
		}
	}
	// As a provisioner does it. With the volume all start.
	e.volume("made", class, "", claim)
	e.together(append(e.jobRuns("train", 1), e.jobRuns("held", 1)...), 4)
}

// Without foresight both members would be planned onto the first node, where their volume cannot be used, for ever.
func TestMembersGoWhereTheirVolumeIs(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	class := e.storageClass("volumes.example.com/nobody", storagev1.VolumeBindingImmediate)
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2, func(pod *corev1.Pod) { mounts(&pod.Spec, "data") })
	e.start()
	if message := e.waits(gang, "VolumesNotReady").Message; !strings.Contains(message, "does not exist: create it") {
		t.Errorf("without its claim the gang waits with %q", message)
	}
	claim := e.volumeClaim("data", class)
	e.eventually("the gang waits until its claim is bound", func() error {
		if message := e.waits(gang, "VolumesNotReady").Message; !strings.Contains(message, "is not bound yet") {
			return errors.New(message)
		}
		return nil
	})
	e.nothing(gang)
	e.volume("made", class, e.nodes[1], claim)
	e.running(pods...)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
	if gang.Status.Attempts != 1 || pods[0].Spec.NodeName != e.nodes[1] || pods[1].Spec.NodeName != e.nodes[1] {
		t.Errorf("the gang runs on %s and %s at attempt %d: %s", pods[0].Spec.NodeName, pods[1].Spec.NodeName, gang.Status.Attempts, describe(gang))
	}
}

// Each node has one volume that nobody uses: both members on one node would be one too many.
func TestMembersGoWhereThereAreVolumesForThem(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	class := e.storageClass("kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer)
	for i, node := range e.nodes {
		e.volumeClaim(fmt.Sprintf("data-train-%d", i), class)
		e.volume(node, class, node, nil)
	}
	e.startsOnTwoNodes(func(pod *corev1.Pod) { mounts(&pod.Spec, "data-"+pod.Name) })
}

// As after an earlier run, each member has its volume on a node of its own: no node suits both.
func TestMembersGoEachWhereItsOwnVolumeIs(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	class := e.storageClass("volumes.example.com/nobody", storagev1.VolumeBindingImmediate)
	for i, node := range e.nodes {
		name := fmt.Sprintf("data-train-%d", i)
		e.volume(node, class, node, e.volumeClaim(name, class))
	}
	e.startsOnTwoNodes(func(pod *corev1.Pod) { mounts(&pod.Spec, "data-"+pod.Name) })
}
