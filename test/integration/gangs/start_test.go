// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func TestGangStartsTogetherEachMemberInOneDomain(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.start()
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.running(pods...)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "train"}}
	if e.get(template) {
		t.Error("the template is still there: a later pod would get a claim")
	}
	if gang.Status.Ready != "2/2" {
		t.Errorf("ready is %q, want 2/2", gang.Status.Ready)
	}
}

func TestGangWaitsWithReasonWhileASingleIsInTheWay(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	single := e.single("single", 1, inDomain(e.nodes[0], 0))
	e.running(single)
	e.start()
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	condition := e.waits(gang, "NoFeasibleDomain")
	for _, part := range []string{"2", "4", "single"} {
		if !strings.Contains(condition.Message, part) {
			t.Errorf("the message %q does not say %q", condition.Message, part)
		}
	}
	for _, pod := range pods {
		e.get(pod)
		if pod.Spec.NodeName != "" || len(pod.Status.ResourceClaimStatuses) > 0 {
			t.Errorf("pod %s holds something while its gang waits: %v", pod.Name, pod.Status)
		}
	}
	if err := e.plane.kubelet.End(t.Context(), single, corev1.PodSucceeded); err != nil {
		t.Fatal(err)
	}
	e.running(pods...)
	e.together(pods, 4)
}
