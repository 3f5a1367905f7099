// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package build compiles the programs of the cluster from the modules that
// go.mod pins, and finds the Debian packages they need. It imports only the
// standard library, golang.org/x/mod and golang.org/x/sys/unix.
package build

import (
	"crypto/sha256"
	"fmt"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/mod/modfile"
)

// Program is one binary of the cluster.
type Program struct {
	// Name is the binary's path below the folder of binaries.
	Name string
	// Package is what is compiled.
	Package string
	// Module provides the version that is stamped into the binary.
	Module string
	// Tags are build tags.
	Tags string
	// Stamp returns linker flags for a version such as v1.2.3.
	Stamp func(version string) string
	// Static compiles without cgo, for programs that run inside images.
	Static bool
}

// noStamp is for programs that report no version, or carry it themselves.
func noStamp(string) string { return "" }

func stampKubernetes(version string) string {
	major, rest, _ := strings.Cut(strings.TrimPrefix(version, "v"), ".")
	minor, _, _ := strings.Cut(rest, ".")
	var flags []string
	for _, pkg := range []string{"k8s.io/component-base/version", "k8s.io/client-go/pkg/version"} {
		for _, value := range []string{"gitVersion=" + version, "gitMajor=" + major, "gitMinor=" + minor, "gitTreeState=clean"} {
			flags = append(flags, "-X "+pkg+"."+value)
		}
	}
	return strings.Join(flags, " ")
}

func stampVariable(variable string) func(string) string {
	return func(version string) string { return "-X " + variable + "=" + version }
}

func kubernetes(name string) Program {
	return Program{Name: name, Package: "k8s.io/kubernetes/cmd/" + name, Module: "k8s.io/kubernetes", Stamp: stampKubernetes}
}

func containerd(name string) Program {
	const module = "github.com/containerd/containerd/v2"
	return Program{Name: name, Package: module + "/cmd/" + name, Module: module, Stamp: stampVariable(module + "/version.Version")}
}

func cni(kind, name string) Program {
	const module = "github.com/containernetworking/plugins"
	return Program{
		Name: "cni/" + name, Package: module + "/plugins/" + kind + "/" + name, Module: module,
		Stamp: stampVariable(module + "/pkg/utils/buildversion.BuildVersion"),
	}
}

// PauseProgram is the binary of the pause image, below the folder of binaries.
const PauseProgram = "images/pause"

// Programs are built in this order: the API server first, because it compiles
// most of what the others share.
func Programs() []Program {
	return []Program{
		kubernetes("kube-apiserver"),
		kubernetes("kube-controller-manager"),
		kubernetes("kube-scheduler"),
		kubernetes("kubelet"),
		kubernetes("kube-proxy"),
		kubernetes("kubectl"),
		{Name: "etcd", Package: "go.etcd.io/etcd/server/v3", Module: "go.etcd.io/etcd/server/v3", Stamp: noStamp},
		containerd("containerd"),
		containerd("containerd-shim-runc-v2"),
		containerd("ctr"),
		// The kubelet asks for the RuntimeDefault seccomp profile on pod
		// sandboxes, which a runc without the tag refuses.
		{Name: "runc", Package: "github.com/opencontainers/runc", Module: "github.com/opencontainers/runc", Tags: "seccomp", Stamp: noStamp},
		cni("main", "ptp"),
		cni("ipam", "host-local"),
		{Name: "crictl", Package: "sigs.k8s.io/cri-tools/cmd/crictl", Module: "sigs.k8s.io/cri-tools", Stamp: stampVariable("sigs.k8s.io/cri-tools/pkg/version.Version")},
		{Name: "helm", Package: "helm.sh/helm/v4/cmd/helm", Module: "helm.sh/helm/v4", Stamp: stampVariable("helm.sh/helm/v4/internal/version.version")},
		{Name: PauseProgram, Package: "./pause", Stamp: noStamp, Static: true},
	}
}

// recipe changes whenever the way of building changes in a way that versions
// do not show.
const recipe = "1"

// Versions are the module versions of a go.mod.
type Versions struct {
	require map[string]string
	key     string
}

// ParseVersions reads a go.mod.
func ParseVersions(goMod []byte) (Versions, error) {
	file, err := modfile.Parse("go.mod", goMod, nil)
	if err != nil {
		return Versions{}, fmt.Errorf("parse the cluster's go.mod: %w", err)
	}
	v := Versions{require: map[string]string{}}
	lines := []string{"recipe " + recipe, "go " + runtime.Version(), runtime.GOOS + "/" + runtime.GOARCH}
	for _, r := range file.Require {
		v.require[r.Mod.Path] = r.Mod.Version
		lines = append(lines, "require "+r.Mod.String())
	}
	for _, r := range file.Replace {
		lines = append(lines, "replace "+r.Old.String()+" "+r.New.String())
	}
	slices.Sort(lines)
	sum := sha256.Sum256([]byte(strings.Join(lines, "\n")))
	v.key = fmt.Sprintf("%s-%x", v.require["k8s.io/kubernetes"], sum[:5])
	return v, nil
}

// Key names the set of binaries that these versions give: binaries of the same
// key are the same.
func (v Versions) Key() string { return v.key }

// Of returns the version of a module, or "" for one that is not required.
func (v Versions) Of(module string) string { return v.require[module] }
