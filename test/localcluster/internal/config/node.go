// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"fmt"
	"path/filepath"
	"strconv"
	"text/template"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cgroup"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

// NodeFiles are the keys and configurations of one node, by their paths on the
// host, which the node sees too.
type NodeFiles struct {
	CACert                  string
	KubeletCert, KubeletKey string
	KubeletKubeconfig       string
	KubeletConfig           string
	ContainerdConfig        string
	KubeProxyConfig         string
}

// ShortID names a node in paths whose length is limited.
func ShortID(index int) string { return "n" + strconv.Itoa(index) }

// Node renders the machine of a node.
func (r Renderer) Node(index int, f NodeFiles) *sandbox.Spec {
	name := r.Cluster.Nodes[index]
	ready := r.APIServer() + "/readyz"
	return &sandbox.Spec{
		Cluster:       r.Layout.ID(),
		Name:          name,
		Hostname:      name,
		Root:          r.Layout.Root(name),
		ControlSocket: r.Layout.ControlSocket(ShortID(index)),
		Logs:          r.Layout.Logs(name),
		Masks:         r.masks(name),
		Sysctls: map[string]string{
			"net/ipv4/ip_forward": "1",
		},
		Services: []sandbox.Service{
			{
				Name: "containerd",
				Args: []string{r.bin("containerd"), "--config", f.ContainerdConfig},
				Env:  r.env(),
			},
			{
				Name: "kubelet",
				Args: append([]string{r.bin("kubelet")}, flags(
					"config", f.KubeletConfig,
					"kubeconfig", f.KubeletKubeconfig,
					"hostname-override", name,
					"node-ip", r.Plan.Node(index).String(),
				)...),
				Env:     r.env(),
				WaitFor: []string{"unix:" + ContainerdSocket, ready},
			},
			{
				Name:    "kube-proxy",
				Args:    append([]string{r.bin("kube-proxy")}, flags("config", f.KubeProxyConfig)...),
				Env:     r.env(),
				WaitFor: []string{ready, kubeletHealth},
				// It ends by itself when its node gets an address.
				AllowedExits: 1,
			},
		},
	}
}

// KubeletSysctls are the machine-wide settings that a kubelet insists on. The
// node sees files with these values, so that the kubelet is content and the
// host's own settings stay as they are.
func KubeletSysctls() map[string]string {
	return map[string]string{
		"/proc/sys/vm/overcommit_memory":      "1",
		"/proc/sys/vm/panic_on_oom":           "0",
		"/proc/sys/kernel/panic":              "10",
		"/proc/sys/kernel/panic_on_oops":      "1",
		"/proc/sys/kernel/keys/root_maxkeys":  "1000000",
		"/proc/sys/kernel/keys/root_maxbytes": "25000000",
	}
}

// BootIDPath is where a machine's boot ID is read, on any Linux machine.
const BootIDPath = "/proc/sys/kernel/random/boot_id"

// MaskSource is the file that a node sees in the place of path.
func (r Renderer) MaskSource(node, path string) string {
	if path == BootIDPath {
		return r.Layout.BootID(node)
	}
	return filepath.Join(r.Layout.Sandbox(node), "sysctl", filepath.Base(path))
}

func (r Renderer) masks(node string) map[string]string {
	masks := map[string]string{BootIDPath: r.MaskSource(node, BootIDPath)}
	for path := range KubeletSysctls() {
		masks[path] = r.MaskSource(node, path)
	}
	return masks
}

// KubeletConfig renders a kubelet's configuration.
func (r Renderer) KubeletConfig(index int, f NodeFiles) ([]byte, error) {
	config := map[string]any{
		"apiVersion":               "kubelet.config.k8s.io/v1beta1",
		"kind":                     "KubeletConfiguration",
		"address":                  r.Plan.Node(index).String(),
		"authentication":           map[string]any{"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": true}, "x509": map[string]any{"clientCAFile": f.CACert}},
		"authorization":            map[string]any{"mode": "Webhook"},
		"tlsCertFile":              f.KubeletCert,
		"tlsPrivateKeyFile":        f.KubeletKey,
		"cgroupDriver":             "cgroupfs",
		"cgroupRoot":               cgroup.Group(r.Layout.ID(), r.Cluster.Nodes[index]),
		"failCgroupV1":             false,
		"failSwapOn":               false,
		"enforceNodeAllocatable":   []string{},
		"containerRuntimeEndpoint": "unix://" + ContainerdSocket,
		// There is no DNS in the cluster. In a pod this address refuses at
		// once, which beats a timeout, and a warning event for each pod.
		"clusterDNS":      []string{"127.0.0.1"},
		"clusterDomain":   "cluster.local",
		"resolvConf":      "/etc/resolv.conf",
		"volumePluginDir": filepath.Join(kubeletDir, "volume-plugins"),
		"maxPods":         200,
		// A machine's disk and memory are shared by all nodes: pressure
		// there is the person's business, not a reason to evict.
		"evictionHard":                map[string]string{"imagefs.available": "1%", "nodefs.available": "1%", "nodefs.inodesFree": "1%", "imagefs.inodesFree": "1%", "memory.available": "50Mi"},
		"imageGCHighThresholdPercent": 100,
		"oomScoreAdj":                 0,
		"registryPullQPS":             0,
		"eventRecordQPS":              0,
		"serializeImagePulls":         false,
		"kubeReserved":                map[string]string{"cpu": "50m", "memory": "64Mi"},
		"nodeStatusUpdateFrequency":   "5s",
		"nodeLeaseDurationSeconds":    20,
	}
	if gates := r.featureGates(); gates != nil {
		config["featureGates"] = gates
	}
	return render(config)
}

// CNI renders a node's pod network: a point-to-point link per pod, addresses
// from the node's network, routes to everything else through the node.
func (r Renderer) CNI(index int) File {
	content := fmt.Sprintf(`{
  "cniVersion": "1.0.0",
  "name": "pods",
  "plugins": [
    {
      "type": "ptp",
      "ipMasq": false,
      "ipam": {
        "type": "host-local",
        "dataDir": "/run/cni/networks",
        "ranges": [[{"subnet": %q}]],
        "routes": [{"dst": "0.0.0.0/0"}]
      }
    }
  ]
}
`, r.Plan.NodePods(index))
	return File{Path: filepath.Join(r.Layout.Root(r.Cluster.Nodes[index]), cniConfigDir, "10-pods.conflist"), Content: []byte(content)}
}

var containerdTemplate = template.Must(template.New("containerd").Parse(`version = 3
root = "{{.Root}}"
state = "{{.State}}"
# Plugins that would touch the host outside the node's own folders, or that
# only log that they cannot work here.
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{{.Socket}}"

[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{{.Pause}}"

[plugins.'io.containerd.cri.v1.runtime']
  cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
  # Root may lack CAP_SYS_RESOURCE in a container or a small VM.
  restrict_oom_score_adj = true

  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{{.CNIBin}}"]
    conf_dir = "{{.CNIConfig}}"
    # A program less to run for each pod.
    use_internal_loopback = true

  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
      BinaryName = "{{.Runc}}"
      SystemdCgroup = false
`))

// Containerd renders a node's containerd configuration.
func (r Renderer) Containerd() ([]byte, error) {
	var out bytes.Buffer
	err := containerdTemplate.Execute(&out, map[string]string{
		"Root": containerdRoot, "State": containerdState, "Socket": ContainerdSocket,
		"Pause": PauseImage, "CNIBin": r.bin("cni"), "CNIConfig": cniConfigDir, "Runc": r.bin("runc"),
	})
	if err != nil {
		return nil, fmt.Errorf("render containerd configuration: %w", err)
	}
	return out.Bytes(), nil
}
