// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
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

// single runs a pod with one GPU, chosen by index, on the node.
func (s *space) single(name, node, index string) []string {
	s.Helper()
	s.claim(name, claimSpec([]resourceapi.DeviceRequest{request("gpu", 1, onIndex(index))}))
	s.run(withClaims(pod(name, node, container("work", uses("gpu"))), map[string]string{"gpu": name}))
	return nodesOf(s.allocated(name))
}

// Wherever the plugin dies in a prepare, the pod runs in the end, with its GPU, and nothing is left after it.
func TestKilledAtEachStepOfPrepare(t *testing.T) {
	for _, step := range []string{"prepare:before-checkpoint", "prepare:after-checkpoint", "prepare:after-cdi"} {
		t.Run(step, func(t *testing.T) {
			s := newSpace(t)
			s.freshPlugin("node-b")
			s.armCrash("node-b", step)
			s.claim("crash", claimSpec([]resourceapi.DeviceRequest{request("gpu", 2)}))
			s.create(withClaims(pod("crash", "node-b", container("work", uses("gpu"))), map[string]string{"gpu": "crash"}))
			s.waitCrashed("node-b")
			s.waitPlugin("node-b", 1)
			s.touch("crash")
			s.must(the.WaitPodRunning(s.ctx, s.name, "crash", patience))
			s.wantGPUs("crash", "work", nodesOf(s.allocated("crash")))
			s.deletePod("crash")
			s.wantNothingLeft("node-b")
		})
	}
}

// Wherever it dies in an unprepare, the pod goes, the devices are free and nothing is left.
func TestKilledAtEachStepOfUnprepare(t *testing.T) {
	for _, step := range []string{"unprepare:before-cdi-removal", "unprepare:after-cdi-removal", "unprepare:after-record-removal"} {
		t.Run(step, func(t *testing.T) {
			s := newSpace(t)
			s.freshPlugin("node-b")
			s.single("first", "node-b", "5")
			s.armCrash("node-b", step)
			s.must(the.Client.CoreV1().Pods(s.name).Delete(s.ctx, "first", metav1.DeleteOptions{}))
			s.waitCrashed("node-b")
			s.deletePod("first")
			s.wantNothingLeft("node-b")
			s.must(the.Client.ResourceV1().ResourceClaims(s.name).Delete(s.ctx, "first", metav1.DeleteOptions{}))
			s.wantGPUsOfNext("second", "node-b", "5")
		})
	}
}

func (s *space) wantGPUsOfNext(name, node, index string) {
	s.Helper()
	s.wantGPUs(name, "work", s.single(name, node, index))
}

// Field case 2: after a restart of the plugin no Prepare comes for running pods, and none is needed.
func TestFieldCase02_RestartLeavesRunningPodsAlone(t *testing.T) {
	s := newSpace(t)
	s.freshPlugin("node-a")
	want := s.single("running", "node-a", "1")
	before, err := the.Pod(s.ctx, s.name, "running")
	s.must(err)
	s.killPlugin("node-a")
	s.wantGPUs("running", "work", want)
	after, err := the.Pod(s.ctx, s.name, "running")
	s.must(err)
	if b, a := before.Status.ContainerStatuses[0], after.Status.ContainerStatuses[0]; a.ContainerID != b.ContainerID {
		t.Errorf("the container was replaced: %s, then %s", b.ContainerID, a.ContainerID)
	}
	s.deletePod("running")
	s.wantNothingLeft("node-a")
}

// Field case 1: after a reboot the CDI specs are gone and the boot ID is new; the pod comes back with its GPU.
func TestFieldCase01_RebootPreparesAgain(t *testing.T) {
	s := newSpace(t)
	want := s.single("reboot", "node-b", "6")
	boot := s.on("node-b", "cat /proc/sys/kernel/random/boot_id")
	s.must(the.Node(s.ctx, "reboot", "node-b"))
	if now := s.on("node-b", "cat /proc/sys/kernel/random/boot_id"); now == boot {
		t.Fatalf("the boot ID is still %s", boot)
	}
	s.waitPlugin("node-b", 0)
	s.must(the.Until(s.ctx, patience, "the container to run again", func(ctx context.Context) (bool, error) {
		p, err := the.Pod(ctx, s.name, "reboot")
		return err == nil && cluster.Running(p) && p.Status.ContainerStatuses[0].RestartCount > 0, err
	}))
	s.wantGPUs("reboot", "work", want)
	s.deletePod("reboot")
	s.wantNothingLeft("node-b")
}

// Field case 13b: the CDI spec is deleted under a running pod; its container's restart brings it back.
func TestFieldCase13b_DeletedSpecComesBack(t *testing.T) {
	s := newSpace(t)
	mortal := container("work", uses("gpu"))
	mortal.Command = []string{"sh", "-c", "while [ ! -e /tmp/end ]; do sleep 0.2; done"}
	s.claim("restarted", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1, onIndex("2"))}))
	s.run(withClaims(pod("restarted", "node-a", mortal), map[string]string{"gpu": "restarted"}))
	want := nodesOf(s.allocated("restarted"))
	uid := s.claimUID("restarted")
	specs := s.on("node-a", "ls "+cdiDir+" | grep "+uid)
	s.on("node-a", "rm -f "+cdiDir+"/*"+uid+"*")
	s.freshPlugin("node-a")
	s.must(the.Until(s.ctx, patience, "the CDI specs to be back", func(ctx context.Context) (bool, error) {
		out, err := the.NodeExec(ctx, "node-a", "sh", "-c", "ls "+cdiDir+" | grep "+uid+" || true")
		return strings.TrimSpace(out) == specs, err
	}))
	s.exec("restarted", "touch", "/tmp/end")
	s.must(the.Until(s.ctx, patience, "the container to run again", func(ctx context.Context) (bool, error) {
		p, err := the.Pod(ctx, s.name, "restarted")
		return err == nil && cluster.Running(p) && p.Status.ContainerStatuses[0].RestartCount > 0, err
	}))
	s.wantGPUs("restarted", "work", want)
}

func (s *space) claimUID(name string) string {
	s.Helper()
	c, err := the.Client.ResourceV1().ResourceClaims(s.name).Get(s.ctx, name, metav1.GetOptions{})
	s.must(err)
	return string(c.UID)
}

// Field case 5: a damaged checkpoint is moved aside and said aloud; the pod's claim is rebuilt from the API, so that
// its GPU stays its own, and the pod can end.
func TestFieldCase05_CorruptCheckpoint(t *testing.T) {
	s := newSpace(t)
	want := s.single("corrupt", "node-a", "4")
	s.on("node-a", "for f in "+claimsDir+"/*"+s.claimUID("corrupt")+"*; do echo damage > $f; done")
	s.freshPlugin("node-a")
	s.must(the.Until(s.ctx, patience, "an Event about the damage", func(ctx context.Context) (bool, error) {
		return s.nodeEvent(ctx, "node-a", "The checkpoint record of claim UID "+s.claimUID("corrupt")+" is damaged")
	}))
	s.wantGPUs("corrupt", "work", want)
	s.must(the.Until(s.ctx, patience, "the record to be rebuilt", func(ctx context.Context) (bool, error) {
		out, err := the.NodeExec(ctx, "node-a", "sh", "-c", "grep -l "+s.claimUID("corrupt")+" "+claimsDir+"/* 2>/dev/null || true")
		return strings.TrimSpace(out) != "", err
	}))
	s.deletePod("corrupt")
	s.on("node-a", "rm -rf "+claimsDir+"/corrupt")
	s.wantNothingLeft("node-a")
}

// nodeEvent looks for an Event on the node, or on its plugin pod, whose message has the words.
func (s *space) nodeEvent(ctx context.Context, node, words string) (bool, error) {
	all, err := the.Client.CoreV1().Events(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(all.Items, func(e corev1.Event) bool {
		about := e.InvolvedObject.Name == node || strings.HasPrefix(e.InvolvedObject.Name, "switchyard-")
		return about && strings.Contains(e.Message, words)
	}), nil
}

// Field case 3: the claim is deleted while the plugin is down. The entry does not pin the GPU for ever.
func TestFieldCase03_ClaimDeletedWhileThePluginIsDown(t *testing.T) {
	s := newSpace(t)
	s.single("orphan", "node-a", "5")
	s.must(the.StopPlugins(s.ctx))
	restarted := false
	s.Cleanup(func() {
		if !restarted {
			_ = the.StartPlugins(context.Background())
		}
	})
	// The kubelet cannot unprepare without the plugin, so the pod is removed by force; then the claim can go.
	s.must(the.Client.CoreV1().Pods(s.name).Delete(s.ctx, "orphan", metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0)}))
	s.must(the.Client.ResourceV1().ResourceClaims(s.name).Delete(s.ctx, "orphan", metav1.DeleteOptions{}))
	s.must(the.Until(s.ctx, patience, "the claim to be gone", func(ctx context.Context) (bool, error) {
		_, err := the.Client.ResourceV1().ResourceClaims(s.name).Get(ctx, "orphan", metav1.GetOptions{})
		return apierrors.IsNotFound(err), ignoreNotFound(err)
	}))
	if left, err := leftovers(s.ctx, "node-a"); err != nil || left == "" {
		t.Fatalf("the plugin is down, and yet nothing of the claim is left on the node (%v): the test shows nothing", err)
	}
	s.must(the.StartPlugins(s.ctx))
	restarted = true
	s.waitPlugin("node-a", 0)
	s.wantNothingLeft("node-a")
	s.wantGPUsOfNext("next", "node-a", "5")
}

// Field case 9: the same device arrives in two claims. The scheduler does not do that, so the test writes the second
// allocation itself; the plugin is the last line of defence.
func TestFieldCase09_SameDeviceInTwoClaims(t *testing.T) {
	s := newSpace(t)
	want := s.single("holder", "node-a", "3")
	holder, err := the.Client.ResourceV1().ResourceClaims(s.name).Get(s.ctx, "holder", metav1.GetOptions{})
	s.must(err)

	s.claim("thief", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}))
	thief := withClaims(pod("thief", "", container("work", uses("gpu"))), map[string]string{"gpu": "thief"})
	thief.Spec.SchedulerName = "nobody"
	created := s.create(thief)
	stolen, err := the.Client.ResourceV1().ResourceClaims(s.name).Get(s.ctx, "thief", metav1.GetOptions{})
	s.must(err)
	stolen.Status.Allocation = holder.Status.Allocation.DeepCopy()
	stolen.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: created.Name, UID: created.UID}}
	_, err = the.Client.ResourceV1().ResourceClaims(s.name).UpdateStatus(s.ctx, stolen, metav1.UpdateOptions{})
	s.must(err)
	s.must(the.Client.CoreV1().Pods(s.name).Bind(s.ctx, &corev1.Binding{
		ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Target: corev1.ObjectReference{Kind: "Node", Name: "node-a"},
	}, metav1.CreateOptions{}))

	s.eventually("Pod", "thief", "holder", s.allocated("holder")[0].device.Name)
	p, err := the.Pod(s.ctx, s.name, "thief")
	s.must(err)
	if p.Status.Phase != corev1.PodPending {
		t.Errorf("the second pod is %s, want Pending", p.Status.Phase)
	}
	s.wantGPUs("holder", "work", want)
	// As soon as the holder is gone, the second claim may have the device.
	s.deletePod("holder")
	s.touch("thief")
	s.must(the.WaitPodRunning(s.ctx, s.name, "thief", patience))
}

// Fifty pods come and go on both nodes; afterwards nothing of them is left.
func TestChurnLeavesNothingBehind(t *testing.T) {
	s := newSpace(t)
	mounts := map[string]string{}
	for _, node := range []string{"node-a", "node-b"} {
		s.waitPlugin(node, 0)
		s.wantNothingLeft(node)
		mounts[node] = s.on(node, "grep -c /var/lib/kubelet/pods /proc/mounts || true")
	}
	s.template("one", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}))
	const total, width = 50, 12
	names := make([]string, total)
	for i := range names {
		names[i] = fmt.Sprintf("churn-%d", i)
		if i >= width {
			s.must(the.WaitPodRunning(s.ctx, s.name, names[i-width], patience))
			s.must(the.Client.CoreV1().Pods(s.name).Delete(s.ctx, names[i-width], metav1.DeleteOptions{}))
		}
		s.create(fromTemplate(pod(names[i], "", container("work", uses("gpu"))), "gpu", "one"))
	}
	for _, name := range names[total-width:] {
		s.must(the.WaitPodRunning(s.ctx, s.name, name, patience))
	}
	s.clear()
	for _, node := range []string{"node-a", "node-b"} {
		s.wantNothingLeft(node)
		s.must(the.Until(s.ctx, patience, "the pods' mounts on "+node+" to be gone", func(context.Context) (bool, error) {
			if now := s.on(node, "grep -c /var/lib/kubelet/pods /proc/mounts || true"); now != mounts[node] {
				return false, fmt.Errorf("there are %s, %s were there before", now, mounts[node])
			}
			return true, nil
		}))
		if sockets := s.on(node, "ls /var/lib/kubelet/plugins_registry | wc -l"); sockets != "1" {
			t.Errorf("%s has %s registration sockets, want the one of the running plugin", node, sockets)
		}
	}
}

// A rolling update while pods come and go: no pod has to wait for a prepare that nobody serves.
func TestFieldCase08_RollingUpdateWhilePodsComeAndGo(t *testing.T) {
	s := newSpace(t)
	s.template("one", claimSpec([]resourceapi.DeviceRequest{request("gpu", 1)}))
	s.must(the.RestartPlugins(s.ctx))
	rolled := make(chan error, 1)
	go func() { rolled <- the.WaitPlugins(s.ctx, patience) }()
	rounds := 0
	for updating := true; updating; rounds++ {
		select {
		case err := <-rolled:
			s.must(err)
			updating = false // and one more round with the new plugin alone
		default:
		}
		name := fmt.Sprintf("roll-%d", rounds)
		s.run(fromTemplate(pod(name, "", container("work", uses("gpu"))), "gpu", "one"))
		s.wantGPUs(name, "work", nodesOf(s.allocated(s.claimOf(name, "gpu"))))
		for _, e := range s.events(name) {
			if strings.Contains(e.Reason, "FailedPrepareDynamicResources") {
				t.Errorf("pod %s: %s: %s", name, e.Reason, e.Message)
			}
		}
		s.deletePod(name)
	}
	t.Logf("%d pods came and went", rounds)
	for _, node := range []string{"node-a", "node-b"} {
		s.wantNothingLeft(node)
	}
}

func (s *space) events(pod string) []corev1.Event {
	s.Helper()
	events, err := the.Events(s.ctx, s.name, "Pod", pod)
	s.must(err)
	return events
}
