// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"context"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/kubelet"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// The start gate: no container of a gang starts before all of its members have their devices.

const gangPlan = "0123456789abcdef"

// member creates the claim of a gang's member, as the controller of Switchyard may.
func (n *node) member(t *testing.T, controller kubernetes.Interface, name string, devices ...string) *resourceapi.ResourceClaim {
	t.Helper()
	created, err := n.claim(name).Request("devices", devices...).Gang("gang-uid", gangPlan, n.namespace+"/llama-tp4").Create(t.Context(), controller)
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// markReady opens a claim's gate.
func markReady(t *testing.T, controller kubernetes.Interface, c *resourceapi.ResourceClaim) {
	t.Helper()
	_, err := controller.ResourceV1().ResourceClaims(c.Namespace).Patch(t.Context(), c.Name, types.MergePatchType,
		mark("annotations", v1alpha1.ReadyAnnotation, gangPlan), metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

type prepared struct {
	result kubelet.Result
	err    error
}

// prepareInBackground starts a call for the claims and returns the results of the first.
func (n *node) prepareInBackground(ctx context.Context, claims ...*resourceapi.ResourceClaim) <-chan prepared {
	done := make(chan prepared, 1)
	go func() {
		results, err := n.kubelet.Prepare(ctx, claims...)
		done <- prepared{results[claims[0].UID], err}
	}()
	return done
}

const waitingClaims = "switchyard_kubelet_plugin_gang_claims_waiting"

func TestAMemberOfAGangIsPreparedWhenTheGangIsComplete(t *testing.T) {
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	controller := clusterAdmin(t, controllerUser)
	for _, name := range []string{"first", "second", "third"} {
		c := n.member(t, controller, name, n.devices[0], n.devices[1])
		done := n.prepareInBackground(t.Context(), c)
		metric(t, p, equal(1), waitingClaims)

		// The devices are nobody's while the claim waits, and other pods start.
		other := n.gpus(t, "beside-"+name, n.devices[1], n.devices[2])
		n.wantSees(t, n.prepare(t, other), 1, 2)
		n.unprepare(t, other)
		n.wantNothingLeft(t)
		select {
		case got := <-done:
			t.Fatalf("prepared before the gang was complete: %+v", got)
		default:
		}

		markReady(t, controller, c)
		got := <-done
		if got.err != nil || got.result.Err != nil {
			t.Fatalf("prepare: %v, %v", got.err, got.result.Err)
		}
		n.wantSees(t, byRequest(got.result.Devices, "devices"), 0, 1)
		metric(t, p, equal(0), waitingClaims)
		n.unprepare(t, c)
		if err := claim.Delete(t.Context(), controller, c); err != nil {
			t.Fatal(err)
		}
	}
}

func TestAMemberOfAnIncompleteGangIsRefusedWithAReason(t *testing.T) {
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	controller := clusterAdmin(t, controllerUser)
	c, plain := n.member(t, controller, "member", n.devices[0]), n.gpus(t, "plain", n.devices[1])

	// A kubelet with less patience than a real one, which waits for 45s.
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	got := <-n.prepareInBackground(ctx, c, plain)
	if got.err != nil {
		t.Fatalf("the call was not answered in time: %v", got.err)
	}
	for _, want := range []string{"the gang is not complete yet", "GangClaim " + n.namespace + "/llama-tp4 says what is missing", "tries again"} {
		if err := got.result.Err; err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error is %v, want it to contain %q", err, want)
		}
	}
	metric(t, p, equal(1), "switchyard_kubelet_plugin_errors_total", "kind", "gang_incomplete")
	metric(t, p, equal(1), "switchyard_kubelet_plugin_prepared_claims") // the plain one of the same call

	// The kubelet repeats the call.
	markReady(t, controller, c)
	n.wantSees(t, n.prepare(t, c), 0)
}

func TestAPluginThatEndsLeavesAWaitingMemberToTheNextOne(t *testing.T) {
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	controller := clusterAdmin(t, controllerUser)
	c := n.member(t, controller, "member", n.devices[0])
	done := n.prepareInBackground(t.Context(), c)
	metric(t, p, equal(1), waitingClaims)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.err != nil || got.result.Err == nil || !strings.Contains(got.result.Err.Error(), "shutting down") {
		t.Errorf("the call ended with %v, %v, want it answered with the shutdown", got.err, got.result.Err)
	}

	n.running(t, plugin.Options{})
	markReady(t, controller, c)
	n.wantSees(t, n.prepare(t, c), 0)
}

func TestAWaitingMemberThatIsDeletedIsNotPrepared(t *testing.T) {
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	controller := clusterAdmin(t, controllerUser)
	c := n.member(t, controller, "member", n.devices[0])
	done := n.prepareInBackground(t.Context(), c)
	metric(t, p, equal(1), waitingClaims)
	if err := claim.Delete(t.Context(), controller, c); err != nil {
		t.Fatal(err)
	}
	got := <-done
	if got.err != nil || got.result.Err == nil || !strings.Contains(got.result.Err.Error(), "was deleted while its gang was not complete") {
		t.Errorf("the call ended with %v, %v", got.err, got.result.Err)
	}
	n.wantNothingLeft(t)
}
