// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// timeSliced shares the first GPU.
const timeSliced = "shares: [{gpus: '0', strategy: TimeSlicing, maxClaims: 4}]"

// configured writes the node's configuration and returns the flag for it.
func (n *node) configured(t *testing.T, settings string) []string {
	t.Helper()
	path := filepath.Join(n.Dir, "node-config.yaml")
	if err := os.WriteFile(path, []byte("apiVersion: switchyard.dev/v1alpha1\nkind: NodeConfig\n"+settings), 0o600); err != nil {
		t.Fatal(err)
	}
	return []string{"--config=" + path}
}

// wantForm waits until a GPU is published as a share or not, and with or without the taint of one that is to be
// published in another way.
func (n *node) wantForm(t *testing.T, device, kind string, waits bool) {
	t.Helper()
	eventually(t, fmt.Sprintf("device %s is of type %s, waiting %t", device, kind, waits), func() error {
		for _, d := range n.published(t) {
			if d.Name != device {
				continue
			}
			tainted := slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == resourcemodel.TaintReconfiguring })
			if got := *d.Attributes[resourcemodel.AttributeType].StringValue; got != kind || tainted != waits {
				return fmt.Errorf("it is of type %s, waiting %t", got, tainted)
			}
			return nil
		}
		return fmt.Errorf("it is not published")
	})
}

// The API server validates request policies: one that it refuses would take the whole slice along.
func TestTheAPIServerTakesSharesOfEverySize(t *testing.T) {
	t.Parallel()
	for name, settings := range map[string]string{
		"of two":                 "shares: [{gpus: all, strategy: TimeSlicing, maxClaims: 2}]",
		"of as many as there is": "shares: [{gpus: all, strategy: TimeSlicing, maxClaims: 128, memoryStep: 1Mi}]",
		"in odd steps":           "shares: [{gpus: all, strategy: TimeSlicing, maxClaims: 7, memoryStep: 1537Mi}]",
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "hgx-h100")
			n.running(t, plugin.Options{Args: n.configured(t, settings)})
			for _, device := range n.devices {
				n.wantForm(t, device, resourcemodel.TypeShare, false)
			}
		})
	}
}

func TestSharesOfOneGPUInSeveralClaims(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{Args: n.configured(t, timeSliced)})
	n.wantForm(t, n.devices[0], resourcemodel.TypeShare, false)
	n.wantForm(t, n.devices[1], resourcemodel.TypeGPU, false)
	one := create(t, n.claim("one").Shared("gpu", n.devices[0], "6b1c9a30-3f0e-4a3b-9d1e-111111111111"))
	two := create(t, n.claim("two").Shared("gpu", n.devices[0], "6b1c9a30-3f0e-4a3b-9d1e-222222222222"))
	n.wantSees(t, n.prepare(t, one), 0)
	n.wantSees(t, n.prepare(t, two), 0)
	n.refused(t, n.gpus(t, "whole", n.devices[0]), "is prepared for claim")
	n.refused(t, create(t, n.claim("configured").Shared("gpu", n.devices[0], "6b1c9a30-3f0e-4a3b-9d1e-333333333333").
		Config(`{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"MPS"}}`)), "sharing: must not be set", "node configuration")

	p.Kill()
	p = n.running(t, plugin.Options{Args: n.configured(t, timeSliced)})
	n.wantSees(t, n.prepare(t, one), 0)
	metric(t, p, equal(2), "switchyard_kubelet_plugin_prepared_devices")
	n.unprepare(t, one)
	n.wantSees(t, n.prepare(t, two), 0)
	n.unprepare(t, two)
}

// What the configuration says now is not what the GPU's claim has: the form stays until the claim is gone, from this node
// and from the API server.
func TestAGPUKeepsItsFormWhileAClaimHasIt(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	whole := n.gpus(t, "whole", n.devices[0])
	n.prepare(t, whole)

	p.Kill()
	p = n.running(t, plugin.Options{Args: n.configured(t, timeSliced)})
	n.wantForm(t, n.devices[0], resourcemodel.TypeGPU, true)
	n.prepare(t, whole)
	n.unprepare(t, whole)
	if err := cluster.Client().ResourceV1().ResourceClaims(n.namespace).Delete(t.Context(), whole.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.wantForm(t, n.devices[0], resourcemodel.TypeShare, false)

	share := create(t, n.claim("share").Shared("gpu", n.devices[0], "6b1c9a30-3f0e-4a3b-9d1e-111111111111"))
	p.Kill()
	n.running(t, plugin.Options{})
	n.wantForm(t, n.devices[0], resourcemodel.TypeShare, true) // allocated, and not prepared here
	n.prepare(t, share)
	n.unprepare(t, share)
	if err := cluster.Client().ResourceV1().ResourceClaims(n.namespace).Delete(t.Context(), share.Name, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	n.wantForm(t, n.devices[0], resourcemodel.TypeGPU, false)
}
