// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/health"
)

// SpecWriter writes the CDI specs through which containers get their devices. *cdi.Writer implements
// it.
type SpecWriter interface {
	// Refresh finds out what containers need for the devices of an inventory.
	Refresh(ctx context.Context, inv device.Inventory) error
	// Moved reports whether driver files were added, replaced or removed since the last Refresh.
	Moved() bool
	// Check reports whether WriteClaim could write a spec of the devices: whether they are known and
	// all their device nodes are there.
	Check(devices []cdi.ClaimDevice) error
	// WriteClaim makes sure that the claim's spec is on disk as it should be, and returns the
	// qualified CDI name of each device, in their order.
	WriteClaim(uid types.UID, devices []cdi.ClaimDevice) ([]string, error)
	// RemoveClaim removes the claim's spec; one that is not there is no error.
	RemoveClaim(uid types.UID) error
	// Claims lists the claims that have a spec.
	Claims() ([]types.UID, error)
}

// Config is what a Driver needs. Everything is required unless it says otherwise.
type Config struct {
	// NodeName is the name of the Node object and of the node's pool.
	NodeName string
	// PodUID is the UID of the plugin's pod; it lets an old and a new pod overlap. Optional.
	PodUID types.UID

	// PluginDir holds the service socket, the checkpoint and the saved inventory; RegistryDir the
	// registration socket; CDIDir the CDI specs.
	PluginDir, RegistryDir, CDIDir string
	// BootIDFile holds an ID of the current boot.
	BootIDFile string
	// ModuleDir is the directory of the kernel driver in sysfs, which every load of it makes anew: what it had made
	// before is gone. Optional.
	ModuleDir string

	// DiscoveryInterval is the time between two looks at the hardware.
	DiscoveryInterval time.Duration
	// ReconcileInterval is the time between two comparisons with the API server.
	ReconcileInterval time.Duration
	// OrphanGrace is how long a claim must be found gone before its devices are taken back: the
	// kubelet may still be stopping the containers of a pod that was deleted by force.
	OrphanGrace time.Duration
	// HealthPolicy says what follows when a GPU is sick. The zero value keeps new pods away.
	HealthPolicy health.Policy
	// SteeringInterval is how often the free counts of the node's GPUs are published, at most; 0: not at all.
	SteeringInterval time.Duration
	// DefaultTimeSlice is the interval of claims that share whole GPUs by time-slicing and name none. Empty: the
	// GPU's time slice is not touched.
	DefaultTimeSlice v1alpha1.TimeSliceInterval
	// Shares are the GPUs that several claims may have at the same time. Optional.
	Shares []NodeShares
	// DeviceWait is how long a Prepare waits for a device that another claim still has; 0: not at all.
	DeviceWait time.Duration

	KubeClient kubernetes.Interface
	Platform   Platform
	Specs      SpecWriter
	// Partitions makes and destroys MIG partitions. Optional: without it claims of partitions are refused.
	Partitions Partitioner
	// MPS keeps MPS daemons, ComputeModes and TimeSlicer change settings of GPUs. Optional: without them claims that
	// need them are refused.
	MPS          MPSDaemons
	ComputeModes ComputeModes
	TimeSlicer   TimeSlicer
	// Recorder writes Events on the node.
	Recorder record.EventRecorder
	// Registry takes the metrics.
	Registry prometheus.Registerer
	Clock    clock.WithTicker
	// Version is the version of the binary, for the build_info metric.
	Version string
}

func (c Config) validate() error {
	var errs []error
	for _, required := range []struct {
		name    string
		missing bool
	}{
		{"NodeName", c.NodeName == ""},
		{"PluginDir", c.PluginDir == ""},
		{"RegistryDir", c.RegistryDir == ""},
		{"CDIDir", c.CDIDir == ""},
		{"BootIDFile", c.BootIDFile == ""},
		{"DiscoveryInterval", c.DiscoveryInterval <= 0},
		{"ReconcileInterval", c.ReconcileInterval <= 0},
		{"OrphanGrace", c.OrphanGrace < 0},
		{"SteeringInterval", c.SteeringInterval < 0},
		{"DeviceWait", c.DeviceWait < 0},
		{"KubeClient", c.KubeClient == nil},
		{"Platform", c.Platform == nil},
		{"Specs", c.Specs == nil},
		{"Recorder", c.Recorder == nil},
		{"Registry", c.Registry == nil},
		{"Clock", c.Clock == nil},
	} {
		if required.missing {
			errs = append(errs, fmt.Errorf("kubelet plugin configuration: %s is not set", required.name))
		}
	}
	return errors.Join(errs...)
}

// CheckSocketPaths reports whether the plugin's sockets fit into what the kernel allows for the path
// of a Unix socket (107 bytes).
func CheckSocketPaths(pluginDir, registryDir string, podUID types.UID) error {
	config := Config{PluginDir: pluginDir, RegistryDir: registryDir, PodUID: podUID}
	var errs []error
	for _, socket := range []struct{ flag, path string }{
		{"plugin-dir", serviceSocket(config)},
		{"registry-dir", registrationSocket(config)},
	} {
		if len(socket.path) > maxSocketPath {
			errs = append(errs, fmt.Errorf("--%s: the socket %s has %d bytes, but the path of a Unix socket may have %d: use a shorter directory", socket.flag, socket.path, len(socket.path), maxSocketPath))
		}
	}
	return errors.Join(errs...)
}
