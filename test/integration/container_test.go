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
	"testing"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	resourceapi "k8s.io/api/resource/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// container is what a container runtime makes of CDI device IDs: it reads the node's CDI directory
// and puts what the specs say into the container's configuration.
func (n *node) container(ids ...string) (*oci.Spec, error) {
	specs, err := n.specs()
	if err != nil {
		return nil, err
	}
	return inject(specs, ids)
}

// specs are the CDI specs of the node as a container runtime reads them.
func (n *node) specs() (*cdi.Cache, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(n.CDIDir()), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, err
	}
	for path, errs := range cache.GetErrors() {
		return nil, fmt.Errorf("a runtime refuses CDI spec %s: %v", path, errs)
	}
	return cache, nil
}

func inject(cache *cdi.Cache, ids []string) (*oci.Spec, error) {
	spec := &oci.Spec{Process: &oci.Process{}, Linux: &oci.Linux{}}
	if unresolved, err := cache.InjectDevices(spec, ids...); err != nil {
		return nil, fmt.Errorf("unresolvable CDI devices %q: %w", unresolved, err)
	}
	return spec, nil
}

var gpuNode = regexp.MustCompile(`^/dev/nvidia[0-9]+$`)

// sees returns the GPUs that a container with the CDI device IDs has, by their device nodes.
func (n *node) sees(t *testing.T, ids ...string) []string {
	t.Helper()
	spec, err := n.container(ids...)
	if err != nil {
		t.Fatal(err)
	}
	paths := []string{}
	for _, device := range spec.Linux.Devices {
		if gpuNode.MatchString(device.Path) {
			paths = append(paths, device.Path)
		}
	}
	slices.Sort(paths)
	return paths
}

// wantSees checks which GPUs, by position, a container gets.
func (n *node) wantSees(t *testing.T, ids []string, positions ...int) {
	t.Helper()
	want := []string{}
	for _, position := range positions {
		want = append(want, fmt.Sprintf("/dev/nvidia%d", position)) // minor numbers of a simulated node
	}
	if got := n.sees(t, ids...); !slices.Equal(got, want) {
		t.Errorf("a container with %q sees %q, want %q", ids, got, want)
	}
}

// byRequest are the CDI device IDs that the kubelet hands to a container which names one request.
func byRequest(devices []*drapb.Device, request string) []string {
	var ids []string
	for _, device := range devices {
		if len(device.RequestNames) == 0 || slices.Contains(device.RequestNames, request) {
			ids = append(ids, device.CdiDeviceIds...)
		}
	}
	return ids
}

func (n *node) checkpointDir() string { return filepath.Join(n.PluginDir(), "checkpoint") }

// leftovers are the files that must not be there when no claim is prepared: CDI specs, checkpoint
// records, metadata, temporary files.
func (n *node) leftovers(t *testing.T) []string {
	t.Helper()
	left := files(t, n.CDIDir())
	for _, name := range files(t, n.checkpointDir()) {
		if name != ".lock" {
			left = append(left, "checkpoint/"+name)
		}
	}
	metadata, err := filepath.Glob(filepath.Join(n.PluginDir(), "dra-device-metadata", "*"))
	if err != nil {
		t.Fatal(err)
	}
	return append(left, metadata...)
}

func (n *node) wantNothingLeft(t *testing.T) {
	t.Helper()
	// The plugin tries whether it can write the folder of the CDI specs, with a file of a moment.
	eventually(t, "nothing to be left", func() error {
		if left := n.leftovers(t); len(left) > 0 {
			return fmt.Errorf("no claim is prepared, and yet there are %q", left)
		}
		return nil
	})
}

// arm lets the plugin die at a step of its next call.
func (n *node) arm(t *testing.T, point string) {
	t.Helper()
	if err := os.WriteFile(n.CrashFile(), []byte(point), 0o644); err != nil {
		t.Fatal(err)
	}
}

// diesPreparing has a plugin die at a point of preparing a claim, and waits until it has.
func (n *node) diesPreparing(t *testing.T, p *plugin.Plugin, point string, c *resourceapi.ResourceClaim) {
	t.Helper()
	n.dies(t, p, point, func() error { _, err := n.kubelet.PrepareOne(t.Context(), c); return err })
}

// diesUnpreparing is the same for unpreparing one.
func (n *node) diesUnpreparing(t *testing.T, p *plugin.Plugin, point string, c *resourceapi.ResourceClaim) {
	t.Helper()
	n.dies(t, p, point, func() error { return n.kubelet.Unprepare(t.Context(), c) })
}

func (n *node) dies(t *testing.T, p *plugin.Plugin, point string, call func() error) {
	t.Helper()
	n.arm(t, point)
	if err := call(); err == nil {
		t.Fatal("the plugin lived on")
	}
	<-p.Done()
}
