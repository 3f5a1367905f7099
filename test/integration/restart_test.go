// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

func TestFieldCase01_Reboot(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	c := n.gpus(t, "claim", n.devices[0], n.devices[1])
	before := n.prepare(t, c)
	p.Kill()
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	n.running(t, plugin.Options{})
	if after := n.prepare(t, c); len(after) != len(before) {
		t.Errorf("CDI devices were %q and are %q after a reboot", before, after)
	} else {
		n.wantSees(t, after, 0, 1)
	}
	n.unprepare(t, c)
	n.wantNothingLeft(t)
}

func TestFieldCase02_NoPrepareComesAfterARestart(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	c := n.gpus(t, "claim", n.devices[0])
	ids := n.prepare(t, c)
	p.Kill()
	p = n.running(t, plugin.Options{})
	n.wantSees(t, ids, 0)
	metric(t, p, equal(1), "switchyard_kubelet_plugin_prepared_devices")
	n.refused(t, n.gpus(t, "other", n.devices[0]), "is prepared for claim "+n.namespace+"/claim")
	n.unprepare(t, c)
	n.wantNothingLeft(t)
}

func TestFieldCase03_ClaimDeletedWhileThePluginIsDown(t *testing.T) {
	t.Parallel() // waits for half a minute until the claims count as gone
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	gone, kept := n.gpus(t, "gone", n.devices[0]), n.gpus(t, "kept", n.devices[1])
	replaced := n.gpus(t, "replaced", n.devices[2])
	n.prepare(t, gone)
	ids := n.prepare(t, kept)
	n.prepare(t, replaced)
	p.Kill()
	for _, c := range []*resourceapi.ResourceClaim{gone, replaced} {
		if err := claim.Delete(t.Context(), cluster.Client(), c); err != nil {
			t.Fatal(err)
		}
	}
	successor := n.gpus(t, "replaced", n.devices[2]) // the same name, another UID

	p = n.running(t, plugin.Options{})
	metric(t, p, equal(2), "switchyard_kubelet_plugin_reconciled_total", "action", "unprepared")
	n.wantSees(t, n.prepare(t, n.gpus(t, "next", n.devices[0])), 0)
	n.wantSees(t, n.prepare(t, successor), 2)
	n.wantSees(t, ids, 1)
}

// pod creates a pod on the node that uses claims, in the state of a container that runs.
func (n *node) pod(t *testing.T, name string, claims ...string) *corev1.Pod {
	t.Helper()
	var entries []corev1.PodResourceClaim
	var used []corev1.ResourceClaim
	for i, claim := range claims {
		entry := fmt.Sprintf("gpus-%d", i)
		entries = append(entries, corev1.PodResourceClaim{Name: entry, ResourceClaimName: &claim})
		used = append(used, corev1.ResourceClaim{Name: entry})
	}
	pods := cluster.Client().CoreV1().Pods(n.namespace)
	n.serviceAccount(t, name)
	pod, err := pods.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PodSpec{
			NodeName:                     n.Name,
			ServiceAccountName:           name,
			AutomountServiceAccountToken: ptr.To(false),
			ResourceClaims:               entries,
			Containers: []corev1.Container{{
				Name: "main", Image: "none",
				Resources: corev1.ResourceRequirements{Claims: used},
			}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", Image: "none", ImageID: "none",
			State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}},
		}},
	}
	pod, err = pods.UpdateStatus(t.Context(), pod, metav1.UpdateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return pod
}

// serviceAccount makes a service account of the namespace, which no pod can be without.
func (n *node) serviceAccount(t *testing.T, name string) {
	t.Helper()
	if _, err := cluster.Client().CoreV1().ServiceAccounts(n.namespace).Create(t.Context(),
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func TestFieldCase05_CorruptCheckpoint(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"bytes changed": func(content []byte) []byte {
			return []byte(strings.Replace(string(content), "gpu-", "gpv-", 1))
		},
		"cut off":        func(content []byte) []byte { return content[:len(content)/2] },
		"empty":          func([]byte) []byte { return nil },
		"something else": func([]byte) []byte { return []byte("\x00\xff not a record") },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "hgx-h100")
			p := n.running(t, plugin.Options{})
			pod := n.pod(t, "pod", "used")
			used := create(t, n.claim("used").Request("gpus", n.devices[0]).ReservedFor(pod))
			intact := n.gpus(t, "intact", n.devices[1])
			ids := n.prepare(t, used)
			n.prepare(t, intact)
			p.Kill()

			record := filepath.Join(n.checkpointDir(), string(used.UID)+".json")
			content, err := os.ReadFile(record)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(record, damage(content), 0o600); err != nil {
				t.Fatal(err)
			}

			p = n.running(t, plugin.Options{})
			metric(t, p, equal(1), "switchyard_kubelet_plugin_quarantined_records")
			metric(t, p, equal(1), "switchyard_kubelet_plugin_reconciled_total", "action", "adopted")
			metric(t, p, equal(2), "switchyard_kubelet_plugin_prepared_claims")
			if moved := files(t, filepath.Join(n.checkpointDir(), "corrupt")); len(moved) != 1 {
				t.Errorf("moved aside are %q, want the one record", moved)
			}
			n.wantEvent(t, "CheckpointCorrupt", string(used.UID))

			n.wantSees(t, ids, 0) // the running pod is not disturbed
			n.refused(t, n.gpus(t, "other", n.devices[0]), "is prepared for claim "+n.namespace+"/used")
			n.refused(t, n.gpus(t, "another", n.devices[1]), "is prepared for claim "+n.namespace+"/intact")
			n.unprepare(t, used)
			n.unprepare(t, intact)
			n.wantNothingLeft(t)
		})
	}
}

// wantEvent waits for an Event on the node.
func (n *node) wantEvent(t *testing.T, reason, text string) {
	t.Helper()
	eventually(t, "there is an Event "+reason, func() error {
		events, err := cluster.Client().CoreV1().Events(metav1.NamespaceDefault).List(t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.kind=Node,involvedObject.name=" + n.Name + ",reason=" + reason,
		})
		if err != nil {
			return err
		}
		for _, event := range events.Items {
			if strings.Contains(event.Message, text) {
				return nil
			}
		}
		return fmt.Errorf("%d Events of that reason, none with %q", len(events.Items), text)
	})
}

func TestFieldCase07_UnprepareWithoutADriver(t *testing.T) {
	t.Parallel()
	for _, failure := range simulator.DriverFailures() {
		t.Run(string(failure), func(t *testing.T) {
			n := newNode(t, "hgx-h100")
			p := n.running(t, plugin.Options{})
			c := n.gpus(t, "claim", n.devices[0])
			n.prepare(t, c)
			p.Kill()
			if err := errors.Join(n.Reboot(), n.GPUs.SetDriverFailure(failure)); err != nil {
				t.Fatal(err)
			}

			p = n.start(t, plugin.Options{})
			n.unprepare(t, c)
			n.wantNothingLeft(t)
			if err := p.Healthy(t.Context()); err != nil {
				t.Errorf("the plugin counts as one to restart: %v", err)
			}
			eventually(t, "readiness tells of NVML", func() error {
				if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "discovery:") {
					return fmt.Errorf("it tells %v", err)
				}
				return nil
			})
			n.wantEvent(t, "NVMLUnavailable", "")

			if err := n.GPUs.SetDriverFailure(""); err != nil {
				t.Fatal(err)
			}
			eventually(t, "the plugin recovers by itself", func() error { return p.Ready(t.Context()) })
			n.wantDomains(t, []int{0, 1, 2, 3, 4, 5, 6, 7})
			n.wantSees(t, n.prepare(t, c), 0)
		})
	}
}

func TestNVMLIsBrokenFromTheStart(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	if err := n.GPUs.SetDriverFailure(simulator.DriverNotLoaded); err != nil {
		t.Fatal(err)
	}
	p := n.start(t, plugin.Options{})
	metric(t, p, atLeast(2), "switchyard_kubelet_plugin_discoveries_total", "result", "error")
	if got := n.published(t); len(got) != 0 {
		t.Errorf("%d devices are published", len(got))
	}
	n.refused(t, n.gpus(t, "claim", n.devices[0]), n.devices[0])
	if err := n.GPUs.SetDriverFailure(""); err != nil {
		t.Fatal(err)
	}
	n.wantDomains(t, []int{0, 1, 2, 3, 4, 5, 6, 7})
	eventually(t, "the plugin is ready", func() error { return p.Ready(t.Context()) })
}

func TestFieldCase08_StaleSockets(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	old := n.running(t, plugin.Options{PodUID: "6b1c9a30-3f0e-4a3b-9d1e-000000000001"})
	stale := n.kubelet.Registrations()
	c := n.gpus(t, "claim", n.devices[0])
	n.prepare(t, c)
	old.Kill() // its sockets stay

	n.running(t, plugin.Options{PodUID: "6b1c9a30-3f0e-4a3b-9d1e-000000000002"})
	n.unprepare(t, c)
	for _, socket := range []string{stale[0].Socket, stale[0].Endpoint} {
		if _, err := os.Lstat(socket); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("socket %s of the killed plugin is still there (%v)", socket, err)
		}
	}
	if left := files(t, n.RegistryDir()); len(left) != 1 {
		t.Errorf("the registry holds %q, want one socket", left)
	}
	n.wantNothingLeft(t)
}

func TestShutdownRemovesTheSockets(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{PodUID: "6b1c9a30-3f0e-4a3b-9d1e-000000000001"})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := p.Stop(ctx); err != nil {
		t.Fatal(err)
	}
	if left := files(t, n.RegistryDir()); len(left) > 0 {
		t.Errorf("the registry holds %q", left)
	}
	for _, name := range files(t, n.PluginDir()) {
		if strings.HasSuffix(name, ".sock") {
			t.Errorf("socket %s is still there", name)
		}
	}
	if got := len(n.published(t)); got != len(n.devices) {
		t.Errorf("%d devices are published after a shutdown, want all: the next plugin continues", got)
	}
}

// Two plugins overlap while claims come and go: no call may fail.
func TestFieldCase08_RollingUpdate(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	old := n.running(t, plugin.Options{PodUID: "6b1c9a30-3f0e-4a3b-9d1e-000000000001"})
	before := n.versions(t)
	held := n.gpus(t, "held", n.devices[7])
	ids := n.prepare(t, held)

	ctx, stop := context.WithCancel(t.Context())
	var rounds atomic.Int64
	failed := make(chan error, len(n.devices))
	for i := range 4 {
		c := n.gpus(t, fmt.Sprintf("claim-%d", i), n.devices[i])
		go func() {
			for ctx.Err() == nil {
				if _, err := n.kubelet.PrepareOne(t.Context(), c); err != nil {
					failed <- fmt.Errorf("prepare claim %s: %w", c.Name, err)
					return
				}
				if err := n.kubelet.Unprepare(t.Context(), c); err != nil {
					failed <- fmt.Errorf("unprepare claim %s: %w", c.Name, err)
					return
				}
				rounds.Add(1)
			}
			failed <- nil
		}()
	}
	progress := func() {
		now := rounds.Load()
		eventually(t, "claims come and go", func() error {
			if rounds.Load() < now+20 {
				return errors.New("they do not")
			}
			return nil
		})
	}

	progress()
	next := n.running(t, plugin.Options{PodUID: "6b1c9a30-3f0e-4a3b-9d1e-000000000002"})
	progress()
	n.refused(t, n.gpus(t, "other", n.devices[7]), "is prepared for claim "+n.namespace+"/held") // by the other process
	timeout, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if err := old.Stop(timeout); err != nil {
		t.Fatal(err)
	}
	progress()
	stop()
	for range 4 {
		if err := <-failed; err != nil {
			t.Error(err)
		}
	}

	n.wantSees(t, ids, 7)
	n.unprepare(t, held)
	n.wantNothingLeft(t)
	if got := n.kubelet.Registrations(); len(got) != 1 {
		t.Errorf("%d plugins are registered, want the new one", len(got))
	}
	if after := n.versions(t); fmt.Sprint(before) != fmt.Sprint(after) {
		t.Errorf("slices were %v and are %v after the update", before, after)
	}
	if err := next.Err(); err != nil {
		t.Error(err)
	}
}

func TestFieldCase13b_CDISpecDeletedUnderARunningPod(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{Args: []string{"--reconcile-interval=1h"}})
	c := n.gpus(t, "claim", n.devices[0])
	ids := n.prepare(t, c)
	for _, name := range files(t, n.CDIDir()) {
		if err := os.Remove(filepath.Join(n.CDIDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := n.container(ids...); err == nil {
		t.Fatal("the CDI devices resolve without a spec")
	}
	n.prepare(t, c)
	n.wantSees(t, ids, 0)
}

// The reconciler writes it too, for a container that restarts without a Prepare.
func TestFieldCase13b_CDISpecIsWrittenWithoutAPrepare(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	ids := n.prepare(t, n.gpus(t, "claim", n.devices[0]))
	for _, name := range files(t, n.CDIDir()) {
		if strings.Contains(name, "metadata") {
			continue // the helper's: known only from a Prepare
		}
		if err := os.Remove(filepath.Join(n.CDIDir(), name)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the CDI devices resolve again", func() error {
		_, err := n.container(ids[:1]...)
		return err
	})
}

// Whatever the step at which the plugin dies, the claim can be prepared and unprepared afterwards, its
// devices are nobody else's meanwhile, and nothing is left behind.
func TestFieldCase13c_KilledAtEveryStep(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		point string
		// recorded says that the claim holds its device when the plugin is dead.
		recorded bool
	}{
		{point: "prepare:before-checkpoint", recorded: false},
		{point: "prepare:after-checkpoint", recorded: true},
		{point: "prepare:after-cdi", recorded: true},
		{point: "unprepare:before-cdi-removal", recorded: true},
		{point: "unprepare:after-cdi-removal", recorded: true},
		{point: "unprepare:after-record-removal", recorded: false},
	} {
		t.Run(strings.ReplaceAll(tc.point, ":", "_"), func(t *testing.T) {
			n := newNode(t, "hgx-h100")
			p := n.running(t, plugin.Options{})
			c, other := n.gpus(t, "claim", n.devices[0]), n.gpus(t, "other", n.devices[0])

			call := func() error { _, err := n.kubelet.PrepareOne(t.Context(), c); return err }
			if strings.HasPrefix(tc.point, "unprepare:") {
				n.prepare(t, c)
				call = func() error { return n.kubelet.Unprepare(t.Context(), c) }
			}
			n.arm(t, tc.point)
			if err := call(); err == nil {
				t.Fatal("the call succeeded, although the plugin was to die")
			}
			select {
			case <-p.Done():
			case <-time.After(patience):
				t.Fatal("the plugin did not die")
			}

			n.running(t, plugin.Options{})
			if tc.recorded {
				n.refused(t, other, "is prepared for claim "+n.namespace+"/claim")
			} else {
				n.wantSees(t, n.prepare(t, other), 0)
				n.unprepare(t, other)
			}
			n.wantSees(t, n.prepare(t, c), 0)
			n.unprepare(t, c)
			n.wantNothingLeft(t)
		})
	}
}

// A pod that is deleted while the plugin is dead gets its Unprepare later; one that never comes is
// made up for once the claim is gone.
func TestFieldCase13c_KilledAndTheClaimIsGone(t *testing.T) {
	t.Parallel() // waits for half a minute until the claim counts as gone
	for _, point := range []string{"prepare:after-checkpoint", "prepare:after-cdi", "unprepare:after-cdi-removal"} {
		t.Run(strings.ReplaceAll(point, ":", "_"), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, "hgx-h100")
			p := n.running(t, plugin.Options{})
			c := n.gpus(t, "claim", n.devices[0])
			if strings.HasPrefix(point, "unprepare:") {
				n.prepare(t, c)
				n.arm(t, point)
				_ = n.kubelet.Unprepare(t.Context(), c) // fails: the plugin dies
			} else {
				n.arm(t, point)
				_, _ = n.kubelet.PrepareOne(t.Context(), c) // fails: the plugin dies
			}
			<-p.Done()
			if err := claim.Delete(t.Context(), cluster.Client(), c); err != nil {
				t.Fatal(err)
			}
			n.running(t, plugin.Options{})
			eventually(t, "nothing is left", func() error {
				if left := n.leftovers(t); len(left) > 0 {
					return fmt.Errorf("there are %q", left)
				}
				return nil
			})
		})
	}
}

// A write that is killed half way leaves ".<file>.<random>.tmp" beside the file.
func TestFieldCase13c_TemporaryFilesAreRemoved(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	c := n.gpus(t, "claim", n.devices[0])
	n.prepare(t, c)
	var half []string
	for _, dir := range []string{n.CDIDir(), n.checkpointDir()} {
		for _, name := range files(t, dir) {
			if !strings.HasPrefix(name, ".") && !strings.Contains(name, "metadata") {
				half = append(half, filepath.Join(dir, "."+name+".123456.tmp"))
			}
		}
	}
	if len(half) != 2 {
		t.Fatalf("there are the files %q, want a CDI spec and a record", half)
	}
	n.unprepare(t, c)
	p.Kill()
	foreign := filepath.Join(n.CDIDir(), ".vendor.example.com-gpu.json.123456.tmp") // to stay
	for _, path := range append(half, foreign) {
		if err := os.WriteFile(path, []byte("{"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	n.running(t, plugin.Options{})
	if left := n.leftovers(t); len(left) != 1 || left[0] != filepath.Base(foreign) {
		t.Errorf("left are %q, want only the other vendor's file", left)
	}
}

func TestFieldCase24_RuntimeWithoutCDI(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	object, err := cluster.Client().CoreV1().Nodes().Get(t.Context(), n.Name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	object.Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.6.36"
	if _, err := cluster.Client().CoreV1().Nodes().UpdateStatus(t.Context(), object, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	p := n.start(t, plugin.Options{})
	eventually(t, "readiness tells of the runtime", func() error {
		if err := p.Ready(t.Context()); err == nil || !strings.Contains(err.Error(), "containerd 1.7") {
			return fmt.Errorf("it tells %v", err)
		}
		return nil
	})
	n.refused(t, n.gpus(t, "claim", n.devices[0]), "cannot inject CDI devices", "upgrade")
	n.wantEvent(t, "PreflightFailed", "containerd")
}
