// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// run executes the program with arguments and returns its exit code and what it complains.
func run(t *testing.T, args ...string) (code int, complaint string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "stderr")
	stderr, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	oldArgs, oldStderr := os.Args, os.Stderr
	os.Args, os.Stderr = append([]string{"localcluster"}, args...), stderr
	code = Main([]byte("module m\n\nrequire k8s.io/kubernetes v1.37.2\n"))
	os.Args, os.Stderr = oldArgs, oldStderr
	stderr.Close()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text)
}

func TestUnknownCommandsFail(t *testing.T) {
	for _, args := range [][]string{{"upp"}, {"node", "reebot", "node-a"}, {"image", "laod", "x.tar"}} {
		if code, complaint := run(t, args...); code != 1 || !strings.Contains(complaint, "unknown command") {
			t.Errorf("%q: code %d, %q", args, code, complaint)
		}
	}
}

func TestWhatAProgramComplainedIsShown(t *testing.T) {
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "ldd"), []byte("#!/bin/sh\necho broken loader >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
	code, complaint := run(t, "image", "build", "--tag", "x:1", "--output", filepath.Join(bin, "x.tar"), "/bin/sh")
	if code == 0 || !strings.Contains(complaint, "broken loader") {
		t.Errorf("code %d, %q", code, complaint)
	}
}
