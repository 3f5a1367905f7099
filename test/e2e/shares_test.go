// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// share asks for one share with so much memory, or an equal part of the GPU.
func share(memory string) resourceapi.DeviceRequest {
	r := request("share", 1)
	r.Exactly.DeviceClassName = "share.gpu.switchyard.dev"
	if memory != "" {
		r.Exactly.Capacity = &resourceapi.CapacityRequirements{Requests: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)}}
	}
	return r
}

// shareGPUs gives a node a configuration for the test that shares so many of its GPUs.
func (s *space) shareGPUs(node, config string, count int) {
	s.Helper()
	s.Cleanup(func() { s.untilShared(node, 0) }) // after that of configure
	s.configure(node+".yaml", config)
	s.untilShared(node, count)
}

// untilShared waits until so many GPUs of a node are published for shares.
func (s *space) untilShared(node string, want int) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("%d GPUs of %s to be shared", want, node), func(ctx context.Context) (bool, error) {
		all, err := the.ResourceSlices(ctx)
		if err != nil {
			return false, err
		}
		got := 0
		for _, slice := range all {
			for _, d := range slice.Spec.Devices {
				if slice.Spec.Pool.Name == node && *d.Attributes[resourcemodel.AttributeType].StringValue == resourcemodel.TypeShare {
					got++
				}
			}
		}
		return got == want, nil
	}))
}

// Four pods have shares of different sizes of one GPU, a fifth waits until one of them ends, and a pod that wants whole GPUs
// gets the others. A plugin that is killed in between changes nothing.
func TestFourPodsHaveSharesOfOneGPU(t *testing.T) {
	s := newSpace(t)
	s.shareGPUs("node-a", strings.NewReplacer(`"6,7"`, `"0"`, "MPS", "TimeSlicing").Replace(s.guide("shares", "kind: NodeConfig\n")), 1)
	memory := []string{"10Gi", "20Gi", "30Gi", ""}
	for i, want := range memory {
		template := fmt.Sprintf("share-%d", i)
		s.template(template, claimSpec([]resourceapi.DeviceRequest{share(want)}))
		s.run(fromTemplate(pod(fmt.Sprintf("pod-%d", i), "node-a", container("work", uses("gpu"))), "gpu", template))
	}
	var seen string
	for i := range memory {
		devices := strings.TrimSpace(s.exec(fmt.Sprintf("pod-%d", i), "nvidia-smi", "-L"))
		if strings.Count(devices, "GPU ") != 1 || i > 0 && devices != seen {
			t.Errorf("pod-%d sees %q, pod-0 %q", i, devices, seen)
		}
		seen = devices
	}
	s.create(fromTemplate(pod("fifth", "node-a", container("work", uses("gpu"))), "gpu", "share-0"))
	s.eventually("Pod", "fifth", "cannot allocate all claims")

	s.killPlugin("node-a")
	s.template("whole", claimSpec([]resourceapi.DeviceRequest{request("gpu", 7)}))
	s.run(fromTemplate(pod("whole", "node-a", container("work", uses("gpu"))), "gpu", "whole"))
	if devices := s.exec("whole", "nvidia-smi", "-L"); strings.Count(devices, "GPU ") != 7 || strings.Contains(devices, seen) {
		t.Errorf("the pod with whole GPUs sees %q", devices)
	}
	s.deletePod("pod-1")
	s.must(the.WaitPodRunning(s.ctx, s.name, "fifth", patience))
	if devices := strings.TrimSpace(s.exec("fifth", "nvidia-smi", "-L")); devices != seen {
		t.Errorf("the fifth pod sees %q, want %q", devices, seen)
	}
}
