// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// probe is a DaemonSet as a DRA driver's: host paths of any node, and a service
// account for the API.
const probe = `
apiVersion: v1
kind: ServiceAccount
metadata: {name: probe}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: probe}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: probe, namespace: default}]
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: probe}
spec:
  selector: {matchLabels: {app: probe}}
  template:
    metadata: {labels: {app: probe}}
    spec:
      serviceAccountName: probe
      terminationGracePeriodSeconds: 1
      containers:
      - name: probe
        image: localhost/busybox:1
        imagePullPolicy: Never
        command: [sh, -c, 'echo "runs on $NODE"; echo "$NODE" > /tmp/index.html; exec httpd -f -p 8080 -h /tmp']
        env: [{name: NODE, valueFrom: {fieldRef: {fieldPath: spec.nodeName}}}]
        securityContext: {privileged: true}
        volumeMounts:
        - {name: plugins, mountPath: /var/lib/kubelet/plugins}
        - {name: cdi, mountPath: /var/run/cdi}
        - {name: dev, mountPath: /host/dev}
        - {name: boot-id, mountPath: /host/boot_id}
      - name: api
        image: localhost/kubectl:1
        imagePullPolicy: Never
        command: [kubectl, get, pods, --watch]
      volumes:
      - {name: plugins, hostPath: {path: /var/lib/kubelet/plugins, type: DirectoryOrCreate}}
      - {name: cdi, hostPath: {path: /var/run/cdi, type: DirectoryOrCreate}}
      - {name: dev, hostPath: {path: /dev}}
      - {name: boot-id, hostPath: {path: /proc/sys/kernel/random/boot_id, type: File}}
---
apiVersion: v1
kind: Service
metadata: {name: probe}
spec: {selector: {app: probe}, ports: [{port: 80, targetPort: 8080}]}
`

// TestLife is one test, because a cluster takes a while to start and because
// each step finds what the ones before left.
func TestLife(t *testing.T) {
	c := newCluster(t)
	t.Run("up heals what a killed up left", c.testKilledUp)
	if t.Failed() {
		return
	}
	t.Run("up of a running cluster changes nothing", c.testIdempotent)
	t.Run("a second command at a time is refused", c.testConcurrent)
	t.Run("a DaemonSet runs as on any node", c.testDaemonSet)
	t.Run("a node user may write its own slices only", c.testNodeUser)
	t.Run("a service's crash is healed by init", c.testServiceCrash)
	t.Run("a reboot is one", c.testReboot)
	t.Run("a node that is cut off cannot be reached", c.testCut)
	t.Run("up heals machines that died", c.testDeadMachines)
	t.Run("nodes can be added", c.testAddNode)
	t.Run("down leaves nothing", c.testDown)
	t.Run("down ends a cluster whose state was deleted", c.testDownWithoutState)
}

func (c *cluster) step(t *testing.T) { c.t = t }

func (c *cluster) testKilledUp(t *testing.T) {
	c.step(t)
	for _, machine := range []string{"control-plane/init.json", "nodes/node-b/init.json"} {
		cmd := exec.Command(c.program, "up", "--state", c.state)
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		c.eventually("up starts "+machine, func() error {
			_, err := os.Stat(filepath.Join(c.state, machine))
			return err
		})
		if err := cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = cmd.Wait() // killed
	}
	c.local("up")
	c.local("status")
}

func (c *cluster) testIdempotent(t *testing.T) {
	c.step(t)
	before := c.bootID("node-a") + c.bootID("node-b")
	c.local("up")
	if after := c.bootID("node-a") + c.bootID("node-b"); after != before {
		t.Error("a node was booted anew")
	}
	if _, err := c.try(c.program, "up", "--native-gangs"); err == nil || !strings.Contains(err.Error(), "localcluster down") {
		t.Errorf("up with another profile: %v", err)
	}
}

func (c *cluster) testConcurrent(t *testing.T) {
	c.step(t)
	reboot := make(chan error, 1)
	go func() {
		_, err := c.try(c.program, "node", "reboot", "node-b")
		reboot <- err
	}()
	c.eventually("the first command holds the lock", func() error {
		locks, err := filepath.Glob("/run/lock/switchyard-*.lock")
		if err != nil {
			return err
		}
		for _, file := range locks {
			if holder, err := os.ReadFile(file); err == nil && strings.Contains(string(holder), "node reboot node-b --state "+c.state) {
				return nil
			}
		}
		return fmt.Errorf("locks are %v", locks)
	})
	_, err := c.try(c.program, "node", "heal", "node-b")
	if err == nil || !strings.Contains(err.Error(), "node reboot node-b") {
		t.Errorf("the second command got %v, want an error that names the first", err)
	}
	if err := <-reboot; err != nil {
		t.Error(err)
	}
}

func (c *cluster) testDaemonSet(t *testing.T) {
	c.step(t)
	archive := filepath.Join(t.TempDir(), "kubectl.tar")
	c.local("image", "build", "--tag", "localhost/kubectl:1", "--output", archive, filepath.Join(c.bin, "kubectl"))
	c.local("image", "load", archive)
	c.apply(probe)
	c.kubectl("rollout", "status", "daemonset/probe", "--timeout", timeout.String())
	a, b := c.pod("node-a"), c.pod("node-b")
	c.eventually("a pod's output is in its logs", func() error {
		if logs := c.kubectl("logs", a, "-c", "probe"); logs != "runs on node-a" {
			return fmt.Errorf("they are %q", logs)
		}
		return nil
	})
	c.eventually("a pod reads the API with its service account", func() error {
		if logs := c.kubectl("logs", a, "-c", "api"); !strings.Contains(logs, b) {
			return fmt.Errorf("it sees %q", logs)
		}
		return nil
	})
	c.kubectl("exec", a, "-c", "probe", "--", "sh", "-c", "mknod /host/dev/nvidia0 c 195 0; echo x > /var/run/cdi/x.json; echo x > /var/lib/kubelet/plugins/x")
	for _, path := range []string{"/dev/nvidia0", "/run/cdi/x.json", "/var/lib/kubelet/plugins/x"} {
		c.node("node-a", "test", "-e", path)
		if _, err := c.try(c.program, "node", "exec", "node-b", "--", "test", "-e", path); err == nil {
			t.Errorf("node-b sees node-a's %s", path)
		}
		if _, err := os.Stat(path); err == nil {
			t.Errorf("the host sees node-a's %s", path)
		}
	}
	podB := "http://" + c.kubectl("get", "pod", b, "-o", "jsonpath={.status.podIP}") + ":8080"
	service := "http://" + c.kubectl("get", "service", "probe", "-o", "jsonpath={.spec.clusterIP}")
	// Not wget's own -T: with it, Debian's static busybox crashes.
	fetch := []string{"timeout", "5", "busybox", "wget", "-q", "-O", "-"}
	c.eventually("everyone reaches pods and services", func() error {
		var errs []error
		for who, enter := range map[string][]string{
			"pod": {"kubectl", "exec", a, "-c", "probe", "--"}, "host": {},
			"node": {c.program, "node", "exec", "node-a", "--"}, "control plane": {c.program, "node", "exec", "control-plane", "--"},
		} {
			for _, url := range []string{podB, service} {
				if got, err := c.try(slices.Concat(enter, fetch, []string{url})...); err != nil || !strings.HasPrefix(got, "node-") {
					errs = append(errs, fmt.Errorf("%s to %s: %q, %w", who, url, got, err))
				}
			}
		}
		return errors.Join(errs...)
	})
}

func (c *cluster) testNodeUser(t *testing.T) {
	c.step(t)
	slice := func(node string) error {
		file := filepath.Join(t.TempDir(), "slice.yaml")
		manifest := fmt.Sprintf(`
apiVersion: resource.k8s.io/v1
kind: ResourceSlice
metadata: {name: %[1]s-x}
spec:
  driver: x.example.com
  nodeName: %[1]s
  pool: {name: %[1]s, generation: 1, resourceSliceCount: 1}
  devices: [{name: x}]
`, node)
		if err := os.WriteFile(file, []byte(manifest), 0o600); err != nil {
			return err
		}
		_, err := c.try("kubectl", "--kubeconfig", filepath.Join(c.state, "nodes", "node-a", "kubelet.kubeconfig"), "create", "-f", file)
		return err
	}
	if err := slice("node-a"); err != nil {
		t.Errorf("its own: %v", err)
	}
	if err := slice("node-b"); err == nil || !strings.Contains(err.Error(), "forbidden") {
		t.Errorf("another node's: %v, want it forbidden", err)
	}
}

func (c *cluster) testServiceCrash(t *testing.T) {
	c.step(t)
	before := c.kubectl("get", "pod", c.pod("node-a"), "-o", "jsonpath={.status.containerStatuses[*].restartCount}")
	for _, service := range []string{"kubelet", "containerd"} {
		c.local("node", "restart", "node-a", service)
	}
	c.eventually("the services run again", func() error { _, err := c.try(c.program, "status"); return err })
	c.eventually("pods are seen again", func() error {
		_, err := c.try("kubectl", "exec", c.pod("node-a"), "-c", "probe", "--", "true")
		return err
	})
	if after := c.kubectl("get", "pod", c.pod("node-a"), "-o", "jsonpath={.status.containerStatuses[*].restartCount}"); after != before {
		t.Errorf("containers were restarted: %s before, %s after", before, after)
	}
}

func (c *cluster) testReboot(t *testing.T) {
	c.step(t)
	before := c.bootID("node-a")
	c.local("node", "reboot", "node-a")
	after := c.bootID("node-a")
	if after == before {
		t.Error("the boot ID is the same")
	}
	if _, err := c.try(c.program, "node", "exec", "node-a", "--", "test", "-e", "/run/cdi/x.json"); err == nil {
		t.Error("the CDI specs are still there")
	}
	c.node("node-a", "test", "-e", "/var/lib/kubelet/plugins/x")
	c.eventually("the pod runs again and sees the new boot", func() error {
		got, err := c.try("kubectl", "exec", c.pod("node-a"), "-c", "probe", "--", "cat", "/host/boot_id")
		if err == nil && got != after {
			err = fmt.Errorf("it sees boot %s, want %s", got, after)
		}
		return err
	})
}

func (c *cluster) testCut(t *testing.T) {
	c.step(t)
	c.local("node", "cut", "node-b")
	if _, err := c.try("busybox", "nc", "-w", "2", "-z", c.kubectl("get", "node", "node-b", "-o", "jsonpath={.status.addresses[0].address}"), "10250"); err == nil {
		t.Error("its kubelet still answers")
	}
	c.kubectl("wait", "--for=condition=Ready=Unknown", "node/node-b", "--timeout", timeout.String())
	c.local("node", "heal", "node-b")
	c.kubectl("wait", "--for=condition=Ready", "node/node-b", "--timeout", timeout.String())
}

func (c *cluster) testDeadMachines(t *testing.T) {
	c.step(t)
	for _, machines := range [][]string{{"node-a"}, {"control-plane"}, {"control-plane", "node-b"}} {
		for _, m := range machines {
			c.kill(c.initPID(m))
		}
		if _, err := c.try(c.program, "status"); err == nil && machines[0] == "control-plane" {
			t.Errorf("status is fine without %v", machines)
		}
		if _, err := c.try(c.program, "node", "cut", "node-a"); err == nil || !strings.Contains(err.Error(), "localcluster ") {
			t.Errorf("cut without %v: %v", machines, err)
		}
		c.local("up")
		c.local("status")
		c.kubectl("get", "daemonset", "probe") // the state survived
		c.kubectl("rollout", "status", "daemonset/probe", "--timeout", timeout.String())
		c.eventually("logs can be read on every node", func() error {
			for _, n := range []string{"node-a", "node-b"} {
				if _, err := c.try("kubectl", "logs", c.pod(n), "-c", "probe"); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

func (c *cluster) testAddNode(t *testing.T) {
	c.step(t)
	c.local("up", "--nodes", "3")
	c.kubectl("wait", "--for=condition=Ready", "node/node-c", "--timeout", timeout.String())
}

func (c *cluster) testDown(t *testing.T) {
	c.step(t)
	c.local("down")
	if _, err := os.Stat(c.state); err == nil {
		t.Error("the state directory is still there")
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	if strings.Contains(string(mounts), c.state) {
		t.Error("mounts are still there")
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range commands {
		if cmdline, err := os.ReadFile(file); err == nil && strings.Contains(string(cmdline), c.state) {
			t.Errorf("a process is still there: %q", cmdline)
		}
	}
	c.local("down") // of nothing
}

// Kubelets go on writing where somebody deleted the state beneath them, here on a volume, which cannot be removed.
func (c *cluster) testDownWithoutState(t *testing.T) {
	c.step(t)
	if err := os.MkdirAll(c.state, 0o755); err != nil {
		t.Fatal(err)
	}
	c.must("mount", "-t", "tmpfs", "tmpfs", c.state)
	defer c.must("umount", c.state)
	c.local("up", "--nodes", "1")
	shape := filepath.Join(c.state, "cluster.json")
	content, err := os.ReadFile(shape)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(shape); err != nil {
		t.Fatal(err)
	}
	node := fmt.Sprintf("/proc/%d/cmdline", c.initPID("node-a"))
	if _, err := c.try(c.program, "down"); err == nil || !strings.Contains(err.Error(), "files were left alone") {
		t.Errorf("down of a folder that does not look like a cluster's: %v", err)
	}
	if command, err := os.ReadFile(node); err == nil && len(command) > 0 { // a zombie has none
		t.Errorf("the node still runs: %q", command)
	}
	if err := os.WriteFile(shape, content, 0o644); err != nil {
		t.Fatal(err)
	}
	c.local("down")
	if left, err := os.ReadDir(c.state); err != nil || len(left) > 0 {
		t.Errorf("left in the volume: %v, %v", left, err)
	}
}
