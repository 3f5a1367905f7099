// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Each case is a file that breaks one rule of .golangci.yml, or shows that the one beside it is allowed.
var lintCases = map[string]struct {
	file, source string
	// want is part of the finding; empty where there must be none.
	want string
}{
	"a pure package may not import client-go": {
		"pkg/device/a.go", `import _ "k8s.io/client-go/kubernetes"`, "k8s.io/client-go/kubernetes' is not allowed from list 'pure'",
	},
	"a pure package may not import os": {
		"pkg/topology/b.go", `import _ "os/exec"`, "os/exec' is not allowed from list 'pure'",
	},
	"a pure package below another may not either": {
		"pkg/topology/smi/a.go", `import _ "os"`, "os' is not allowed from list 'pure'",
	},
	"a pure package may not import an edge": {
		"pkg/resourcemodel/a.go", `import _ "github.com/switchyard-dev/switchyard/pkg/nvml"`, "pkg/nvml' is not allowed from list 'pure'",
	},
	"a pure package may import another and the API": {
		"pkg/resourcemodel/b.go", `import (
	_ "github.com/switchyard-dev/switchyard/api/v1alpha1"
	_ "github.com/switchyard-dev/switchyard/pkg/device"
)`, "",
	},
	"a test of a pure package may read files": {
		"pkg/device/a_test.go", `import _ "os"`, "",
	},
	"the API imports nothing of ours": {
		"api/v1alpha1/a.go", `import _ "github.com/switchyard-dev/switchyard/pkg/device"`, "is not allowed from list 'api'",
	},
	"an edge may not import test code": {
		"pkg/kubeletplugin/a.go", `import _ "github.com/switchyard-dev/switchyard/test/cluster"`, "is not allowed from list 'edges'",
	},
	"NVML is behind pkg/nvml": {
		"pkg/kubeletplugin/b.go", `import _ "github.com/NVIDIA/go-nvml/pkg/nvml"`, "is not allowed from list 'nvml'",
	},
	"pkg/nvml may import NVML": {
		"pkg/nvml/a.go", `import _ "github.com/NVIDIA/go-nvml/pkg/nvml"`, "",
	},
	"the shipped plugin carries no simulation": {
		"cmd/switchyard-kubelet-plugin/a.go", `import _ "github.com/switchyard-dev/switchyard/pkg/simulator"`, "is not allowed from list 'simulator'",
	},
	"the simulated node may": {
		"cmd/switchyard-sim/a.go", `import _ "github.com/switchyard-dev/switchyard/pkg/simulator"`, "",
	},
	"tests wait for conditions": {
		"pkg/nvml/b_test.go", `import "time"` + "\n\nfunc init() { time.Sleep(1) }", "time.Sleep",
	},
	"pure packages are told the time": {
		"pkg/device/c.go", `import "time"` + "\n\nvar now = time.Now()", "take the time as an argument",
	},
	"only main exits": {
		"pkg/nvml/c.go", `import "os"` + "\n\nfunc init() { os.Exit(1) }", "main and TestMain exit",
	},
	"log calls are contextual": {
		"pkg/nvml/d.go", `import "k8s.io/klog/v2"` + "\n\nfunc init() { klog.Infof(\"%d\", 1) }", "contextual logging",
	},
}

// foreign stand in for the modules that the cases import: the linter has to find them, not to run them.
var foreign = map[string]struct{ version, file, source string }{
	"k8s.io/client-go":          {"v0.0.0", "kubernetes/a.go", "package kubernetes\n"},
	"github.com/NVIDIA/go-nvml": {"v0.0.0", "pkg/nvml/a.go", "package nvml\n"},
	"k8s.io/klog/v2":            {"v2.0.0", "a.go", "package klog\n\nfunc Infof(string, ...any) {}\n"},
}

// TestLinterFindsWhatItIsThereFor lints a small module of violations with the repository's configuration.
func TestLinterFindsWhatItIsThereFor(t *testing.T) {
	linter := os.Getenv("LINTER")
	if linter == "" {
		t.Fatal("LINTER is not set: run `make verify`, which builds the linter")
	}
	dir := t.TempDir()
	write := func(file, content string) {
		t.Helper()
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(".golangci.yml", read(t, ".golangci.yml"))

	module := "module github.com/switchyard-dev/switchyard\n\ngo 1.26\n"
	for path, stub := range foreign {
		module += fmt.Sprintf("\nrequire %s %s\nreplace %s => ./foreign/%s\n", path, stub.version, path, path)
		write("foreign/"+path+"/go.mod", "module "+path+"\n\ngo 1.26\n")
		write("foreign/"+path+"/"+stub.file, stub.source)
	}
	write("go.mod", module)

	packages := map[string]bool{"pkg/simulator": true, "test/cluster": true}
	for test := range maps.Values(lintCases) {
		write(test.file, "package "+packageName(filepath.Dir(test.file))+"\n\n"+test.source+"\n")
		packages[filepath.Dir(test.file)] = true
	}
	for dir := range packages {
		write(dir+"/doc.go", "package "+packageName(dir)+"\n")
	}

	findings := lint(t, linter, dir)
	for name, test := range lintCases {
		t.Run(name, func(t *testing.T) {
			found := findings[test.file]
			if test.want == "" && len(found) > 0 {
				t.Errorf("%s: found %q, want nothing", test.file, found)
			}
			if !strings.Contains(strings.Join(found, "\n"), test.want) {
				t.Errorf("%s: found %q, want %q", test.file, found, test.want)
			}
		})
	}
}

func packageName(dir string) string { return strings.ReplaceAll(filepath.Base(dir), "-", "") }

// lint returns the texts of the findings by file.
func lint(t *testing.T, linter, dir string) map[string][]string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), linter, "run", "--enable-only=depguard,forbidigo,logcheck",
		"--output.json.path=stdout", "--output.text.path=", "--show-stats=false", "--issues-exit-code=0", "./...")
	cmd.Dir = dir
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v\n%s", linter, err, stderr.String())
	}
	var report struct {
		Issues []struct {
			Text string
			Pos  struct{ Filename string }
		}
	}
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatalf("read the linter's report: %v\n%s%s", err, stdout.String(), stderr.String())
	}
	findings := map[string][]string{}
	for _, issue := range report.Issues {
		findings[issue.Pos.Filename] = append(findings[issue.Pos.Filename], issue.Text)
	}
	return findings
}
