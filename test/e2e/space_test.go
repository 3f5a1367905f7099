// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// space is one test's namespace. What it created is gone, and the GPUs are free, when the test ends.
type space struct {
	*testing.T
	ctx  context.Context
	name string
}

func newSpace(t *testing.T) *space {
	t.Helper()
	ctx := t.Context()
	ns, err := the.Client.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{GenerateName: "e2e-"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatalf("create namespace: %v", err)
	}
	s := &space{T: t, ctx: ctx, name: ns.Name}
	t.Cleanup(func() {
		s.ctx = context.Background()
		if t.Failed() {
			s.describe()
		}
		s.clear()
		if err := the.Client.CoreV1().Namespaces().Delete(s.ctx, s.name, metav1.DeleteOptions{}); err != nil {
			t.Errorf("delete namespace: %v", err)
		}
	})
	return s
}

// must ends the test on an error.
func (s *space) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *space) claim(name string, spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaim {
	s.Helper()
	c, err := the.Client.ResourceV1().ResourceClaims(s.name).Create(s.ctx, &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{})
	s.must(err)
	return c
}

func (s *space) template(name string, spec resourceapi.ResourceClaimSpec) {
	s.Helper()
	_, err := the.Client.ResourceV1().ResourceClaimTemplates(s.name).Create(s.ctx, &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: resourceapi.ResourceClaimTemplateSpec{Spec: spec},
	}, metav1.CreateOptions{})
	s.must(err)
}

func (s *space) create(p *corev1.Pod) *corev1.Pod {
	s.Helper()
	created, err := the.Client.CoreV1().Pods(s.name).Create(s.ctx, p, metav1.CreateOptions{})
	s.must(err)
	return created
}

func (s *space) run(p *corev1.Pod) {
	s.Helper()
	s.create(p)
	s.must(the.WaitPodRunning(s.ctx, s.name, p.Name, patience))
}

// touch makes the kubelet look at a pod again now: after a failed prepare it does so by itself only in 60 to 90 seconds.
func (s *space) touch(pod string) {
	s.Helper()
	_, err := the.Kubectl(s.ctx, "annotate", "pod", "-n", s.name, pod, "e2e.switchyard.dev/touched=true")
	s.must(err)
}

func (s *space) exec(pod string, command ...string) string {
	s.Helper()
	out, err := the.Exec(s.ctx, s.name, pod, command...)
	s.must(err)
	return strings.TrimSpace(out)
}

// execIn runs a command in one of several containers.
func (s *space) execIn(pod, container string, command ...string) string {
	s.Helper()
	out, err := the.Kubectl(s.ctx, append([]string{"exec", "-n", s.name, pod, "-c", container, "--"}, command...)...)
	s.must(err)
	return strings.TrimSpace(out)
}

// deviceNodes lists the GPU device nodes that a container has, sorted: "/dev/nvidia0 /dev/nvidia3".
const deviceNodes = "ls /dev/nvidia[0-9]* 2>/dev/null | sort | tr '\\n' ' ' | sed 's/ $//'"

func (s *space) gpusIn(pod, container string) []string {
	s.Helper()
	return strings.Fields(s.execIn(pod, container, "sh", "-c", deviceNodes+" || true"))
}

// allocated returns the claim's devices of this driver, with the attributes that are published for them.
func (s *space) allocated(claim string) []held {
	s.Helper()
	c, err := the.Client.ResourceV1().ResourceClaims(s.name).Get(s.ctx, claim, metav1.GetOptions{})
	s.must(err)
	if c.Status.Allocation == nil {
		s.Fatalf("claim %s is not allocated", claim)
	}
	published, err := the.ResourceSlices(s.ctx)
	s.must(err)
	var devices []held
	for _, r := range c.Status.Allocation.Devices.Results {
		for _, slice := range published {
			if slice.Spec.Driver != r.Driver || slice.Spec.Pool.Name != r.Pool {
				continue
			}
			for _, d := range slice.Spec.Devices {
				if d.Name == r.Device {
					devices = append(devices, held{request: r.Request, pool: r.Pool, device: d})
				}
			}
		}
	}
	return devices
}

// held is one allocated device.
type held struct {
	request, pool string
	device        resourceapi.Device
}

func (h held) node() string {
	return fmt.Sprintf("/dev/nvidia%d", *h.device.Attributes["minor"].IntValue)
}

func (h held) domain() string {
	if v := h.device.Attributes["nvswitchDomain"].StringValue; v != nil {
		return *v
	}
	return ""
}

func nodesOf(devices []held) []string {
	var nodes []string
	for _, d := range devices {
		nodes = append(nodes, d.node())
	}
	slices.Sort(nodes)
	return nodes
}

// claimOf returns the name of the claim that was made for a pod from a template.
func (s *space) claimOf(pod, local string) string {
	s.Helper()
	p, err := the.Pod(s.ctx, s.name, pod)
	s.must(err)
	for _, status := range p.Status.ResourceClaimStatuses {
		if status.Name == local && status.ResourceClaimName != nil {
			return *status.ResourceClaimName
		}
	}
	s.Fatalf("pod %s has no claim for %s", pod, local)
	return ""
}

// soon ends pods that do not listen. 0 would free the GPU before the kubelet has unprepared it.
var soon = metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](1)}

// deletePod waits until the pod is gone.
func (s *space) deletePod(name string) {
	s.Helper()
	err := the.Client.CoreV1().Pods(s.name).Delete(s.ctx, name, soon)
	if err != nil && !apierrors.IsNotFound(err) {
		s.Fatal(err)
	}
	s.must(the.Until(s.ctx, patience, "pod "+name+" to be gone", func(ctx context.Context) (bool, error) {
		_, err := the.Pod(ctx, s.name, name)
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	}))
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// clear deletes the test's pods and claims and waits until no claim is left.
func (s *space) clear() {
	core, res := the.Client.CoreV1(), the.Client.ResourceV1()
	all := metav1.ListOptions{}
	deleted := false
	if err := the.Until(s.ctx, patience, "pods and claims of "+s.name+" to be gone", func(ctx context.Context) (bool, error) {
		if !deleted {
			if err := errors.Join(
				core.Pods(s.name).DeleteCollection(ctx, soon, all),
				res.ResourceClaimTemplates(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
				res.ResourceClaims(s.name).DeleteCollection(ctx, metav1.DeleteOptions{}, all),
			); err != nil {
				return false, err
			}
			deleted = true
		}
		claims, err := the.ResourceClaims(ctx, s.name)
		if err != nil {
			return false, err
		}
		pods, err := the.Pods(ctx, s.name, "")
		return len(claims) == 0 && len(pods) == 0, err
	}); err != nil {
		s.Error(err)
	}
}

// describe prints what a person would look at first.
func (s *space) describe() {
	for _, args := range [][]string{
		{"get", "pods,resourceclaims", "-n", s.name, "-o", "wide"},
		{"get", "events", "-n", s.name},
		{"get", "gangclaims", "-n", s.name, "-o", "yaml"},
		{"get", "devicetaintrules", "-o", "yaml"},
		{"get", "pods", "-n", cluster.Namespace, "-o", "wide"},
		{"logs", "-n", cluster.Namespace, "-l", cluster.ControllerLabel, "--tail=80", "--prefix"},
	} {
		out, err := the.Kubectl(s.ctx, args...)
		s.Logf("kubectl %s\n%s%v", strings.Join(args, " "), out, err)
	}
	for _, node := range []string{"node-a", "node-b"} {
		log, _ := the.PluginLog(s.ctx, node)
		s.Logf("plugin on %s:\n%s", node, log)
	}
}

// eventually waits for an Event about the object whose message has all the words.
func (s *space) eventually(kind, name string, words ...string) {
	s.Helper()
	s.must(the.Until(s.ctx, patience, fmt.Sprintf("an Event on %s %s that says %q", kind, name, words), func(ctx context.Context) (bool, error) {
		events, err := the.Events(ctx, s.name, kind, name)
		if err != nil {
			return false, err
		}
		for _, e := range events {
			if !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(e.Message, w) }) {
				return true, nil
			}
		}
		return false, nil
	}))
}
