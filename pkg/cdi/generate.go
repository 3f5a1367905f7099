// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

// applyMemoryLimitsHook is the name of the one hook that is always off; nvcdi does not export it.
const applyMemoryLimitsHook = nvcdi.HookName("apply-cuda-memory-limits")

// generator tells what containers need, with paths as this process sees them. The edits it returns
// are the caller's.
type generator interface {
	// common is what every container with a device needs.
	common() (specs.ContainerEdits, error)
	// device is what a container needs besides for one GPU.
	device(uuid string) (specs.ContainerEdits, error)
}

// nvcdiGenerator asks nvcdi, in its NVML mode: what it finds must not depend on the other platforms
// that nvcdi knows how to detect. libnvidia-sandboxutils, which nvcdi would load besides NVML and
// prefer to it, stays out of the process for the same reason.
type nvcdiGenerator struct{ lib nvcdi.Interface }

func newNVCDIGenerator(ctx context.Context, lib gonvml.Interface, o Options, devRoot string) (generator, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	disabled := []nvcdi.HookName{applyMemoryLimitsHook}
	if o.HookPath == "" {
		disabled = append(disabled, nvcdi.AllHooks)
	}
	generated, err := nvcdi.New(
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithDriverRoot(o.DriverRootMount),
		nvcdi.WithDevRoot(devRoot),
		nvcdi.WithNVIDIACDIHookPath(o.HookPath),
		nvcdi.WithDisabledHooks(disabled...),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
		nvcdi.WithLogger(nvcdiLogger{klog.LoggerWithName(klog.FromContext(ctx), "nvcdi")}),
	)
	if err != nil {
		return nil, err
	}
	return nvcdiGenerator{generated}, nil
}

func (g nvcdiGenerator) common() (specs.ContainerEdits, error) {
	edits, err := g.lib.GetCommonEdits()
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	return *edits.ContainerEdits, nil
}

func (g nvcdiGenerator) device(uuid string) (specs.ContainerEdits, error) {
	devices, err := g.lib.GetDeviceSpecsByID(uuid)
	if err != nil {
		return specs.ContainerEdits{}, err
	}
	if len(devices) != 1 {
		return specs.ContainerEdits{}, fmt.Errorf("nvcdi returned %d devices for one UUID", len(devices))
	}
	return devices[0].ContainerEdits, nil
}

var errNoNVML = errors.New("there is no NVML")

// nvcdiLogger is what nvcdi logs to. It warns of every optional file that a driver does not have.
type nvcdiLogger struct{ klog.Logger }

func (l nvcdiLogger) Tracef(format string, args ...any) { l.V(7).Info(fmt.Sprintf(format, args...)) }

func (l nvcdiLogger) Debugf(format string, args ...any) { l.V(6).Info(fmt.Sprintf(format, args...)) }

func (l nvcdiLogger) Infof(format string, args ...any) { l.V(5).Info(fmt.Sprintf(format, args...)) }

func (l nvcdiLogger) Warningf(format string, args ...any) { l.V(4).Info(fmt.Sprintf(format, args...)) }

func (l nvcdiLogger) Errorf(format string, args ...any) { l.V(2).Info(fmt.Sprintf(format, args...)) }
