// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// sim runs a subcommand of switchyard-sim ctl in the node's plugin pod, as a person does.
func (s *space) sim(node string, args ...string) {
	s.Helper()
	s.must(simulate(s.ctx, node, args...))
}

func simulate(ctx context.Context, node string, args ...string) error {
	p, err := pluginPod(ctx, node)
	if err != nil {
		return err
	}
	_, err = the.Kubectl(ctx, append([]string{"exec", "-n", cluster.Namespace, p.Name, "-c", "plugin", "--", "switchyard-sim", "ctl"}, args...)...)
	return err
}

// wellAgain recovers the GPUs of a node when the test ends.
func (s *space) wellAgain(node string) {
	s.Cleanup(func() {
		if err := simulate(context.Background(), node, "recover", "all"); err != nil {
			s.Error(err)
		}
		s.ctx = context.Background()
		s.wantTaints(node)
	})
}

// wantTaints waits until exactly these taints, "<index>:<value>:<effect>", are published of a node's GPUs.
func (s *space) wantTaints(node string, want ...string) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("the taints of %s to be %q", node, want), func(ctx context.Context) (bool, error) {
		all, err := the.ResourceSlices(ctx)
		if err != nil {
			return false, err
		}
		var got []string
		for _, slice := range all {
			if slice.Spec.NodeName == nil || *slice.Spec.NodeName != node {
				continue
			}
			for _, d := range slice.Spec.Devices {
				for _, taint := range d.Taints {
					got = append(got, fmt.Sprintf("%d:%s:%s", *d.Attributes["index"].IntValue, taint.Value, taint.Effect))
				}
			}
		}
		if slices.Sort(got); slices.Equal(got, want) {
			return true, nil
		}
		return false, fmt.Errorf("they are %q", got)
	}))
}

// wantHealth waits until a pod's status says of the devices of its claim that they are of that health.
func (s *space) wantHealth(pod string, want corev1.ResourceHealthStatus) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("the devices of pod %s to be %s", pod, want), func(ctx context.Context) (bool, error) {
		p, err := the.Pod(ctx, s.name, pod)
		if err != nil {
			return false, err
		}
		var got []corev1.ResourceStatus
		for _, c := range p.Status.ContainerStatuses {
			got = append(got, c.AllocatedResourcesStatus...)
		}
		for _, status := range got {
			if len(status.Resources) == 1 && status.Resources[0].Health == want {
				return true, nil
			}
		}
		return false, fmt.Errorf("allocatedResourcesStatus is %+v", got)
	}))
}

// onGPU makes a pod on node-a with a claim of the GPU of an index.
func (s *space) onGPU(name, index string) *corev1.Pod {
	s.Helper()
	s.claim(name, claimSpec([]resourceapi.DeviceRequest{request("gpu", 1, onIndex(index))}))
	return withClaims(pod(name, "node-a", container("work", uses("gpu"))), map[string]string{"gpu": name})
}

func TestASickGPUIsTaintedShownAtItsPodAndRecovers(t *testing.T) {
	s := newSpace(t)
	s.wellAgain("node-a")
	s.run(s.onGPU("holder", "5"))
	s.wantHealth("holder", corev1.ResourceHealthStatusHealthy)

	s.sim("node-a", "xid", "4", "31") // an application's error
	s.sim("node-a", "xid", "5", "48")
	s.wantTaints("node-a", "5:XID48:NoSchedule")
	s.wantHealth("holder", corev1.ResourceHealthStatusUnhealthy)
	s.eventually("Pod", "holder", "XID 48", "left alone", "claim holder")
	if p, err := the.Pod(s.ctx, s.name, "holder"); err != nil || !cluster.Running(p) {
		t.Errorf("the pod that holds the GPU is %+v, %v", p.Status.Phase, err)
	}

	s.killPlugin("node-a")
	s.wantTaints("node-a", "5:XID48:NoSchedule")
	s.wantHealth("holder", corev1.ResourceHealthStatusUnhealthy)

	s.deletePod("holder")
	s.fromGuide("health", "diagnose") // of that GPU
	s.run(withClaims(pod("diagnose", "node-a", container("work", uses("gpu"))), map[string]string{"gpu": "diagnose"}))
	s.wantGPUs("diagnose", "work", []string{"/dev/nvidia5"})
	s.deletePod("diagnose")

	s.create(s.onGPU("next", "5"))
	if _, err := the.WaitUnschedulable(s.ctx, s.name, "next", patience); err != nil {
		t.Error(err)
	}
	s.sim("node-a", "recover", "5")
	s.wantTaints("node-a")
	s.must(the.WaitPodRunning(s.ctx, s.name, "next", patience))
	s.wantHealth("next", corev1.ResourceHealthStatusHealthy)
}

// The pod on a lost GPU is deleted, and of the GPUs in MIG mode one is partitioned, as the nodes' configuration has it.
func TestNodesAreConfigured(t *testing.T) {
	s := newSpace(t)
	s.wellAgain("node-a")
	s.configure("default.yaml", s.guide("node-config", "kind: NodeConfig\n"))
	s.migOn("node-a")
	s.sim("node-a", "mig", "2", "on")
	s.Cleanup(func() {
		if err := simulate(context.Background(), "node-a", "mig", "2", "off"); err != nil {
			s.Error(err)
		}
	})
	s.wantTaints("node-a", "0::NoSchedule", "2::NoSchedule")
	s.untilPublished("node-a", 25)

	s.run(s.onGPU("holder", "6"))
	s.run(s.onGPU("other", "7"))
	s.sim("node-a", "lose", "6")
	s.wantTaints("node-a", "0::NoSchedule", "2::NoSchedule", "6:Lost:NoExecute")
	s.must(the.Until(s.ctx, patience, "the pod on the lost GPU to be gone", func(ctx context.Context) (bool, error) {
		_, err := the.Pod(ctx, s.name, "holder")
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	}))
	if p, err := the.Pod(s.ctx, s.name, "other"); err != nil || !cluster.Running(p) {
		t.Errorf("the pod on another GPU is %+v, %v", p.Status.Phase, err)
	}
	s.sim("node-a", "recover", "6")
	s.wantTaints("node-a", "0::NoSchedule", "2::NoSchedule")
	s.run(withClaims(pod("again", "node-a", container("work", uses("gpu"))), map[string]string{"gpu": "holder"}))
}
