// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
)

// Paths from this directory.
const (
	repository   = "../.."
	localcluster = repository + "/bin/localcluster"
	manifests    = repository + "/deployments/manifests"
)

var (
	// cluster is the control plane that all tests share; each has a node and a namespace of its own.
	cluster *controlplane.ControlPlane
	// binaries is where the programs of the control plane are.
	binaries string
	// program is the path of the simulated node's program, built with the tag crashpoints.
	program func() (string, error)
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("/tmp", "sy")
	if err != nil {
		return 0, err
	}
	defer func() {
		if code == 0 && err == nil {
			err = os.RemoveAll(dir)
		} else {
			fmt.Fprintln(os.Stderr, "Logs of the control plane are in", dir)
		}
	}()

	program = sync.OnceValues(func() (string, error) { return buildProgram(ctx, dir) })
	if binaries, err = controlplane.Binaries(ctx, localcluster, os.Stderr); err != nil {
		return 0, err
	}
	cluster, err = controlplane.Start(ctx, controlplane.Options{BinDir: binaries, Dir: dir})
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, cluster.Stop()) }()
	if err := cluster.Apply(ctx, manifests); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

func buildProgram(ctx context.Context, dir string) (string, error) {
	path := filepath.Join(dir, "switchyard-sim")
	build := exec.CommandContext(ctx, "go", "build", "-tags", "crashpoints", "-o", dir+string(filepath.Separator),
		"./cmd/switchyard-sim", "./cmd/switchyard-sim-driver", "./cmd/switchyard-mps-supervisor")
	build.Dir = repository
	build.Stdout, build.Stderr = os.Stderr, os.Stderr
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("build switchyard-sim: %w", err)
	}
	return path, nil
}
