// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// The tests take manifests of the user guide from its pages, so that what users copy has been tried. A check in
// test/verify finds pages whose manifests no test takes.

const (
	repository = "../.."
	// overlay is what the node configurations of tests are based on; see main_test.go.
	overlay = "test/manifests/crashpoints"
)

var (
	example  = regexp.MustCompile("(?s)```yaml\n(.*?)```")
	anyImage = regexp.MustCompile(`(?m)image: busybox:[0-9.]+$`)
)

// guide returns the one manifest of a page of the user guide that has all of the parts. Images are the cluster's own.
func (s *space) guide(page string, parts ...string) string {
	s.Helper()
	content, err := os.ReadFile(filepath.Join(repository, "docs", "guide", page+".md"))
	s.must(err)
	var found []string
	for _, match := range example.FindAllStringSubmatch(string(content), -1) {
		has := true
		for _, part := range parts {
			has = has && strings.Contains(match[1], part)
		}
		if has {
			found = append(found, match[1])
		}
	}
	if len(found) != 1 {
		s.Fatalf("page %s has %d manifests with %q, want one", page, len(found), parts)
	}
	return anyImage.ReplaceAllString(found[0], "image: "+image)
}

// fromGuide applies the manifest of a page that has an object of a name.
func (s *space) fromGuide(page, name string) {
	s.Helper()
	manifest := s.guide(page, "\nmetadata:\n  name: "+name+"\n")
	s.must(the.ApplyYAML(s.ctx, s.name, manifest))
}

// specFromGuide is what a page's claim, or its template of claims, of a name asks for.
func (s *space) specFromGuide(page, name string) resourceapi.ResourceClaimSpec {
	s.Helper()
	var template resourceapi.ResourceClaimTemplate
	var claim resourceapi.ResourceClaim
	manifest, _, _ := strings.Cut(s.guide(page, "\nmetadata:\n  name: "+name+"\n"), "\n---\n")
	if strings.Contains(manifest, "kind: ResourceClaimTemplate\n") {
		s.must(yaml.UnmarshalStrict([]byte(manifest), &template))
		return template.Spec.Spec
	}
	s.must(yaml.UnmarshalStrict([]byte(manifest), &claim))
	return claim.Spec
}

// configure gives nodes a configuration for the test, as the guide says: file is that of a node, or default.yaml for all.
func (s *space) configure(file, config string) {
	s.Helper()
	build := filepath.Join(repository, "build")
	s.must(os.MkdirAll(build, 0o755))
	dir, err := os.MkdirTemp(build, "config")
	s.must(err)
	kustomization := s.guide("node-config", "configMapGenerator:")
	for old, now := range map[string]string{"[switchyard/deployments/manifests]": "[../../" + overlay + "]", "[default.yaml]": "[" + file + "]"} {
		if !strings.Contains(kustomization, old) {
			s.Fatalf("the guide's kustomization has no %s:\n%s", old, kustomization)
		}
		kustomization = strings.ReplaceAll(kustomization, old, now)
	}
	s.must(os.WriteFile(filepath.Join(dir, "kustomization.yaml"), []byte(kustomization), 0o600))
	s.must(os.WriteFile(filepath.Join(dir, file), []byte(config), 0o600))
	apply := func(dir string) {
		s.Helper()
		_, err := the.Kubectl(s.ctx, "apply", "-k", dir)
		s.must(err)
		s.must(the.WaitPlugins(s.ctx, patience))
	}
	s.Cleanup(func() {
		s.ctx = context.Background()
		s.clear()
		used, err := the.Kubectl(s.ctx, "-n", cluster.Namespace, "get", "daemonset", "switchyard-kubelet-plugin", "-o", `jsonpath={.spec.template.spec.volumes[?(@.name=="config")].configMap.name}`)
		s.must(err)
		apply(overlay)
		_, err = the.Kubectl(s.ctx, "-n", cluster.Namespace, "delete", "configmap", strings.TrimSpace(used))
		s.must(err)
		s.must(os.RemoveAll(dir))
	})
	apply(filepath.Join("build", filepath.Base(dir)))
}
