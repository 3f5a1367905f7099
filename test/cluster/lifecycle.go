// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// Namespace is where the driver runs.
	Namespace = "switchyard-system"
	// PluginLabel selects the driver's pods.
	PluginLabel = "app.kubernetes.io/component=kubelet-plugin"

	// ControllerLabel selects the controller's pods.
	ControllerLabel = "app.kubernetes.io/component=controller"

	pluginDaemonSet      = "switchyard-kubelet-plugin"
	controllerDeployment = "switchyard-controller"
	rolloutTimeout       = 2 * time.Minute
)

// Build builds the cluster's programs unless they are cached, and returns what two of them say they are.
func (c *Cluster) Build(ctx context.Context) (string, error) {
	if err := c.follow(ctx, "build"); err != nil {
		return "", err
	}
	bin, err := c.localcluster(ctx, "build", "--print-dir")
	if err != nil {
		return "", err
	}
	var versions []string
	for _, program := range []string{"kubelet", "containerd"} {
		out, err := exec.CommandContext(ctx, filepath.Join(bin, program), "--version").Output()
		if err != nil {
			return "", fmt.Errorf("%s --version: %w", program, err)
		}
		words := strings.Fields(string(out)) // "containerd github.com/containerd/containerd/v2 v2.4.2"
		versions = append(versions, words[0]+" "+words[len(words)-1])
	}
	return strings.Join(versions, ", "), nil
}

// Up starts a new cluster and connects to it. Nothing is left of one that was kept or interrupted: not its pods, and not what
// was made of its GPUs.
func (c *Cluster) Up(ctx context.Context) error {
	if err := c.Down(ctx); err != nil {
		return err
	}
	if err := c.follow(ctx, "up"); err != nil {
		return err
	}
	return c.connect(ctx)
}

func (c *Cluster) connect(ctx context.Context) error {
	var err error
	if c.config, err = c.localcluster(ctx, "kubeconfig"); err != nil {
		return err
	}
	if c.bin, err = c.localcluster(ctx, "build", "--print-dir"); err != nil {
		return err
	}
	rest, err := clientcmd.BuildConfigFromFlags("", c.config)
	if err != nil {
		return fmt.Errorf("read %s: %w", c.config, err)
	}
	rest.QPS = -1
	if c.Client, err = kubernetes.NewForConfig(rest); err != nil {
		return err
	}
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return err
	}
	// Reading the API's resources needs the API server; they are known here.
	mapper := meta.NewDefaultRESTMapper(nil)
	mapper.Add(v1alpha1.GroupVersion.WithKind(v1alpha1.GangClaimKind), meta.RESTScopeNamespace)
	crlog.SetLogger(klog.Background()) // else it complains, with a stack, of a program that is older than 30 seconds
	c.Gangs, err = client.New(rest, client.Options{Scheme: scheme, Mapper: mapper})
	return err
}

// Down removes the cluster.
func (c *Cluster) Down(ctx context.Context) error {
	_, err := c.localcluster(ctx, "down")
	return err
}

// Install runs the driver on every node on simulated GPUs: eight H100 in one NVSwitch domain on node-a, eight A100 in
// two domains of four on node-b.
func (c *Cluster) Install(ctx context.Context) error {
	return c.install(ctx, "test/manifests/sim", "localhost/switchyard-sim:dev", "bin/switchyard-sim", simulatedDriver)
}

// InstallForCrashes is Install with the build that can be told to die at a step.
func (c *Cluster) InstallForCrashes(ctx context.Context) error {
	return c.install(ctx, "test/manifests/crashpoints", "localhost/switchyard-sim:crashpoints", "build/crashpoints/switchyard-sim", simulatedDriver)
}

// InstallShipped runs the driver as users install it, without a simulation: it looks for NVML on the node.
func (c *Cluster) InstallShipped(ctx context.Context) error {
	return c.install(ctx, "deployments/manifests", "localhost/switchyard-kubelet-plugin:dev", "bin/switchyard-kubelet-plugin")
}

// simulatedDriver stands for programs of the driver on simulated nodes.
const simulatedDriver = "bin/switchyard-sim-driver"

func (c *Cluster) install(ctx context.Context, overlay, tag, program string, more ...string) error {
	dir, err := os.MkdirTemp("", "switchyard-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	archive := filepath.Join(dir, "image.tar")
	for _, image := range [][]string{ // tag and programs
		append([]string{tag, program, "bin/nvidia-cdi-hook", "bin/switchyard-mps-supervisor"}, more...),
		{"localhost/switchyard-controller:dev", "bin/switchyard-controller"},
	} {
		if _, err := c.localcluster(ctx, append([]string{"image", "build", "--output", archive, "--tag"}, image...)...); err != nil {
			return err
		}
		if _, err := c.localcluster(ctx, "image", "load", archive); err != nil {
			return err
		}
	}
	if _, err := c.Kubectl(ctx, "apply", "-k", overlay); err != nil {
		return err
	}
	if err := c.WaitPlugins(ctx, rolloutTimeout); err != nil {
		return err
	}
	if err := c.WaitController(ctx, rolloutTimeout); err != nil {
		return err
	}
	return c.replaceSupervisors(ctx)
}

// replaceSupervisors has new pods of the MPS supervisor, if it is installed, and waits until they run. By itself it
// replaces none.
func (c *Cluster) replaceSupervisors(ctx context.Context) error {
	old, err := c.Pods(ctx, Namespace, supervisorLabel)
	if err != nil || len(old) == 0 {
		return err
	}
	if _, err := c.Kubectl(ctx, "delete", "pods", "-n", Namespace, "-l", supervisorLabel); err != nil {
		return err
	}
	return c.untilPods(ctx, rolloutTimeout, "the MPS supervisors to run", func(ctx context.Context) (bool, []corev1.Pod, error) {
		pods, err := c.Pods(ctx, Namespace, supervisorLabel)
		if err != nil {
			return false, nil, err
		}
		running := 0
		for i := range pods {
			if Running(&pods[i]) {
				running++
			}
		}
		if running == len(old) && len(pods) == len(old) {
			return true, nil, nil
		}
		return false, pods, nil
	})
}

// supervisorLabel selects the pods of the MPS supervisor.
const supervisorLabel = "app.kubernetes.io/component=mps-supervisor"

// WaitController waits until the controller's newest version runs, and nothing else of it does.
func (c *Cluster) WaitController(ctx context.Context, timeout time.Duration) error {
	return c.untilPods(ctx, timeout, "the controller to run", func(ctx context.Context) (bool, []corev1.Pod, error) {
		d, err := c.Client.AppsV1().Deployments(Namespace).Get(ctx, controllerDeployment, metav1.GetOptions{})
		if err != nil {
			return false, nil, err
		}
		pods, err := c.Pods(ctx, Namespace, ControllerLabel)
		if err != nil {
			return false, nil, err
		}
		s, want := d.Status, *d.Spec.Replicas
		if s.ObservedGeneration >= d.Generation && s.UpdatedReplicas == want && s.AvailableReplicas == want && len(pods) == int(want) {
			return true, nil, nil
		}
		return false, pods, nil
	})
}

// WaitPlugins waits until the driver's newest version runs on every node, and nothing else of it does.
func (c *Cluster) WaitPlugins(ctx context.Context, timeout time.Duration) error {
	return c.untilPods(ctx, timeout, "the driver to run on every node", func(ctx context.Context) (bool, []corev1.Pod, error) {
		ds, err := c.Client.AppsV1().DaemonSets(Namespace).Get(ctx, pluginDaemonSet, metav1.GetOptions{})
		if err != nil {
			return false, nil, err
		}
		pods, err := c.Pods(ctx, Namespace, PluginLabel)
		if err != nil {
			return false, nil, err
		}
		s, want := ds.Status, ds.Status.DesiredNumberScheduled
		if s.ObservedGeneration >= ds.Generation && want > 0 && s.UpdatedNumberScheduled == want && s.NumberReady == want && len(pods) == int(want) {
			return true, nil, nil
		}
		return false, pods, nil
	})
}

// RestartPlugins starts a rolling update of the driver, as kubectl rollout restart does.
func (c *Cluster) RestartPlugins(ctx context.Context) error {
	_, err := c.Kubectl(ctx, "rollout", "restart", "-n", Namespace, "daemonset/"+pluginDaemonSet)
	return err
}

// StopPlugins takes the driver off every node and waits until it is gone.
func (c *Cluster) StopPlugins(ctx context.Context) error {
	if err := c.patchPlugins(ctx, `{"spec":{"template":{"spec":{"nodeSelector":{"switchyard.dev/stopped":"true"}}}}}`); err != nil {
		return err
	}
	return c.Until(ctx, rolloutTimeout, "the driver to be gone", func(ctx context.Context) (bool, error) {
		pods, err := c.Pods(ctx, Namespace, PluginLabel)
		return len(pods) == 0, err
	})
}

// StartPlugins brings the driver back after StopPlugins.
func (c *Cluster) StartPlugins(ctx context.Context) error {
	if err := c.patchPlugins(ctx, `{"spec":{"template":{"spec":{"nodeSelector":{"switchyard.dev/stopped":null}}}}}`); err != nil {
		return err
	}
	return c.WaitPlugins(ctx, rolloutTimeout)
}

func (c *Cluster) patchPlugins(ctx context.Context, patch string) error {
	_, err := c.Client.AppsV1().DaemonSets(Namespace).Patch(ctx, pluginDaemonSet, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// PluginLog returns the last lines of the driver's log on a node.
func (c *Cluster) PluginLog(ctx context.Context, node string) (string, error) {
	pods, err := c.Pods(ctx, Namespace, PluginLabel)
	if err != nil {
		return "", err
	}
	var log strings.Builder
	for _, p := range pods {
		if p.Spec.NodeName == node {
			out, err := c.Kubectl(ctx, "logs", "-n", Namespace, p.Name, "--tail=60")
			fmt.Fprintf(&log, "%s\n%s\n", p.Name, out)
			if err != nil {
				fmt.Fprintln(&log, err)
			}
		}
	}
	return log.String(), nil
}

// Node stops, starts, reboots, cuts off or heals a node and waits until that is done.
func (c *Cluster) Node(ctx context.Context, action, node string) error {
	_, err := c.localcluster(ctx, "node", action, node)
	return err
}

// NodeExec runs a command in the node's network and mount namespaces.
func (c *Cluster) NodeExec(ctx context.Context, node string, command ...string) (string, error) {
	return c.localcluster(ctx, append([]string{"node", "exec", node, "--"}, command...)...)
}

// KillPlugin kills the node's plugin process as by kill -9, and removes files that it keeps, after its last write to
// them. The process is found through the runtime: PID 1 of a container cannot be killed from inside.
func (c *Cluster) KillPlugin(ctx context.Context, node string, forget ...string) error {
	pods, err := c.Pods(ctx, Namespace, PluginLabel)
	if err != nil {
		return err
	}
	for _, p := range pods {
		if p.Spec.NodeName != node || len(p.Status.ContainerStatuses) == 0 {
			continue
		}
		id := strings.TrimPrefix(p.Status.ContainerStatuses[0].ContainerID, "containerd://")
		line := fmt.Sprintf(`pid=$(%s -n k8s.io tasks list | awk '$1 == "%s" {print $2}') && kill -STOP $pid && rm -f %s && kill -9 $pid`,
			filepath.Join(c.bin, "ctr"), id, strings.Join(forget, " "))
		_, err := c.NodeExec(ctx, node, "sh", "-c", line)
		return err
	}
	return fmt.Errorf("no plugin pod on %s", node)
}

// LogDir is where the cluster's programs log, once it is up.
func (c *Cluster) LogDir() string {
	if c.config == "" {
		return "the cluster was not up yet"
	}
	return filepath.Join(filepath.Dir(c.config), "logs")
}

// ShellHint are the lines that make kubectl speak to the cluster.
func (c *Cluster) ShellHint() string {
	return fmt.Sprintf("  export KUBECONFIG=%s\n  export PATH=%s:$PATH", c.config, c.bin)
}
