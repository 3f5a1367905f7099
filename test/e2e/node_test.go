// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// The plugin's folders on a node.
const (
	pluginDir   = "/var/lib/kubelet/plugins/gpu.switchyard.dev"
	claimsDir   = pluginDir + "/checkpoint"
	metadataDir = pluginDir + "/dra-device-metadata"
	cdiDir      = "/var/run/cdi"
	crashFile   = pluginDir + "/crash-at"
)

// on runs a shell line in a node's mount and network namespaces.
func (s *space) on(node, line string) string {
	s.Helper()
	out, err := the.NodeExec(s.ctx, node, "sh", "-c", line)
	s.must(err)
	return strings.TrimSpace(out)
}

// leftovers lists what prepared claims leave on a node: checkpoint records, CDI specs, device metadata and their
// temporary files.
func leftovers(ctx context.Context, node string) (string, error) {
	line := fmt.Sprintf("find %s %s %s -mindepth 1 -not -type d -not -name .lock 2>/dev/null | sort", claimsDir, cdiDir, metadataDir)
	out, err := the.NodeExec(ctx, node, "sh", "-c", line)
	return strings.TrimSpace(out), err
}

// wantNothingLeft waits until the node has no trace of a prepared claim.
func (s *space) wantNothingLeft(node string) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, "nothing to be left on "+node, func(ctx context.Context) (bool, error) {
		left, err := leftovers(ctx, node)
		if err != nil || left == "" {
			return err == nil, err
		}
		return false, fmt.Errorf("still there: %s", left)
	}))
}

// pluginPod returns the running plugin pod of a node that is not being deleted.
func pluginPod(ctx context.Context, node string) (*corev1.Pod, error) {
	pods, err := the.Pods(ctx, cluster.Namespace, cluster.PluginLabel)
	if err != nil {
		return nil, err
	}
	for i := range pods {
		if pods[i].Spec.NodeName == node && pods[i].DeletionTimestamp == nil {
			return &pods[i], nil
		}
	}
	return nil, fmt.Errorf("no plugin pod on %s", node)
}

// waitPlugin waits until the node's plugin pod is ready; restarts is how often its container must have restarted.
func (s *space) waitPlugin(node string, restarts int32) *corev1.Pod {
	s.Helper()
	var p *corev1.Pod
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("the plugin on %s to be ready after %d restarts", node, restarts), func(ctx context.Context) (bool, error) {
		var err error
		if p, err = pluginPod(ctx, node); err != nil {
			return false, err
		}
		return cluster.Running(p) && p.Status.ContainerStatuses[0].RestartCount >= restarts, nil
	}))
	return p
}

// freshPlugin replaces the node's plugin pod, so that the kubelet's back-off for a container that died before does not
// slow the next death down.
func (s *space) freshPlugin(node string) *corev1.Pod {
	s.Helper()
	return s.replacePlugin(s.waitPlugin(node, 0))
}

func (s *space) replacePlugin(old *corev1.Pod) *corev1.Pod {
	s.Helper()
	s.must(the.Client.CoreV1().Pods(cluster.Namespace).Delete(s.ctx, old.Name, metav1.DeleteOptions{}))
	s.must(the.Until(s.ctx, patience, "the old plugin pod to go", func(ctx context.Context) (bool, error) {
		_, err := the.Pod(ctx, cluster.Namespace, old.Name)
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	}))
	return s.waitPlugin(old.Spec.NodeName, 0)
}

// forgetfulPlugin replaces the node's plugin pod by one that does not know which devices the node has had.
func (s *space) forgetfulPlugin(node string) {
	s.Helper()
	old := s.waitPlugin(node, 0)
	s.must(the.KillPlugin(s.ctx, node, pluginDir+"/inventory.json"))
	s.replacePlugin(old)
}

// armCrash makes the plugin on the node die as by kill -9 when it next reaches the step.
func (s *space) armCrash(node, step string) {
	s.Helper()
	s.on(node, fmt.Sprintf("echo %s > %s.new && mv %s.new %s", step, crashFile, crashFile, crashFile))
	s.Cleanup(func() { _, _ = the.NodeExec(context.Background(), node, "rm", "-f", crashFile) })
}

// waitCrashed waits until the armed plugin has died.
func (s *space) waitCrashed(node string) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, "the plugin on "+node+" to die", func(ctx context.Context) (bool, error) {
		out, err := the.NodeExec(ctx, node, "sh", "-c", "ls "+crashFile+" 2>/dev/null || true")
		return err == nil && strings.TrimSpace(out) == "", err
	}))
}

// killPlugin kills the node's plugin process as the kernel would, and waits until it is back.
func (s *space) killPlugin(node string) {
	s.Helper()
	before := s.waitPlugin(node, 0)
	s.must(the.KillPlugin(s.ctx, node))
	s.waitPlugin(node, before.Status.ContainerStatuses[0].RestartCount+1)
}
