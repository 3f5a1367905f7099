// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	helper "k8s.io/dynamic-resource-allocation/kubeletplugin"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/internal/program"
	"github.com/switchyard-dev/switchyard/pkg/health"
	"github.com/switchyard-dev/switchyard/pkg/kubeletplugin"
	"github.com/switchyard-dev/switchyard/pkg/sharing"
)

// Options are the flags of the kubelet plugin.
type Options struct {
	NodeName     string
	PodNamespace string
	PodName      string
	PodUID       string

	Kubeconfig   string
	KubeAPIQPS   float32
	KubeAPIBurst int

	PluginDir   string
	RegistryDir string
	CDIDir      string

	DriverRoot      string
	DriverRootMount string
	DevRoot         string
	SysfsRoot       string
	ProcRoot        string
	CDIHookPath     string
	BootIDFile      string

	// Config is the file, or the directory of files, that the settings below come from where no flag says them.
	Config     string
	configFile string

	MIGGPUs string
	// Shares and DefaultTimeSlice come from the node configuration alone.
	Shares           []v1alpha1.NodeShares
	DefaultTimeSlice v1alpha1.TimeSliceInterval

	MPSSharedMemoryDir string

	DiscoveryInterval time.Duration
	ReconcileInterval time.Duration
	OrphanGrace       time.Duration
	DeviceWait        time.Duration
	SteeringInterval  time.Duration

	HealthEffect string
	HealthXIDs   map[string]string

	MetricsAddress    string
	GRPCHealthAddress string

	Logging *program.Logging
}

// NewOptions returns the defaults. getenv is where --node-name, --pod-uid, --pod-name and
// --pod-namespace come from when the flags are not given: os.Getenv.
func NewOptions(getenv func(string) string) *Options {
	return &Options{
		NodeName:     getenv("NODE_NAME"),
		PodNamespace: getenv("POD_NAMESPACE"),
		PodName:      getenv("POD_NAME"),
		PodUID:       getenv("POD_UID"),

		KubeAPIQPS: -1,

		PluginDir:   filepath.Join(helper.KubeletPluginsDir, v1alpha1.DriverName),
		RegistryDir: helper.KubeletRegistryDir,
		CDIDir:      helper.DefaultCDIDir,

		DriverRoot: "/",
		SysfsRoot:  "/sys",
		ProcRoot:   "/proc",
		BootIDFile: "/proc/sys/kernel/random/boot_id",

		MPSSharedMemoryDir: sharing.DefaultSharedMemoryDir,

		DiscoveryInterval: 10 * time.Second,
		ReconcileInterval: time.Minute,
		OrphanGrace:       2 * time.Minute,
		DeviceWait:        10 * time.Second,

		HealthEffect: string(resourceapi.DeviceTaintEffectNoSchedule),

		MetricsAddress:    ":8080",
		GRPCHealthAddress: ":51515",

		Logging: program.NewLogging(),
	}
}

// AddFlags adds the flags to a flag set.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.NodeName, "node-name", o.NodeName, "Name of the Node object this plugin runs on (spec.nodeName of its pod, which need not be the host name). Environment: NODE_NAME.")
	fs.StringVar(&o.PodUID, "pod-uid", o.PodUID, "UID of the pod this plugin runs in. Set it to let an old and a new pod overlap in a rolling update. Environment: POD_UID.")
	fs.StringVar(&o.PodNamespace, "pod-namespace", o.PodNamespace, "Namespace of the pod this plugin runs in, for log lines. Environment: POD_NAMESPACE.")
	fs.StringVar(&o.PodName, "pod-name", o.PodName, "Name of the pod this plugin runs in, for log lines and as the source of Events. Environment: POD_NAME.")

	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "Path of a kubeconfig file. Empty: the pod's service account.")
	fs.Float32Var(&o.KubeAPIQPS, "kube-api-qps", o.KubeAPIQPS, "Requests per second to the API server. Negative: no limit on this side; the API server's priority and fairness limits.")
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", o.KubeAPIBurst, "Requests above --kube-api-qps that are let through at once.")

	fs.StringVar(&o.PluginDir, "plugin-dir", o.PluginDir, "Directory of the plugin's socket, checkpoint and device metadata. The same path on the host and in the pod.")
	fs.StringVar(&o.RegistryDir, "registry-dir", o.RegistryDir, "Directory in which the kubelet looks for plugins. The same path on the host and in the pod.")
	fs.StringVar(&o.CDIDir, "cdi-dir", o.CDIDir, "Directory for CDI specs; one that the container runtime reads.")

	fs.StringVar(&o.DriverRoot, "driver-root", o.DriverRoot, "Root of the NVIDIA driver's files, as a path on the host: / for a driver on the host, /run/nvidia/driver for one in a container.")
	fs.StringVar(&o.DriverRootMount, "driver-root-mount", o.DriverRootMount, "Where --driver-root is found in this pod. Empty: at the same path.")
	fs.StringVar(&o.DevRoot, "dev-root", o.DevRoot, "Root of the device nodes (the directory above dev), in this pod. Empty: --driver-root-mount if that has the device nodes, else /.")
	fs.StringVar(&o.SysfsRoot, "sysfs-root", o.SysfsRoot, "Where sysfs is mounted in this pod.")
	fs.StringVar(&o.ProcRoot, "proc-root", o.ProcRoot, "Where proc is mounted in this pod. The driver's part of it says which device nodes MIG partitions need.")
	fs.StringVar(&o.CDIHookPath, "cdi-hook-path", o.CDIHookPath, "Path on the host of the program nvidia-cdi-hook, which the container runtime calls. Empty: the one beside this program is copied into --plugin-dir.")
	fs.StringVar(&o.BootIDFile, "boot-id-file", o.BootIDFile, "File that holds an ID of the current boot.")

	fs.StringVar(&o.Config, "config", o.Config, "File of kind NodeConfig with what this plugin should do with the node's GPUs, or a directory: then the file <node name>.yaml in it, or default.yaml. It is read at start. A flag that is given goes before it.")

	fs.StringVar(&o.MIGGPUs, "mig-gpus", o.MIGGPUs, "GPUs that may be partitioned, of those whose MIG mode is on: all, none, or a list such as 0,3,GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c of indexes and UUIDs. An index shifts when another GPU is lost, a UUID does not. MIG mode itself is never changed. Empty: all that --config does not share.")

	fs.StringVar(&o.MPSSharedMemoryDir, "mps-shm-dir", o.MPSSharedMemoryDir, "Directory on the host that the MPS supervisor has as --shm-dir: it holds the shared memory of claims with MPS.")

	fs.DurationVar(&o.DiscoveryInterval, "discovery-interval", o.DiscoveryInterval, "Time between two looks at the hardware.")
	fs.DurationVar(&o.ReconcileInterval, "reconcile-interval", o.ReconcileInterval, "Time between two comparisons of what is prepared here with what the API server says.")

	fs.DurationVar(&o.OrphanGrace, "orphan-grace", o.OrphanGrace, "How long a claim that the kubelet has not unprepared must be gone from the API server before its GPUs are given back. A pod that was deleted by force may run on for its termination grace period: choose no less than the longest of your GPU pods.")

	fs.DurationVar(&o.DeviceWait, "device-wait", o.DeviceWait, "How long a claim's preparation waits for a GPU that another claim still has on this node, because a pod deleted by force is still ending. The kubelet repeats a refused one only after a minute or more, and gives up on a call after 45s.")

	fs.DurationVar(&o.SteeringInterval, "steering-interval", o.SteeringInterval, "Publish how many GPUs of each NVSwitch domain and of the node are free, which steers pods with one GPU to where they break the least, and write it no more often than this: every write wakes the pods that wait for a device. 0: off.")

	fs.StringVar(&o.HealthEffect, "health-effect", o.HealthEffect, "Taint effect on a GPU with which nothing can go on (lost, a reset or reboot is needed, XID 79 or 95): NoSchedule, which leaves its pods alone, or NoExecute, which has Kubernetes delete them without asking their PodDisruptionBudgets. Other unhealthy GPUs have NoSchedule.")
	fs.StringToStringVar(&o.HealthXIDs, "health-xid", o.HealthXIDs, "Taint effect of an XID in place of its default, as CODE=EFFECT with Ignore, None (shown, keeps nobody away), NoSchedule or NoExecute. Can be repeated, or have several with commas: 48=NoExecute,94=NoSchedule.")

	fs.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "TCP address for /metrics, /healthz and /readyz. 0: off.")
	fs.StringVar(&o.GRPCHealthAddress, "grpc-health-address", o.GRPCHealthAddress, "TCP address, or unix:PATH, of the gRPC health service (services liveness and readiness). 0: off.")

	o.Logging.AddFlags(fs)
}

// Validate reports every flag that cannot work, with what to do about it.
func (o *Options) Validate() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}

	if o.NodeName == "" {
		fail("node-name", "must be set: in a DaemonSet, set the environment variable NODE_NAME from the field spec.nodeName")
	} else if problems := validation.IsDNS1123Subdomain(o.NodeName); len(problems) > 0 {
		fail("node-name", "%q is no node name: %s", o.NodeName, strings.Join(problems, "; "))
	}
	if strings.ContainsAny(o.PodUID, "/ ") {
		fail("pod-uid", "%q is no UID: set the environment variable POD_UID from the field metadata.uid", o.PodUID)
	}
	o.validatePaths(fail)
	o.Logging.Validate(fail)
	o.validateMIG(fail)
	o.validateShares(fail)
	if o.DiscoveryInterval < time.Second {
		fail("discovery-interval", "%v is too short: use 1s or more", o.DiscoveryInterval)
	}
	if o.ReconcileInterval < time.Second {
		fail("reconcile-interval", "%v is too short: use 1s or more", o.ReconcileInterval)
	}
	o.validateSteering(fail)
	if o.DeviceWait < 0 || o.DeviceWait > 40*time.Second {
		fail("device-wait", "%v is not between 0 and 40s: the kubelet gives up on a call after 45s", o.DeviceWait)
	}
	o.validateHealth(fail)
	if o.OrphanGrace < 0 {
		fail("orphan-grace", "%v is negative: use 0 or more", o.OrphanGrace)
	}
	if o.KubeAPIQPS > 0 && o.KubeAPIBurst < 1 {
		fail("kube-api-burst", "must be at least 1 when --kube-api-qps is positive, got %d", o.KubeAPIBurst)
	}
	if o.KubeAPIQPS == 0 {
		fail("kube-api-qps", "0 would mean the client's default of 5 per second, which stalls bursts of pods: use a negative value for no limit")
	}
	if err := validateAddress(o.MetricsAddress); err != nil {
		fail("metrics-address", "%w", err)
	}
	if err := validateAddress(strings.TrimPrefix(o.GRPCHealthAddress, unixScheme)); err != nil && !strings.HasPrefix(o.GRPCHealthAddress, unixScheme) {
		fail("grpc-health-address", "%w", err)
	}
	if err := kubeletplugin.CheckSocketPaths(o.PluginDir, o.RegistryDir, types.UID(o.PodUID)); err != nil {
		errs = append(errs, err)
	}
	if info, err := os.Stat(o.RegistryDir); filepath.IsAbs(o.RegistryDir) && (err != nil || !info.IsDir()) {
		fail("registry-dir", "%s is no directory here: mount the kubelet's plugins_registry directory at the same path, or name the one of a kubelet with another --root-dir", o.RegistryDir)
	}
	return errors.Join(errs...)
}

func (o *Options) validateSteering(fail func(flag, format string, args ...any)) {
	if o.SteeringInterval != 0 && o.SteeringInterval < time.Second {
		fail("steering-interval", "%v is too short: use 1s or more, or 0 for off", o.SteeringInterval)
	}
}

func (o *Options) validateMIG(fail func(flag, format string, args ...any)) {
	if _, err := o.MIGSelection(); err != nil {
		fail("mig-gpus", "%w", err)
	}
}

func (o *Options) validateHealth(fail func(flag, format string, args ...any)) {
	if _, err := health.ParsePolicy(o.HealthEffect, nil); err != nil {
		fail("health-effect", "%w", err)
	}
	if _, err := health.ParsePolicy("", o.HealthXIDs); err != nil {
		fail("health-xid", "%w", err)
	}
}

func (o *Options) validatePaths(fail func(flag, format string, args ...any)) {
	for _, required := range []struct{ flag, path string }{
		{"plugin-dir", o.PluginDir},
		{"registry-dir", o.RegistryDir},
		{"cdi-dir", o.CDIDir},
		{"driver-root", o.DriverRoot},
		{"sysfs-root", o.SysfsRoot},
		{"proc-root", o.ProcRoot},
		{"boot-id-file", o.BootIDFile},
		{"mps-shm-dir", o.MPSSharedMemoryDir},
	} {
		if !filepath.IsAbs(required.path) {
			fail(required.flag, "%q must be an absolute path", required.path)
		}
	}
	for _, optional := range []struct{ flag, path string }{
		{"driver-root-mount", o.DriverRootMount},
		{"dev-root", o.DevRoot},
		{"cdi-hook-path", o.CDIHookPath},
	} {
		if optional.path != "" && !filepath.IsAbs(optional.path) {
			fail(optional.flag, "%q must be an absolute path, or empty for the default", optional.path)
		}
	}
}

// unixScheme marks an address that is the path of a Unix socket.
const unixScheme = "unix:"

// addressOff is the address that switches a server off.
const addressOff = "0"

func validateAddress(address string) error {
	if address == addressOff {
		return nil
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		return fmt.Errorf("%w: use host:port, :port, or 0 to switch it off", err)
	}
	return nil
}
