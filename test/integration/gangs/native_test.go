// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Where the scheduler has gangs of its own, a GangClaim works for pods in one and for pods in none.
func TestNativeGangsOn(t *testing.T) {
	p, err := native()
	if err != nil {
		t.Fatal(err)
	}
	for name, group := range map[string]*corev1.PodSchedulingGroup{
		"pods with a schedulingGroup": {PodGroupName: ptr.To("train")},
		"pods without":                nil,
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, p, "a100-2x4")
			if group != nil {
				e.create(&schedulingv1beta1.PodGroup{
					ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "train"},
					Spec: schedulingv1beta1.PodGroupSpec{SchedulingPolicy: schedulingv1beta1.PodGroupSchedulingPolicy{
						Gang: &schedulingv1beta1.GangSchedulingPolicy{MinCount: 2},
					}},
				})
			}
			e.start()
			gang := e.gang("train", 2, 4)
			pods := e.members("train", 2, func(pod *corev1.Pod) { pod.Spec.SchedulingGroup = group })
			e.running(pods...)
			e.together(pods, 4)
			e.reaches(gang, v1alpha1.StepHolding)
		})
	}
}
