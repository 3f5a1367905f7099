// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/pkg/gang"
)

func TestPriority(t *testing.T) {
	pod := func(priority int32, with ...func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Priority: ptr.To(priority)}}
		for _, change := range with {
			change(p)
		}
		return p
	}
	ending := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{} }
	ended := func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }
	for rule, test := range map[string]struct {
		class *schedulingv1.PriorityClass
		pods  []*corev1.Pod
		want  int32
	}{
		"a gang of which nothing is known has none":       {nil, nil, 0},
		"the lowest of the pods counts":                   {nil, []*corev1.Pod{pod(7), pod(3), pod(5)}, 3},
		"a class lowers it":                               {&schedulingv1.PriorityClass{Value: 2}, []*corev1.Pod{pod(7)}, 2},
		"a class does not raise it":                       {&schedulingv1.PriorityClass{Value: 9}, []*corev1.Pod{pod(7)}, 7},
		"pods that are ending or have ended do not count": {nil, []*corev1.Pod{pod(7), pod(-1, ending), pod(-2, ended)}, 7},
		"a pod without a priority has 0":                  {nil, []*corev1.Pod{pod(7), {}}, 0},
	} {
		t.Run(rule, func(t *testing.T) {
			if got := gang.Priority(test.class, test.pods); got != test.want {
				t.Errorf("it is %d, want %d", got, test.want)
			}
		})
	}
}
