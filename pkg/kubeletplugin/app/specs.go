// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// hookName is the program of NVIDIA Container Toolkit that CDI specs have the container runtime call.
const hookName = "nvidia-cdi-hook"

// specWriter writes CDI specs, and puts the hook that they name in its place before the first one.
type specWriter struct {
	*cdi.Writer
	installHook func() error
}

// newSpecs returns the writer of CDI specs. It looks neither at the driver nor at the hardware yet.
func newSpecs(ctx context.Context, o Options, platform Platform) (*specWriter, error) {
	installHook := func() error { return nil }
	if o.CDIHookPath == "" {
		if bundled, err := bundledHook(); err != nil {
			klog.FromContext(ctx).Info("No nvidia-cdi-hook beside this program and no --cdi-hook-path: containers find the driver's libraries only through LD_LIBRARY_PATH", "err", err)
		} else {
			o.CDIHookPath = filepath.Join(o.PluginDir, hookName)
			installHook = func() error { return copyProgram(bundled, o.CDIHookPath) }
		}
	}
	writer, err := cdi.NewWriter(ctx, cdi.Options{
		SpecDir:         o.CDIDir,
		NVML:            platform.Interface,
		DriverRoot:      o.DriverRoot,
		DriverRootMount: o.DriverRootMount,
		DevRoot:         o.DevRoot,
		ProcRoot:        o.ProcRoot,
		HookPath:        o.CDIHookPath,
	})
	if err != nil {
		return nil, fmt.Errorf("set up CDI specs: %w", err)
	}
	return &specWriter{Writer: writer, installHook: installHook}, nil
}

// Refresh finds out what containers need, hooks included.
func (w *specWriter) Refresh(ctx context.Context, inv device.Inventory) error {
	if err := w.installHook(); err != nil {
		return fmt.Errorf("install %s: %w", hookName, err)
	}
	return w.Writer.Refresh(ctx, inv)
}

// bundledHook is the path of the hook that was shipped with this program, in the same directory.
func bundledHook() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	hook := filepath.Join(filepath.Dir(program), hookName)
	if _, err := os.Stat(hook); err != nil {
		return "", err
	}
	return hook, nil
}

// copyProgram makes target the same program as source, unless size and time say that it is already.
// Containers may be calling target: it is replaced as a whole.
func copyProgram(source, target string) (finalErr error) {
	from, err := os.Open(source)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, from.Close()) }()
	info, err := from.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Stat(target); err == nil && now.Size() == info.Size() && now.ModTime().Equal(info.ModTime()) && now.Mode() == programPerm {
		return nil
	}
	if _, err := atomicfile.RemoveStale(filepath.Dir(target), func(base string) bool { return base == hookName }); err != nil {
		return err
	}
	to, err := atomicfile.New(target, programPerm)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, to.Discard()) }()
	if _, err := io.Copy(to, from); err != nil {
		return err
	}
	if err := to.Replace(); err != nil {
		return err
	}
	return os.Chtimes(target, info.ModTime(), info.ModTime())
}

const programPerm = 0o755
