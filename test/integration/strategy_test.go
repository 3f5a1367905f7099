// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// strategies are node configurations of the first GPU by the strategy by which it is shared; "" is for one that is not.
var strategies = map[string]string{"TimeSlicing": timeSliced, "MPS": "shares: [{gpus: '0', strategy: MPS, maxClaims: 4}]", "": ""}

// reconfigured ends the plugin, if there is one, starts it with the configuration of a strategy, and waits until the first GPU is
// published by another, which it waits to leave, or by this one.
func (n *node) reconfigured(t *testing.T, before *plugin.Plugin, strategy, published string) *plugin.Plugin {
	t.Helper()
	if before != nil {
		before.Kill()
	}
	p := n.running(t, plugin.Options{Args: n.configured(t, strategies[strategy])})
	n.wantStrategy(t, published, published != strategy)
	return p
}

// wantStrategy waits until the first GPU is published as shared by a strategy, or as a whole one, and with or without the taint of
// one that is to be published in another way.
func (n *node) wantStrategy(t *testing.T, strategy string, waits bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("the first GPU is shared by %q, waiting %t", strategy, waits), func() error {
		for _, d := range n.published(t) {
			if d.Name != n.devices[0] {
				continue
			}
			got := ""
			if sharing := d.Attributes[resourcemodel.AttributeSharing].StringValue; sharing != nil {
				got = *sharing
			}
			tainted := slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == resourcemodel.TaintReconfiguring })
			if got != strategy || tainted != waits {
				return fmt.Errorf("it is shared by %q, waiting %t", got, tainted)
			}
			return nil
		}
		return fmt.Errorf("it is not published")
	})
}

// end takes claims back, as when their pods are deleted.
func (n *node) end(t *testing.T, claims ...*resourceapi.ResourceClaim) {
	t.Helper()
	for _, c := range claims {
		n.unprepare(t, c)
		if err := claim.Delete(t.Context(), cluster.Client(), c); err != nil {
			t.Fatal(err)
		}
	}
}

// wantNoMPS checks that containers with the CDI device IDs have the first GPU and nothing of MPS.
func (n *node) wantNoMPS(t *testing.T, ids []string) {
	t.Helper()
	n.wantSees(t, ids, 0)
	spec, err := n.container(ids...)
	if err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(spec.Process.Env, func(v string) bool { return strings.HasPrefix(v, "CUDA_MPS_") }) {
		t.Errorf("the container has %q", spec.Process.Env)
	}
	if running := n.mpsDaemons(t); len(running) > 0 {
		t.Errorf("%+v run", running)
	}
}

// A claim has the strategy by which it was allocated, however often the plugin is started with another.
func TestAStrategyChangesOnceNoClaimHasAShare(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.supervise(t)
	p := n.reconfigured(t, nil, "TimeSlicing", "TimeSlicing")
	prepared, allocated := create(t, n.oneShare("prepared", firstShare, "10Gi", "33")), create(t, n.oneShare("allocated", secondShare, "20Gi", "44"))
	n.wantNoMPS(t, n.prepare(t, prepared))

	p = n.reconfigured(t, p, "MPS", "TimeSlicing")
	n.wantNoMPS(t, n.prepare(t, prepared))
	n.wantNoMPS(t, n.prepare(t, allocated))
	n.end(t, prepared, allocated)
	n.wantStrategy(t, "MPS", false)

	prepared, allocated = create(t, n.oneShare("prepared", firstShare, "10Gi", "33")), create(t, n.oneShare("allocated", secondShare, "20Gi", "44"))
	n.wantLimits(t, n.prepare(t, prepared), 25, 10240)
	daemon := n.onlyDaemon(t)
	for _, next := range []string{"TimeSlicing", ""} {
		p = n.reconfigured(t, p, next, "MPS")
		n.wantLimits(t, n.prepare(t, prepared), 25, 10240)
		n.wantLimits(t, n.prepare(t, allocated), 33, 20480)
		if now := n.onlyDaemon(t); now != daemon {
			t.Errorf("the daemon was %d and is %d", daemon, now)
		}
	}
	n.end(t, prepared, allocated)
	n.wantUnshared(t)
	n.wantStrategy(t, "", false)
	whole := n.gpus(t, "whole", n.devices[0])
	n.wantNoMPS(t, n.prepare(t, whole))
	n.end(t, whole)
	n.wantUnshared(t)
}

func TestAStrategyChangesByItselfOnAGPUThatNobodyHas(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.supervise(t)
	var p *plugin.Plugin
	for _, strategy := range []string{"TimeSlicing", "MPS", "", "MPS"} {
		p = n.reconfigured(t, p, strategy, strategy)
	}
	c := create(t, n.oneShare("share", firstShare, "10Gi", "33"))
	n.wantLimits(t, n.prepare(t, c), 25, 10240)
	n.end(t, c)
	n.wantUnshared(t)
}
