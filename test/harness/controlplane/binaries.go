// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Binaries returns the folder with the programs of the control plane and builds those that are not
// there, which takes ten minutes the first time; progress goes to out. localcluster is the program of
// test/localcluster: it knows the versions and builds for the local cluster as well.
func Binaries(ctx context.Context, localcluster string, out io.Writer) (string, error) {
	dir, err := output(exec.CommandContext(ctx, localcluster, "build", "--print-dir"))
	if err != nil {
		return "", fmt.Errorf("find the control plane's programs: %w (make build makes %s)", err, localcluster)
	}
	for _, name := range []string{"etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager"} {
		if _, err := os.Stat(filepath.Join(dir, name)); err == nil {
			continue
		}
		build := exec.CommandContext(ctx, localcluster, "build")
		build.Stdout, build.Stderr = out, out
		if err := build.Run(); err != nil {
			return "", fmt.Errorf("build the control plane's programs: %w", err)
		}
		break
	}
	return dir, nil
}

func output(cmd *exec.Cmd) (string, error) {
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	stdout, err := cmd.Output()
	if err != nil {
		return "", errors.Join(err, errors.New(strings.TrimSpace(stderr.String())))
	}
	return strings.TrimSpace(string(stdout)), nil
}
