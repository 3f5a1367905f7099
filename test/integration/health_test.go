// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// wantTaints waits until the API server has exactly the taints, written "<position>:<value>:<effect>", on the
// node's GPUs.
func (n *node) wantTaints(t *testing.T, want ...string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the taints are %q", want), func() error {
		var got []string
		for _, device := range n.published(t) {
			for _, taint := range device.Taints {
				got = append(got, fmt.Sprintf("%d:%s:%s", slices.Index(n.devices, device.Name), taint.Value, taint.Effect))
			}
		}
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	})
}

// wantEvent waits for an Event about an object whose message has all words.
func wantEvent(t *testing.T, namespace, kind, name, reason string, words ...string) {
	t.Helper()
	about := fields.Set{"involvedObject.kind": kind, "involvedObject.name": name, "reason": reason}
	eventually(t, fmt.Sprintf("%s %s has an Event %s with %q", kind, name, reason, words), func() error {
		list, err := cluster.Client().CoreV1().Events(namespace).List(t.Context(), metav1.ListOptions{FieldSelector: about.String()})
		if err != nil {
			return err
		}
		for _, event := range list.Items {
			missing := slices.IndexFunc(words, func(word string) bool { return !strings.Contains(event.Message, word) })
			if missing < 0 {
				return nil
			}
		}
		return fmt.Errorf("there are %d of that reason", len(list.Items))
	})
}

func TestFieldCase20_TaintsOfSickGPUsAreSeenKeptAndCleared(t *testing.T) {
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	metric(t, p, equal(8), "switchyard_kubelet_plugin_monitored_devices")
	n.wantTaints(t)
	before := n.slices(t)[0].ResourceVersion

	for _, code := range []uint64{13, 31, 43} {
		if err := n.GPUs.InjectXID(0, code); err != nil {
			t.Fatal(err)
		}
	}
	for _, change := range []func() error{
		func() error { return n.GPUs.InjectXID(2, 48) },
		func() error { return n.GPUs.InjectXID(3, 119) },
		func() error { return n.GPUs.SetRowRemap(4, true, false) },
		func() error { return n.GPUs.LoseGPU(5) },
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
	}
	sick := []string{"2:XID48:NoSchedule", "3:XID119:NoSchedule", "4:RowRemapPending:None", "5:Lost:NoSchedule"}
	n.wantTaints(t, sick...)
	metric(t, p, equal(3), "switchyard_device_xids_total", "device", n.devices[0])
	metric(t, p, equal(0), "switchyard_device_health", "device", n.devices[2], "reason", "XID48")
	metric(t, p, equal(5), "switchyard_device_health")
	wantEvent(t, metav1.NamespaceDefault, "Node", n.Name, "GPUUnhealthy", n.devices[2], "XID 48")
	n.refused(t, n.gpus(t, "sick", n.devices[3]), "is unhealthy", "XID 119", "delete the pod")
	n.prepare(t, n.gpus(t, "degraded", n.devices[4]))

	p.Kill()
	p = n.running(t, plugin.Options{})
	metric(t, p, equal(5), "switchyard_device_health")
	n.wantTaints(t, sick...)
	metric(t, p, equal(0), "switchyard_kubelet_plugin_resourceslice_writes_total")

	for _, gpu := range []int{2, 4, 5} {
		if err := n.GPUs.RecoverGPU(gpu); err != nil {
			t.Fatal(err)
		}
	}
	n.wantTaints(t, "3:XID119:NoSchedule")
	wantEvent(t, metav1.NamespaceDefault, "Node", n.Name, "GPURecovered", n.devices[2])

	p.Kill()
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	n.running(t, plugin.Options{})
	n.wantTaints(t)
	if after := n.slices(t)[0].ResourceVersion; after == before {
		t.Error("nothing was ever written")
	}
}

func TestTheHolderOfASickGPUIsToldAndEvictedOnlyIfConfigured(t *testing.T) {
	for effect, word := range map[resourceapi.DeviceTaintEffect]string{
		resourceapi.DeviceTaintEffectNoSchedule: "left alone",
		resourceapi.DeviceTaintEffectNoExecute:  "deletes the pods",
	} {
		t.Run(string(effect), func(t *testing.T) {
			n := newNode(t, "hgx-h100")
			p := n.running(t, plugin.Options{Args: []string{"--health-effect=" + string(effect), "--health-xid=63=NoSchedule"}})
			metric(t, p, equal(8), "switchyard_kubelet_plugin_monitored_devices")
			claim := n.gpus(t, "train", n.devices[1])
			n.prepare(t, claim)
			for _, err := range []error{n.GPUs.InjectXID(2, 63), n.GPUs.LoseGPU(1)} {
				if err != nil {
					t.Fatal(err)
				}
			}
			n.wantTaints(t, "1:Lost:"+string(effect), "2:XID63:NoSchedule")
			holder := claim.Status.ReservedFor[0]
			wantEvent(t, claim.Namespace, "Pod", holder.Name, "GPUUnhealthy", n.devices[1], word, "claim train")
			events, err := cluster.Client().CoreV1().Events(claim.Namespace).List(t.Context(), metav1.ListOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, event := range events.Items {
				if event.InvolvedObject.UID != holder.UID || event.Type != corev1.EventTypeWarning || event.Source.Host != n.Name {
					t.Errorf("there is an Event %+v", event)
				}
			}
		})
	}
}

func TestABrokenLinkChangesTheDomainAndNothingElse(t *testing.T) {
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	if err := n.GPUs.SetNVLinks(6, false); err != nil {
		t.Fatal(err)
	}
	n.wantTaints(t, "6:NVLinkDown:None")
	for i, device := range n.published(t) {
		_, inDomain := device.Attributes[resourcemodel.AttributeNVSwitchDomain]
		if broken := device.Name == n.devices[6]; inDomain == broken {
			t.Errorf("device %d is in a domain: %v", i, inDomain)
		}
	}
	n.prepare(t, n.gpus(t, "alone", n.devices[6]))
	if err := n.GPUs.RecoverGPU(6); err != nil {
		t.Fatal(err)
	}
	n.wantTaints(t)
}
