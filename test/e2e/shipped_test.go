// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// The manifests and the image that users install, on nodes without a driver: the plugin runs, the kubelet knows it, its
// pod is ready, so that a rolling update passes, and it says what is missing, in an Event and at /readyz. It takes over from
// the simulated plugin and hands back to it.
func TestShippedOnNodesWithoutDriver(t *testing.T) {
	s := newSpace(t)
	want := s.single("running", "node-a", "3")
	defer func() {
		s.ctx = context.Background()
		s.must(the.InstallForCrashes(s.ctx))
		s.single("after", "node-b", "3")
		s.deletePod("running") // prepared by the first, unprepared by the last
		s.deletePod("after")
		s.wantNothingLeft("node-a")
		s.wantNothingLeft("node-b")
	}()
	s.must(the.InstallShipped(s.ctx)) // waits until every pod is ready

	for _, node := range []string{"node-a", "node-b"} {
		p := s.waitPlugin(node, 0)
		if image := p.Spec.Containers[0].Image; image != "localhost/switchyard-kubelet-plugin:dev" {
			t.Fatalf("the plugin on %s runs %s", node, image)
		}
		err := the.Client.CoreV1().RESTClient().Get().AbsPath("/api/v1/namespaces", cluster.Namespace, "pods", p.Name+":8080", "proxy/readyz").Do(s.ctx).Error()
		if !apierrors.IsServiceUnavailable(err) {
			t.Errorf("/readyz on %s answers %v without NVML", node, err)
		}
		s.must(the.Until(s.ctx, patience, "an Event on "+node+" that says that NVML is missing", func(ctx context.Context) (bool, error) {
			events, err := the.Client.CoreV1().Events("").List(ctx, metav1.ListOptions{FieldSelector: "involvedObject.kind=Node,reason=NVMLUnavailable,involvedObject.name=" + node})
			if err != nil {
				return false, err
			}
			return slices.ContainsFunc(events.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, "libnvidia-ml.so.1") }), nil
		}))
	}
	s.wantGPUs("running", "work", want)
}
