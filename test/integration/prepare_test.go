// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

func TestContainersGetTheGPUsOfTheirRequests(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	for name, tc := range map[string]struct {
		claim func(b *claim.Builder) *claim.Builder
		want  map[string][]int // positions by request
	}{
		"two requests of one claim": {
			claim: func(b *claim.Builder) *claim.Builder {
				return b.Request("one", n.devices[3]).Request("two", n.devices[0], n.devices[5])
			},
			want: map[string][]int{"one": {3}, "two": {0, 5}},
		},
		"count 4": {
			claim: func(b *claim.Builder) *claim.Builder { return b.Request("gpus", n.devices[4:]...) },
			want:  map[string][]int{"gpus": {4, 5, 6, 7}},
		},
		"all": {
			claim: func(b *claim.Builder) *claim.Builder { return b.All("gpus", n.devices...) },
			want:  map[string][]int{"gpus": {0, 1, 2, 3, 4, 5, 6, 7}},
		},
		"the chosen one of firstAvailable goes by the parent's name": {
			claim: func(b *claim.Builder) *claim.Builder {
				return b.FirstAvailable("gpu", []string{"large", "small"}, "small", n.devices[6])
			},
			want: map[string][]int{"gpu": {6}},
		},
		"admin access": {
			claim: func(b *claim.Builder) *claim.Builder { return b.Admin("monitor", n.devices[1], n.devices[2]) },
			want:  map[string][]int{"monitor": {1, 2}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := create(t, tc.claim(n.claim(dns(name))))
			devices, err := n.kubelet.PrepareOne(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			for request, positions := range tc.want {
				n.wantSees(t, byRequest(devices, request), positions...)
			}
			n.unprepare(t, c)
			n.wantNothingLeft(t)
		})
	}
}

// dns makes a name of an object from that of a test.
func dns(name string) string {
	return regexp.MustCompile(`[^a-z0-9]+`).ReplaceAllString(strings.ToLower(name), "-")
}

func TestSeveralClaimsInOneCallFailOneByOne(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	good, other := n.gpus(t, "good", n.devices[0]), n.gpus(t, "other", n.devices[1])
	bad := n.gpus(t, "bad", "gpu-of-nobody")
	results, err := n.kubelet.Prepare(t.Context(), good, bad, other)
	if err != nil {
		t.Fatal(err)
	}
	if err := results[bad.UID].Err; err == nil || !strings.Contains(err.Error(), "gpu-of-nobody does not exist on this node") {
		t.Errorf("the bad claim's error is %v", err)
	}
	for position, c := range []*resourceapi.ResourceClaim{good, other} {
		if result := results[c.UID]; result.Err != nil {
			t.Errorf("claim %s failed: %v", c.Name, result.Err)
		} else {
			n.wantSees(t, byRequest(result.Devices, "gpus"), position)
		}
	}
	if err := n.kubelet.Unprepare(t.Context(), good, bad, other); err != nil {
		t.Error(err)
	}
	n.wantNothingLeft(t)
}

func TestPrepareAgainGivesTheSameAnswer(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	c := n.gpus(t, "claim", n.devices[2], n.devices[3])
	first := n.prepare(t, c)
	if second := n.prepare(t, c); !slices.Equal(first, second) {
		t.Errorf("first %q, then %q", first, second)
	}
}

func TestUnprepareOfAClaimThatIsNotPreparedSucceeds(t *testing.T) {
	t.Parallel()
	n := newNode(t, "t4")
	n.running(t, plugin.Options{})
	c := n.gpus(t, "claim", n.devices[0])
	n.unprepare(t, c)
	n.prepare(t, c)
	n.unprepare(t, c)
	n.unprepare(t, c)
	n.wantNothingLeft(t)
}

func TestFieldCase09_SameDeviceInTwoClaims(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	first := n.gpus(t, "first", n.devices[0], n.devices[1])
	second := n.gpus(t, "second", n.devices[1], n.devices[2])
	ids := n.prepare(t, first)
	n.refused(t, second, n.devices[1], "is prepared for claim "+n.namespace+"/first")
	n.wantSees(t, ids, 0, 1) // the first is not disturbed

	// The refused claim holds nothing, not even the device that was free.
	free := n.gpus(t, "free", n.devices[2])
	n.wantSees(t, n.prepare(t, free), 2)
	n.unprepare(t, free)

	// Admin access comes on top.
	n.wantSees(t, n.prepare(t, create(t, n.claim("monitor").Admin("gpu", n.devices[1]))), 1)

	n.unprepare(t, first)
	n.wantSees(t, n.prepare(t, second), 1, 2)
}

func TestFieldCase11_ConfigThatNamesAParentRequest(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	c := create(t, n.claim("claim").
		FirstAvailable("gpu", []string{"large", "small"}, "small", n.devices[0]).
		Config(`{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharin":{}}`, "gpu"))
	n.refused(t, c, "gpu/small", "sharin")
	n.wantNothingLeft(t)
}

func TestFieldCase12_UnknownFieldInOpaqueConfig(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	for name, tc := range map[string]struct {
		parameters string
		want       []string
	}{
		"unknown field":     {`{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","replicas":2}`, []string{"replicas"}},
		"unknown kind":      {`{"apiVersion":"switchyard.dev/v1alpha1","kind":"GpuConfig"}`, []string{"kind", "GPUConfig"}},
		"other API version": {`{"apiVersion":"switchyard.dev/v9","kind":"GPUConfig"}`, []string{"switchyard.dev/v9"}},
		"for partitions":    {`{"apiVersion":"switchyard.dev/v1alpha1","kind":"MIGConfig"}`, []string{"MIGConfig", "whole GPU"}},
	} {
		t.Run(name, func(t *testing.T) {
			c := create(t, n.claim(dns(name)).Request("gpu", n.devices[0]).Config(tc.parameters))
			n.refused(t, c, append(tc.want, "request gpu")...)
			n.wantNothingLeft(t)
		})
	}
}

// What wins is seen by which configuration refuses the claim.
func TestConfigOfTheClaimGoesBeforeThatOfTheClass(t *testing.T) {
	t.Parallel()
	const (
		plain   = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig"}`
		sharing = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"MPS"}}`
	)
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})

	overridden := create(t, n.claim("overridden").Request("gpu", n.devices[0]).ClassConfig(sharing).Config(plain))
	n.wantSees(t, n.prepare(t, overridden), 0)
	overriding := create(t, n.claim("overriding").Request("gpu", n.devices[1]).ClassConfig(plain).Config(sharing))
	n.refused(t, overriding, "no MPS supervisor runs on this node")
	elsewhere := create(t, n.claim("elsewhere").Request("gpu", n.devices[1]).Request("other", n.devices[2]).
		ClassConfig(plain).Config(sharing, "other"))
	n.refused(t, elsewhere, "requests other and gpu", "sharing.mps")
}

func TestFieldCase13_TwoSharesOfOneDevice(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{Args: n.configured(t, timeSliced)})
	c := create(t, n.claim("claim").Shared("gpu", n.devices[0],
		"6b1c9a30-3f0e-4a3b-9d1e-111111111111", "6b1c9a30-3f0e-4a3b-9d1e-222222222222"))
	devices, err := n.kubelet.PrepareOne(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) != 2 {
		t.Fatalf("got %d devices, want 2 shares", len(devices))
	}
	ids := map[string]bool{}
	for i, device := range devices {
		if want := string(*c.Status.Allocation.Devices.Results[i].ShareID); device.GetShareId() != want {
			t.Errorf("device %d has share ID %q, want %q", i, device.GetShareId(), want)
		}
		n.wantSees(t, device.CdiDeviceIds[:1], 0)
		ids[device.CdiDeviceIds[0]] = true
	}
	if len(ids) != 2 {
		t.Errorf("the shares have one CDI device ID: %v", ids)
	}
}

func TestPrepareRefusesDevicesThatNobodyCouldUse(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	healthy := n.gpus(t, "healthy", n.devices[0])

	t.Run("a GPU that is lost", func(t *testing.T) {
		if err := n.GPUs.LoseGPU(1); err != nil {
			t.Fatal(err)
		}
		metric(t, p, equal(1), "switchyard_kubelet_plugin_unhealthy_devices")
		n.refused(t, n.gpus(t, "lost", n.devices[0], n.devices[1]), n.devices[1], "unhealthy", "Lost")
	})
	t.Run("a GPU without a device node", func(t *testing.T) {
		device := filepath.Join(n.GPUs.DevRoot(), "dev", "nvidia2")
		if err := os.Remove(device); err != nil {
			t.Fatal(err)
		}
		n.refused(t, n.gpus(t, "nodeless", n.devices[0], n.devices[2]), "/dev/nvidia2", n.devices[2])
	})
	t.Run("a device of another node", func(t *testing.T) {
		n.refused(t, create(t, claim.New(n.namespace, "elsewhere", "node-z").Request("gpu", n.devices[0])), "node-z", n.Name)
	})
	t.Run("a device that does not exist", func(t *testing.T) {
		n.refused(t, n.gpus(t, "nobody", "gpu-00000000-0000-0000-0000-000000000000"), "does not exist on this node")
	})

	n.wantNothingLeft(t)
	n.wantSees(t, n.prepare(t, healthy), 0)
	metric(t, p, atLeast(4), "switchyard_kubelet_plugin_errors_total")
}

// KEP-5304: the container finds the attributes of its devices in a file.
func TestContainersLearnTheAttributesOfTheirDevices(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a100-2x4")
	n.running(t, plugin.Options{})
	spec, err := n.container(n.prepare(t, n.gpus(t, "claim", n.devices[5]))...)
	if err != nil {
		t.Fatal(err)
	}
	for _, mount := range spec.Mounts {
		if !strings.Contains(mount.Destination, "dra-device-attributes") && !strings.Contains(mount.Source, "dra-device-metadata") {
			continue
		}
		content, err := os.ReadFile(mount.Source)
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{n.devices[5], n.Name + ".1", "nvswitchDomain", "NVIDIA A100"} {
			if !strings.Contains(string(content), want) {
				t.Errorf("%s does not tell of %q:\n%s", mount.Destination, want, content)
			}
		}
		return
	}
	t.Errorf("no metadata is mounted: %s", fmt.Sprint(spec.Mounts))
}
