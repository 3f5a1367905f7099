// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
	"github.com/switchyard-dev/switchyard/test/harness/kubelet"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// patience is how long anything may take that happens by itself. It is long because other programs
// may keep the machine busy; what is expected to be fast is measured by the benchmarks.
const patience = time.Minute

// node is a simulated GPU node that the API server knows, with a kubelet but without a plugin yet.
type node struct {
	*plugin.Node
	kubelet   *kubelet.Kubelet
	namespace string // for the test's claims; allows admin access
	token     string // of the plugin's pod
	devices   []string
}

var nodes atomic.Int64

func newNode(t *testing.T, profile string) *node {
	t.Helper()
	return newNamedNode(t, fmt.Sprintf("node-%d", nodes.Add(1)), profile)
}

func newNamedNode(t *testing.T, name, profile string) *node {
	t.Helper()
	machine, err := plugin.NewNode(name, profile)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the plugin's log and files are in %s", machine.Dir)
			return
		}
		if err := machine.Remove(); err != nil {
			t.Error(err)
		}
	})
	n := &node{Node: machine, namespace: dns(t.Name())}
	n.namespace = strings.TrimRight(n.namespace[:min(len(n.namespace), 50)], "-") + fmt.Sprintf("-%d", nodes.Add(1))
	if n.devices, err = machine.DeviceNames(); err != nil {
		t.Fatal(err)
	}
	if err := n.join(t); err != nil {
		t.Fatal(err)
	}
	if n.kubelet, err = kubelet.Start(v1alpha1.DriverName, n.RegistryDir()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.kubelet.Stop)
	return n
}

// join makes the node known to the API server, with a pod of the plugin's, and makes the namespace.
func (n *node) join(t *testing.T) (err error) {
	t.Cleanup(func() {
		if err := cluster.RemoveNode(context.Background(), n.Name); err != nil { // the test's own context has ended
			t.Error(err)
		}
	})
	if n.token, err = cluster.JoinNode(t.Context(), n.Name, controlplane.RuntimeVersion); err != nil {
		return err
	}
	if err := cluster.WriteKubeconfig(n.Kubeconfig(), n.token); err != nil {
		return err
	}
	return cluster.CreateNamespace(t.Context(), n.namespace)
}

// start runs the plugin and waits until the kubelet has registered it.
func (n *node) start(t *testing.T, options plugin.Options) *plugin.Plugin {
	t.Helper()
	if options.Binary == "" {
		var err error
		if options.Binary, err = program(); err != nil {
			t.Fatal(err)
		}
	}
	options.Args = append([]string{"--discovery-interval=1s", "--reconcile-interval=1s", "--orphan-grace=5s", "--device-wait=500ms", "-v=4"}, options.Args...)
	p, err := n.Start(options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	ctx, cancel = p.While(ctx)
	defer cancel()
	if _, err := n.kubelet.WaitRegistered(ctx, p.Started()); err != nil {
		t.Fatal(err)
	}
	return p
}

// running runs the plugin and waits until it has published the node's GPUs and is ready.
func (n *node) running(t *testing.T, options plugin.Options) *plugin.Plugin {
	t.Helper()
	p := n.start(t, options)
	eventually(t, "the plugin is ready", func() error { return p.Ready(t.Context()) })
	eventually(t, "the GPUs are published", func() error {
		if got := len(n.published(t)); got != len(n.devices) {
			return fmt.Errorf("%d devices are published, want %d", got, len(n.devices))
		}
		return nil
	})
	return p
}

// slices are the node's ResourceSlices as the API server lists them, in order of their names.
func (n *node) slices(t *testing.T) []resourceapi.ResourceSlice {
	t.Helper()
	list, err := cluster.Client().ResourceV1().ResourceSlices().List(t.Context(), controlplane.SlicesOf(n.Name))
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// published are the devices of the node's slices, in order.
func (n *node) published(t *testing.T) []resourceapi.Device {
	t.Helper()
	var devices []resourceapi.Device
	for _, slice := range n.slices(t) {
		devices = append(devices, slice.Spec.Devices...)
	}
	return devices
}

func (n *node) adminCreateSlice(t *testing.T, slice *resourceapi.ResourceSlice) *resourceapi.ResourceSlice {
	t.Helper()
	created, err := cluster.Client().ResourceV1().ResourceSlices().Create(t.Context(), slice.DeepCopy(), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Gone already where the test deleted it.
		_ = cluster.Client().ResourceV1().ResourceSlices().Delete(context.Background(), created.Name, metav1.DeleteOptions{})
	})
	return created
}

// claim begins a claim on the node.
func (n *node) claim(name string) *claim.Builder { return claim.New(n.namespace, name, n.Name) }

// create writes the claim to the API server.
func create(t *testing.T, b *claim.Builder) *resourceapi.ResourceClaim {
	t.Helper()
	created, err := b.Create(t.Context(), cluster.Client())
	if err != nil {
		t.Fatal(err)
	}
	return created
}

// gpus creates a claim for the devices.
func (n *node) gpus(t *testing.T, name string, devices ...string) *resourceapi.ResourceClaim {
	t.Helper()
	return create(t, n.claim(name).Request("gpus", devices...))
}

// prepare prepares a claim and returns the CDI device IDs that the kubelet got.
func (n *node) prepare(t *testing.T, c *resourceapi.ResourceClaim) []string {
	t.Helper()
	devices, err := n.kubelet.PrepareOne(t.Context(), c)
	if err != nil {
		t.Fatalf("prepare claim %s: %v", c.Name, err)
	}
	var ids []string
	for _, device := range devices {
		ids = append(ids, device.CdiDeviceIds...)
	}
	return ids
}

func (n *node) unprepare(t *testing.T, c *resourceapi.ResourceClaim) {
	t.Helper()
	if err := n.kubelet.Unprepare(t.Context(), c); err != nil {
		t.Fatalf("unprepare claim %s: %v", c.Name, err)
	}
}

// refused prepares a claim that cannot be prepared and returns what the kubelet was told.
func (n *node) refused(t *testing.T, c *resourceapi.ResourceClaim, want ...string) {
	t.Helper()
	_, err := n.kubelet.PrepareOne(t.Context(), c)
	if err == nil {
		t.Fatalf("prepare claim %s: no error, want one with %q", c.Name, want)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("prepare claim %s: %q, want it to contain %q", c.Name, err, part)
		}
	}
}

// eventually waits until check returns nil.
func eventually(t *testing.T, what string, check func() error) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v until %s: %v", patience, what, err)
		}
	}
}

// metric waits until a metric has a value that ok accepts.
func metric(t *testing.T, p *plugin.Plugin, ok func(float64) bool, name string, labels ...string) {
	t.Helper()
	eventually(t, "metric "+name+" is as wanted", func() error {
		metrics, err := p.Metrics(t.Context())
		if err != nil {
			return err
		}
		if value := metrics.Value(name, labels...); !ok(value) {
			return fmt.Errorf("%s%q is %v", name, labels, value)
		}
		return nil
	})
}

func equal(want float64) func(float64) bool { return func(got float64) bool { return got == want } }

func atLeast(want float64) func(float64) bool { return func(got float64) bool { return got >= want } }

// files lists what is in a directory, without directories; nothing for one that is not there.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	var names []string
	for _, entry := range entries {
		if !entry.IsDir() {
			names = append(names, entry.Name())
		}
	}
	return names
}
