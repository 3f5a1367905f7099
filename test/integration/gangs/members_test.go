// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func TestFewerPodsThanMembersWait(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.start()
	gang := e.gang("train", 2, 4)
	first := e.members("train", 1)
	e.waits(gang, "WaitingForMembers")
	second := e.pod("train-late", "train")
	e.create(second)
	e.running(first[0], second)
	e.together([]*corev1.Pod{first[0], second}, 4)
}

func TestAForeignPodThatNamesTheTemplate(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	e.start()
	gang := e.gang("train", 2, 4)
	foreign := e.pod("foreign", "train")
	e.create(foreign)
	pods := e.members("train", 2)
	condition := e.waits(gang, "TooManyMembers")
	if !strings.Contains(condition.Message, "3 pods") {
		t.Errorf("the message %q does not say how many pods there are", condition.Message)
	}
	e.delete(foreign)
	e.running(pods...)
	e.together(pods, 4)
	// One that comes when the gang runs finds no template.
	late := e.pod("late", "train")
	e.create(late)
	e.event(late, "FailedResourceClaimCreation")
	if e.get(late); len(claimNames(late)) > 0 || late.Spec.NodeName != "" {
		t.Errorf("the late pod has claims %v on node %q, want none", claimNames(late), late.Spec.NodeName)
	}
}

// job runs the members of a gang as a Job does.
func (e *env) job(name string, members int32, change ...func(*batchv1.Job)) *batchv1.Job {
	e.t.Helper()
	spec := e.podSpec(name)
	spec.RestartPolicy = corev1.RestartPolicyNever
	job := &batchv1.Job{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec: batchv1.JobSpec{
			Parallelism: &members, Completions: &members, BackoffLimit: ptr.To[int32](6),
			CompletionMode: ptr.To(batchv1.IndexedCompletion),
			Template:       corev1.PodTemplateSpec{Spec: spec},
		},
	}
	for _, c := range change {
		c(job)
	}
	e.create(job)
	return job
}

// podsOf are the pods of a Job that have not ended.
func (e *env) podsOf(job string) []*corev1.Pod {
	e.t.Helper()
	var list corev1.PodList
	if err := e.client.List(e.t.Context(), &list, client.InNamespace(e.namespace), client.MatchingLabels{batchv1.JobNameLabel: job}); err != nil {
		e.t.Fatal(err)
	}
	var pods []*corev1.Pod
	for i := range list.Items {
		if pod := &list.Items[i]; pod.DeletionTimestamp == nil && pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
			pods = append(pods, pod)
		}
	}
	return pods
}

// jobRuns waits until n pods of the Job run.
func (e *env) jobRuns(job string, n int) []*corev1.Pod {
	e.t.Helper()
	var pods []*corev1.Pod
	e.eventually(fmt.Sprintf("%d pods of Job %s run", n, job), func() error {
		pods = e.podsOf(job)
		if len(pods) != n {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		for _, pod := range pods {
			if pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("pod %s is %s", pod.Name, pod.Status.Phase)
			}
		}
		return nil
	})
	return pods
}

func TestAJobsReplacementGetsThePlaceOfTheMemberThatFailed(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.start()
	gang := e.gang("train", 2, 4)
	e.job("train", 2)
	pods := e.jobRuns("train", 2)
	e.reaches(gang, v1alpha1.StepHolding)
	before := devicesOf(e.claimOf(pods[0]))
	// A single waits for the place: it must not get it.
	greedy := e.single("greedy", 1)
	if err := e.plane.kubelet.End(t.Context(), pods[0], corev1.PodFailed); err != nil {
		t.Fatal(err)
	}
	var replacement *corev1.Pod
	e.eventually("the replacement runs", func() error {
		for _, pod := range e.podsOf("train") {
			if pod.UID != pods[0].UID && pod.UID != pods[1].UID && pod.Status.Phase == corev1.PodRunning {
				replacement = pod
				return nil
			}
		}
		return errors.New(describeAnew(e, gang))
	})
	if after := devicesOf(e.claimOf(replacement)); !slices.Equal(before, after) {
		t.Errorf("the replacement has %v, want the devices %v of the member that failed", after, before)
	}
	if e.get(greedy); greedy.Spec.NodeName != "" {
		t.Error("the single got a device that is reserved for the gang")
	}
}

func describeAnew(e *env, gang *v1alpha1.GangClaim) string {
	e.get(gang)
	return describe(gang)
}

func TestTwoGangsOfWhichEachFitsAlone(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.start()
	first, second := e.gang("first", 2, 4), e.gang("second", 2, 4)
	firstPods, secondPods := e.members("first", 2), e.members("second", 2)
	var ran, waiting []*corev1.Pod
	var waits *v1alpha1.GangClaim
	e.eventually("one of the gangs runs", func() error {
		for _, candidate := range []struct {
			mine, others []*corev1.Pod
			other        *v1alpha1.GangClaim
		}{{firstPods, secondPods, second}, {secondPods, firstPods, first}} {
			if e.get(candidate.mine[0]); candidate.mine[0].Status.Phase == corev1.PodRunning {
				ran, waiting, waits = candidate.mine, candidate.others, candidate.other
				return nil
			}
		}
		return errors.New("none does")
	})
	e.running(ran...)
	e.together(ran, 4)
	e.eventually("the other one waits", func() error {
		if e.get(waits); waits.Status.Plan != nil || len(waits.Status.Conditions) == 0 {
			return errors.New(describe(waits))
		}
		return nil
	})
	for _, pod := range waiting {
		if e.get(pod); len(claimNames(pod)) > 0 {
			t.Errorf("pod %s of the gang that waits has claims %v", pod.Name, claimNames(pod))
		}
	}
	for _, pod := range ran {
		if err := e.plane.kubelet.End(t.Context(), pod, corev1.PodSucceeded); err != nil {
			t.Fatal(err)
		}
	}
	e.running(waiting...)
	e.together(waiting, 4)
}
