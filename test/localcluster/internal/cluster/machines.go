// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"
	"github.com/google/uuid"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cgroup"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/config"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/pki"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/procid"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

// launch starts a machine and wires it; connect gets its init's PID.
func (c *Cluster) launch(spec *sandbox.Spec, connect func(pid int) error) error {
	if err := c.kill(spec.Name); err != nil { // whatever is left of an earlier life
		return err
	}
	tree, err := cgroup.Host(c.layout.ID())
	if err != nil {
		return err
	}
	if err := tree.Create(spec.Name); err != nil {
		return err
	}
	specFile := c.layout.Spec(spec.Name)
	for _, dir := range []string{filepath.Dir(specFile), filepath.Dir(spec.ControlSocket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("start %s: %w", spec.Name, err)
		}
	}
	if err := spec.Save(specFile); err != nil {
		return err
	}
	machine, err := sandbox.Launch(specFile, c.layout.PIDFile(spec.Name), filepath.Join(spec.Logs, "init.log"))
	if err != nil {
		return fmt.Errorf("start %s: %w", spec.Name, err)
	}
	if err := connect(machine.ID.PID); err != nil {
		return errors.Join(fmt.Errorf("wire %s: %w", spec.Name, err), machine.Kill())
	}
	if err := machine.Go(); err != nil {
		return errors.Join(fmt.Errorf("start %s: %w", spec.Name, err), machine.Kill())
	}
	return nil
}

// startControlPlane writes the control plane's files and starts its machine.
func (c *Cluster) startControlPlane(r config.Renderer) error {
	ca, err := pki.Open(c.layout.PKI())
	if err != nil {
		return err
	}
	var f config.ControlPlaneFiles
	f.CACert, f.CAKey = ca.CertFile(), ca.KeyFile()
	if f.ServiceAccountKey, f.ServiceAccount, err = pki.SigningKey(c.layout.PKI(), "service-account"); err != nil {
		return err
	}
	for _, pair := range []struct {
		name      string
		subject   pki.Subject
		cert, key *string
	}{
		{"kube-apiserver", r.APIServerServing(), &f.APIServerCert, &f.APIServerKey},
		{"kubelet-client", config.KubeletClient(), &f.KubeletClientCert, &f.KubeletKey},
		{"front-proxy-client", config.FrontProxy(), &f.FrontProxyCert, &f.FrontProxyKey},
	} {
		if *pair.cert, *pair.key, err = ca.Issue(c.layout.PKI(), pair.name, pair.subject); err != nil {
			return err
		}
	}
	dir := c.layout.Sandbox(layout.ControlPlane)
	if err := os.MkdirAll(filepath.Join(dir, "etcd"), 0o700); err != nil {
		return fmt.Errorf("create the control plane's folder: %w", err)
	}
	kubeProxy := filepath.Join(dir, "kube-proxy.kubeconfig")
	f.Scheduler, f.ControllerManager = filepath.Join(dir, "kube-scheduler.kubeconfig"), filepath.Join(dir, "kube-controller-manager.kubeconfig")
	for _, k := range []struct {
		path    string
		subject pki.Subject
	}{
		{c.layout.Kubeconfig(), config.Administrator()},
		{f.Scheduler, config.Component("kube-scheduler")},
		{f.ControllerManager, config.Component("kube-controller-manager")},
		{kubeProxy, config.Component("kube-proxy")},
	} {
		if err := writeKubeconfig(r, ca, k.path, k.subject); err != nil {
			return err
		}
	}
	f.KubeProxyConfig = filepath.Join(dir, "kube-proxy.yaml")
	content, err := r.KubeProxy(kubeProxy, r.Cluster.Nodes[0])
	if err != nil {
		return err
	}
	if err := writeFiles(config.File{Path: f.KubeProxyConfig, Content: content}); err != nil {
		return err
	}
	return c.launch(r.ControlPlane(f), func(pid int) error { return network.ConnectControlPlane(r.Plan, c.layout.ID(), pid) })
}

// startNode writes a node's files and starts its machine. Every start is a
// boot: the node gets a new boot ID.
func (c *Cluster) startNode(r config.Renderer, index int) error {
	name := r.Cluster.Nodes[index]
	dir, root := c.layout.Sandbox(name), c.layout.Root(name)
	ca, err := pki.Open(c.layout.PKI())
	if err != nil {
		return err
	}
	f := config.NodeFiles{
		CACert:            ca.CertFile(),
		KubeletKubeconfig: filepath.Join(dir, "kubelet.kubeconfig"),
		KubeletConfig:     filepath.Join(dir, "kubelet.yaml"),
		ContainerdConfig:  filepath.Join(dir, "containerd.toml"),
		KubeProxyConfig:   filepath.Join(dir, "kube-proxy.yaml"),
	}
	if f.KubeletCert, f.KubeletKey, err = ca.Issue(dir, "kubelet", r.Kubelet(index)); err != nil {
		return err
	}
	kubeProxy := filepath.Join(dir, "kube-proxy.kubeconfig")
	if err := writeKubeconfig(r, ca, f.KubeletKubeconfig, r.Kubelet(index)); err != nil {
		return err
	}
	if err := writeKubeconfig(r, ca, kubeProxy, config.Component("kube-proxy")); err != nil {
		return err
	}
	kubeletConfig, err := r.KubeletConfig(index, f)
	if err != nil {
		return err
	}
	containerdConfig, err := r.Containerd()
	if err != nil {
		return err
	}
	proxyConfig, err := r.KubeProxy(kubeProxy, name)
	if err != nil {
		return err
	}
	files := []config.File{
		{Path: f.KubeletConfig, Content: kubeletConfig},
		{Path: f.ContainerdConfig, Content: containerdConfig},
		{Path: f.KubeProxyConfig, Content: proxyConfig},
		{Path: r.MaskSource(name, config.BootIDPath), Content: []byte(uuid.NewString() + "\n")},
		r.CNI(index),
		{Path: filepath.Join(root, "etc", "hostname"), Content: []byte(name + "\n")},
		{Path: filepath.Join(root, "etc", "hosts"), Content: []byte("127.0.0.1 localhost\n" + r.Plan.Node(index).String() + " " + name + "\n")},
		{Path: filepath.Join(root, "etc", "resolv.conf"), Content: []byte("# This cluster has no DNS.\n")},
	}
	for path, value := range config.KubeletSysctls() {
		files = append(files, config.File{Path: r.MaskSource(name, path), Content: []byte(value + "\n")})
	}
	if _, err := os.Stat(filepath.Join(root, "etc", "machine-id")); err != nil {
		id := strings.ReplaceAll(uuid.NewString(), "-", "")
		files = append(files, config.File{Path: filepath.Join(root, "etc", "machine-id"), Content: []byte(id + "\n")})
	}
	if err := writeFiles(files...); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(root, "etc", "cdi"), 0o755); err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	controlPlane, err := c.controlPlane()
	if err != nil {
		return fmt.Errorf("start %s: %w", name, err)
	}
	return c.launch(r.Node(index, f), func(pid int) error {
		return network.ConnectNode(r.Plan, c.layout.ID(), controlPlane.PID, pid, index)
	})
}

// controlPlane returns the init of the control plane, in whose namespace the network is.
func (c *Cluster) controlPlane() (procid.ID, error) {
	id := c.init(layout.ControlPlane)
	if !id.Alive() {
		return id, errors.New("the control plane, which holds the network, does not run: heal the cluster with `localcluster up`")
	}
	return id, nil
}

// connectNodes (re)wires every running node, for example to a control plane
// that was started anew.
func (c *Cluster) connectNodes(r config.Renderer) error {
	controlPlane := c.init(layout.ControlPlane)
	running := map[int]int{}
	for i, name := range r.Cluster.Nodes {
		id := c.init(name)
		if !id.Alive() {
			continue
		}
		running[i] = id.PID
		if err := network.ConnectNode(r.Plan, c.layout.ID(), controlPlane.PID, id.PID, i); err != nil {
			return fmt.Errorf("wire %s: %w", name, err)
		}
	}
	if err := network.ConnectPods(r.Plan, running); err != nil {
		return fmt.Errorf("connect the pods of the nodes: %w", err)
	}
	return nil
}

func writeKubeconfig(r config.Renderer, ca *pki.Authority, path string, subject pki.Subject) error {
	dir, name := filepath.Join(filepath.Dir(path), "pki"), strings.TrimSuffix(filepath.Base(path), ".kubeconfig")
	certFile, keyFile, err := ca.Issue(dir, name+"-client", subject)
	if err != nil {
		return err
	}
	var pems [3][]byte
	for i, file := range []string{ca.CertFile(), certFile, keyFile} {
		if pems[i], err = os.ReadFile(file); err != nil {
			return fmt.Errorf("write %s: %w", path, err)
		}
	}
	content, err := r.Kubeconfig(pems[0], pems[1], pems[2])
	if err != nil {
		return err
	}
	return writeFiles(config.File{Path: path, Content: content, Mode: 0o600})
}

func writeFiles(files ...config.File) error {
	for _, f := range files {
		if err := os.MkdirAll(filepath.Dir(f.Path), 0o755); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
		mode := f.Mode
		if mode == 0 {
			mode = 0o644
		}
		if err := renameio.WriteFile(f.Path, f.Content, mode); err != nil {
			return fmt.Errorf("write %s: %w", f.Path, err)
		}
	}
	return nil
}
