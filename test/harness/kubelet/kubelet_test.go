// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubelet

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
)

const driver = "gpu.example.com"

// fakeDriver prepares every claim with a device that has the instance's name.
type fakeDriver struct {
	instance   string
	prepareErr error // for every claim
	callErr    error
}

func (d fakeDriver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult)
	for _, claim := range claims {
		results[claim.UID] = kubeletplugin.PrepareResult{
			Err:     d.prepareErr,
			Devices: []kubeletplugin.Device{{Requests: []string{"r"}, PoolName: "pool", DeviceName: d.instance}},
		}
	}
	return results, d.callErr
}

func (d fakeDriver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error)
	for _, claim := range claims {
		results[claim.UID] = d.prepareErr
	}
	return results, d.callErr
}

func (fakeDriver) HandleError(context.Context, error, string) {}

func (fakeDriver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

type node struct {
	plugins, registry string
	claim             *resourceapi.ResourceClaim
}

func newNode(t *testing.T) node {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "sy") // t.TempDir is too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	n := node{plugins: filepath.Join(dir, "p"), registry: filepath.Join(dir, "r"), claim: &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "claim", UID: "1"},
		Status:     resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{}},
	}}
	if err := errors.Join(os.Mkdir(n.plugins, 0o755), os.Mkdir(n.registry, 0o755)); err != nil {
		t.Fatal(err)
	}
	return n
}

func (n node) kubelet(t *testing.T) *Kubelet {
	t.Helper()
	k, err := Start(driver, n.registry)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(k.Stop)
	return k
}

func (n node) plugin(t *testing.T, name string, d fakeDriver, options ...kubeletplugin.Option) *kubeletplugin.Helper {
	t.Helper()
	helper, err := kubeletplugin.Start(context.Background(), d, append([]kubeletplugin.Option{
		kubeletplugin.DriverName(name),
		kubeletplugin.NodeName("node"),
		kubeletplugin.KubeClient(fake.NewClientset(n.claim)),
		kubeletplugin.PluginDataDirectoryPath(n.plugins),
		kubeletplugin.RegistrarDirectoryPath(n.registry),
	}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(helper.Stop)
	return helper
}

func waitRegistered(t *testing.T, k *Kubelet, since time.Time) Registration {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	registration, err := k.WaitRegistered(ctx, since)
	if err != nil {
		t.Fatal(err)
	}
	return registration
}

func prepared(t *testing.T, k *Kubelet, n node) string {
	t.Helper()
	devices, err := k.PrepareOne(t.Context(), n.claim)
	if err != nil || len(devices) != 1 {
		t.Fatalf("PrepareOne() = %v, %v, want one device", devices, err)
	}
	return devices[0].DeviceName
}

func TestRegistersAPluginThatWasThereFirst(t *testing.T) {
	n := newNode(t)
	n.plugin(t, driver, fakeDriver{instance: "first"})
	k := n.kubelet(t)
	waitRegistered(t, k, time.Time{})
	if got := prepared(t, k, n); got != "first" {
		t.Errorf("prepared by %q", got)
	}
}

func TestCallsTheNewestOfTwoInstancesAndFallsBack(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(t)
	n.plugin(t, driver, fakeDriver{instance: "old"}, kubeletplugin.RollingUpdate("old"))
	old := waitRegistered(t, k, time.Time{})
	if got := prepared(t, k, n); got != "old" {
		t.Fatalf("prepared by %q, want the only instance", got)
	}

	newest := n.plugin(t, driver, fakeDriver{instance: "new"}, kubeletplugin.RollingUpdate("new"))
	waitRegistered(t, k, old.At.Add(1))
	// The new instance counts from the moment it is connected.
	waitFor(t, func() bool { return prepared(t, k, n) == "new" })

	newest.Stop()
	waitFor(t, func() bool { return len(k.Registrations()) == 1 })
	if got := prepared(t, k, n); got != "old" {
		t.Errorf("prepared by %q, want the instance that is left", got)
	}
}

func waitFor(t *testing.T, condition func() bool) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the condition never came true")
		}
	}
}

func TestRefusesOtherDrivers(t *testing.T) {
	n := newNode(t)
	k := n.kubelet(t)
	n.plugin(t, "other.example.com", fakeDriver{})
	waitFor(t, func() bool {
		k.mu.Lock()
		defer k.mu.Unlock()
		return k.refused != nil && strings.Contains(k.refused.Error(), "other.example.com") // not a call that took too long
	})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := k.WaitRegistered(ctx, time.Time{})
	if err == nil || !strings.Contains(err.Error(), `plugin name is "other.example.com"`) {
		t.Errorf("WaitRegistered() = %v, want it to name the other driver", err)
	}
}

func TestErrorsOfCallsAndClaims(t *testing.T) {
	for name, tc := range map[string]struct {
		driver fakeDriver
		want   string // empty: none
	}{
		"none":         {},
		"of the claim": {driver: fakeDriver{prepareErr: errors.New("device is gone")}, want: "device is gone"},
		"of the call":  {driver: fakeDriver{callErr: errors.New("disk is full")}, want: "disk is full"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.plugin(t, driver, tc.driver)
			k := n.kubelet(t)
			waitRegistered(t, k, time.Time{})
			_, prepareErr := k.PrepareOne(t.Context(), n.claim)
			unprepareErr := k.Unprepare(t.Context(), n.claim)
			for call, err := range map[string]error{"PrepareOne": prepareErr, "Unprepare": unprepareErr} {
				if tc.want == "" && err != nil || tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)) {
					t.Errorf("%s() = %v, want %q", call, err, tc.want)
				}
			}
		})
	}
}

func TestCallWithoutAPluginIsAnError(t *testing.T) {
	n := newNode(t)
	if err := n.kubelet(t).Ping(t.Context()); err == nil || !strings.Contains(err.Error(), "no plugin of "+driver) {
		t.Errorf("Ping() = %v, want that no plugin is registered", err)
	}
}
