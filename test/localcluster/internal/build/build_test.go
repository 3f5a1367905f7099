// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"os"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
)

func moduleFile(t *testing.T) []byte {
	t.Helper()
	data, err := os.ReadFile("../../go.mod")
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func TestEveryToolOfTheModuleIsBuilt(t *testing.T) {
	file, err := modfile.Parse("go.mod", moduleFile(t), nil)
	if err != nil {
		t.Fatal(err)
	}
	var tools, built []string
	for _, tool := range file.Tool {
		tools = append(tools, tool.Path)
	}
	for _, p := range Programs() {
		if p.Module != "" {
			built = append(built, p.Package)
		}
	}
	slices.Sort(tools)
	slices.Sort(built)
	if !slices.Equal(tools, built) {
		t.Errorf("go.mod's tools are\n%s\nbut these programs are built:\n%s", strings.Join(tools, "\n"), strings.Join(built, "\n"))
	}
}

func TestEveryProgramHasAVersion(t *testing.T) {
	versions, err := ParseVersions(moduleFile(t))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range Programs() {
		if p.Module != "" && versions.Of(p.Module) == "" {
			t.Errorf("%s: go.mod does not require %s", p.Name, p.Module)
		}
	}
	if !strings.HasPrefix(versions.Key(), versions.Of("k8s.io/kubernetes")+"-") {
		t.Errorf("key %s does not begin with Kubernetes' version", versions.Key())
	}
}

func TestKeyChangesWithVersionsAndWithNothingElse(t *testing.T) {
	const base = "module m\n\ngo 1.26\n\nrequire (\n\tk8s.io/kubernetes v1.37.2\n\ta.example/b v1.0.0 // indirect\n)\n"
	key := func(mod string) string {
		v, err := ParseVersions([]byte(mod))
		if err != nil {
			t.Fatal(err)
		}
		return v.Key()
	}
	for name, tt := range map[string]struct {
		old, new string
		same     bool
	}{
		"a dependency becomes a direct one": {" // indirect", "", true},
		"a dependency's version":            {"v1.0.0", "v1.0.1", false},
		"Kubernetes' version":               {"v1.37.2", "v1.37.3", false},
		"a replacement":                     {"go 1.26\n", "go 1.26\n\nreplace a.example/b => a.example/c v1.0.0\n", false},
	} {
		if same := key(base) == key(strings.Replace(base, tt.old, tt.new, 1)); same != tt.same {
			t.Errorf("%s: same key is %t, want %t", name, same, tt.same)
		}
	}
	if _, err := ParseVersions([]byte("require (")); err == nil {
		t.Error("a damaged go.mod is accepted")
	}
}

func TestStampKubernetes(t *testing.T) {
	flags := stampKubernetes("v1.37.2")
	for _, want := range []string{
		"-X k8s.io/component-base/version.gitVersion=v1.37.2", "-X k8s.io/component-base/version.gitMajor=1",
		"-X k8s.io/client-go/pkg/version.gitMinor=37",
	} {
		if !strings.Contains(flags, want) {
			t.Errorf("%q misses %q", flags, want)
		}
	}
}

func TestMissingPackagesAsksForBuildToolsOnlyWhenBuilding(t *testing.T) {
	no := func() bool { return false }
	all := []need{
		{pkg: "shell", command: "sh"},
		{pkg: "nonsense", command: "no-such-command-anywhere"},
		{pkg: "library", present: no},
		{pkg: "headers", present: no, building: true},
		{pkg: "there", present: func() bool { return true }},
	}
	if got := missingPackages(all, false); !slices.Equal(got, []string{"nonsense", "library"}) {
		t.Errorf("running: %v", got)
	}
	if got := missingPackages(all, true); !slices.Equal(got, []string{"nonsense", "library", "headers"}) {
		t.Errorf("building: %v", got)
	}
}

func TestMissingListsWhatIsNotBuilt(t *testing.T) {
	b := &Builder{Dir: t.TempDir()}
	if got, want := len(b.Missing()), len(Programs()); got != want {
		t.Errorf("%d of %d missing in an empty folder", got, want)
	}
	if err := os.WriteFile(b.Dir+"/kubelet", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(b.Dir+"/kube-proxy.partial", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if slices.ContainsFunc(b.Missing(), func(p Program) bool { return p.Name == "kubelet" }) {
		t.Error("kubelet is there but counts as missing")
	}
	if !slices.ContainsFunc(b.Missing(), func(p Program) bool { return p.Name == "kube-proxy" }) {
		t.Error("a partial binary counts as built")
	}
}

func TestSourceDirIsThisModule(t *testing.T) {
	dir, err := sourceDir()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir + "/pause/main.go"); err != nil {
		t.Error(err)
	}
}
