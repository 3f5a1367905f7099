// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

// Paths from this directory.
const (
	repository   = "../../.."
	localcluster = repository + "/bin/localcluster"
	manifests    = repository + "/deployments/manifests"
)

// plane is a control plane with the stand-in for its kubelets. All tests share it, each with nodes and a
// namespace of its own.
type plane struct {
	*controlplane.ControlPlane
	kubelet *fleet.Kubelet
	native  bool
}

var (
	// stock has default feature gates.
	stock *plane
	// native has the scheduler's own gangs; it is started by the first test that needs it.
	native = sync.OnceValues(func() (*plane, error) { return startPlane(context.Background(), true) })
	// started are the control planes that run.
	started []*plane
	// logger is the controllers'.
	logger klog.Logger
	// tempDir has the logs of control planes and controllers.
	tempDir string
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
	if tempDir, err = os.MkdirTemp("/tmp", "sy"); err != nil {
		return 0, err
	}
	log, err := os.Create(filepath.Join(tempDir, "controller.log"))
	if err != nil {
		return 0, err
	}
	logger = textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(log), textlogger.Verbosity(4)))
	crlog.SetLogger(logger)
	defer func() {
		err = errors.Join(err, log.Close())
		if code == 0 && err == nil {
			err = os.RemoveAll(tempDir)
		} else {
			fmt.Fprintln(os.Stderr, "Logs of the control plane and of the controllers are in", tempDir)
		}
	}()
	defer func() {
		for _, p := range started {
			err = errors.Join(err, p.Stop())
		}
	}()
	if stock, err = startPlane(context.Background(), false); err != nil {
		return 0, err
	}
	return m.Run(), nil
}

func startPlane(ctx context.Context, native bool) (*plane, error) {
	binaries, err := controlplane.Binaries(ctx, localcluster, os.Stderr)
	if err != nil {
		return nil, err
	}
	dir := filepath.Join(tempDir, fmt.Sprintf("native-%t", native))
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	p := &plane{native: native}
	p.ControlPlane, err = controlplane.Start(ctx, controlplane.Options{
		BinDir: binaries, Dir: dir, Scheduler: true, ControllerManager: true, NativeGangs: native,
		SchedulerArgs: []string{"-v=4"}, ControllerManagerArgs: []string{"-v=4"},
	})
	if err != nil {
		return nil, err
	}
	if err := p.Apply(ctx, manifests); err != nil {
		return nil, errors.Join(err, p.ControlPlane.Stop())
	}
	if p.kubelet, err = fleet.StartKubelet(ctx, p.Client()); err != nil {
		return nil, errors.Join(err, p.ControlPlane.Stop())
	}
	started = append(started, p)
	return p, nil
}

// Stop ends everything, and returns what the kubelets' stand-in saw go wrong.
func (p *plane) Stop() error {
	return errors.Join(p.kubelet.Stop(), p.ControlPlane.Stop())
}
