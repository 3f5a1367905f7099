// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func newRenderer(t *testing.T, gangs bool) Renderer {
	t.Helper()
	l, err := layout.New("/var/tmp/switchyard")
	if err != nil {
		t.Fatal(err)
	}
	plan, err := network.NewPlan("10.77.0.0/16")
	if err != nil {
		t.Fatal(err)
	}
	return Renderer{Layout: l, Plan: plan, Cluster: Cluster{
		Version: ClusterVersion, BinKey: "v1.37.2-0123456789", Bin: "/cache/bin", CIDR: "10.77.0.0/16",
		NativeGangs: gangs, Nodes: []string{"node-a", "node-b"},
	}}
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s differs from the golden file (rewrite it with -update); got:\n%s", name, got)
	}
}

func controlPlaneFiles() ControlPlaneFiles {
	return ControlPlaneFiles{
		CACert: "/pki/ca.crt", CAKey: "/pki/ca.key",
		APIServerCert: "/pki/kube-apiserver.crt", APIServerKey: "/pki/kube-apiserver.key",
		KubeletClientCert: "/pki/kubelet-client.crt", KubeletKey: "/pki/kubelet-client.key",
		FrontProxyCert: "/pki/front-proxy-client.crt", FrontProxyKey: "/pki/front-proxy-client.key",
		ServiceAccountKey: "/pki/service-account.key", ServiceAccount: "/pki/service-account.pub",
		Scheduler: "/cp/kube-scheduler.kubeconfig", ControllerManager: "/cp/kube-controller-manager.kubeconfig",
		KubeProxyConfig: "/cp/kube-proxy.yaml",
	}
}

func nodeFiles() NodeFiles {
	return NodeFiles{
		CACert: "/pki/ca.crt", KubeletCert: "/node-b/kubelet.crt", KubeletKey: "/node-b/kubelet.key",
		KubeletKubeconfig: "/node-b/kubelet.kubeconfig", KubeletConfig: "/node-b/kubelet.yaml",
		ContainerdConfig: "/node-b/containerd.toml", KubeProxyConfig: "/node-b/kube-proxy.yaml",
	}
}

func specJSON(t *testing.T, s *sandbox.Spec) []byte {
	t.Helper()
	out, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return append(out, '\n')
}

func TestGolden(t *testing.T) {
	r := newRenderer(t, false)
	gangs := newRenderer(t, true)
	golden(t, "control-plane.json", specJSON(t, r.ControlPlane(controlPlaneFiles())))
	golden(t, "control-plane-native-gangs.json", specJSON(t, gangs.ControlPlane(controlPlaneFiles())))
	golden(t, "node.json", specJSON(t, r.Node(1, nodeFiles())))
	for name, render := range map[string]func() ([]byte, error){
		"kubelet.yaml":              func() ([]byte, error) { return r.KubeletConfig(1, nodeFiles()) },
		"kubelet-native-gangs.yaml": func() ([]byte, error) { return gangs.KubeletConfig(1, nodeFiles()) },
		"containerd.toml":           r.Containerd,
		"kube-proxy.yaml":           func() ([]byte, error) { return r.KubeProxy("/node-b/kube-proxy.kubeconfig", "node-b") },
		"kubeconfig.yaml":           func() ([]byte, error) { return r.Kubeconfig([]byte("ca"), []byte("cert"), []byte("key")) },
		"cni.conflist":              func() ([]byte, error) { return r.CNI(1).Content, nil },
	} {
		got, err := render()
		if err != nil {
			t.Fatal(err)
		}
		golden(t, name, got)
	}
}

func TestDefaultProfileNamesNoFeatureGate(t *testing.T) {
	for _, s := range newRenderer(t, false).ControlPlane(controlPlaneFiles()).Services {
		for _, arg := range s.Args {
			if strings.Contains(arg, "feature-gates") || strings.Contains(arg, "runtime-config") {
				t.Errorf("%s has %s", s.Name, arg)
			}
		}
	}
}

func TestNativeGangsReachEveryComponentThatKnowsThem(t *testing.T) {
	const gates = "--feature-gates=DRAWorkloadResourceClaims=true,GenericWorkload=true"
	for _, s := range newRenderer(t, true).ControlPlane(controlPlaneFiles()).Services {
		want := s.Name != "etcd" && s.Name != "kube-proxy"
		if got := slices.Contains(s.Args, gates); got != want {
			t.Errorf("%s: gates set is %t, want %t", s.Name, got, want)
		}
	}
}

func TestNodeSeesFilesOfItsOwn(t *testing.T) {
	r := newRenderer(t, false)
	a, b := r.Node(0, nodeFiles()), r.Node(1, nodeFiles())
	if a.Root == b.Root || a.ControlSocket == b.ControlSocket || a.Logs == b.Logs {
		t.Error("two nodes share a folder or socket")
	}
	for path, source := range a.Masks {
		if b.Masks[path] == source {
			t.Errorf("two nodes share the file in the place of %s", path)
		}
	}
	if a.Masks[BootIDPath] != r.Layout.BootID("node-a") {
		t.Error("the documented boot ID file is not what the node sees")
	}
}
