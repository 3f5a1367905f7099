// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"k8s.io/klog/v2"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// kept is what one Refresh came to. It is never changed once it is shared.
type kept struct {
	inventory device.Inventory
	// version is the lowest CDI version that all edits can be written in.
	version string
	common  specs.ContainerEdits
	nodes   []node
	places  []place
	devices map[string]keptDevice
}

// keptDevice are the edits of one GPU, or why there are none.
type keptDevice struct {
	edits specs.ContainerEdits
	nodes []node
	err   error
}

// generate asks for the edits of an inventory, telling progress what it is about to do. GPUs that
// cannot be asked keep those of before, with which they may be in use.
func (w *Writer) generate(ctx context.Context, inv device.Inventory, before *kept, progress func(format string, args ...any)) (*kept, error) {
	now := &kept{inventory: inv, version: specs.CurrentVersion, devices: map[string]keptDevice{}}
	if len(inv.GPUs) == 0 {
		return now, nil
	}
	devRoot, began, daemons := w.devRoot(), fileTime(), daemonsOf(w.options.DriverRootMount)
	progress("initialise NVML")
	generator, err := w.newGenerator(ctx, devRoot)
	if err != nil {
		return nil, fmt.Errorf("set up nvcdi: %w", err)
	}
	spec := specs.Spec{Version: specs.CurrentVersion, Kind: Vendor + "/" + Class}
	progress("find the driver's files under %s", w.options.DriverRootMount)
	if spec.ContainerEdits, err = generator.common(); err != nil {
		return nil, fmt.Errorf("find the driver's files under %s: %w", w.options.DriverRootMount, err)
	}
	now.nodes = nodesOf(spec.ContainerEdits, devRoot, commonNodes...)
	now.places = append(daemons, placesOf(w.options.DriverRootMount, began, spec.ContainerEdits)...)

	logger := klog.FromContext(ctx)
	var carried []specs.Device
	carry := func(name string, err error) {
		now.devices[name] = before.carry(name, err)
		if had := now.devices[name]; had.err == nil {
			carried = append(carried, specs.Device{Name: name, ContainerEdits: had.edits})
		}
	}
	var failures []error
	for _, gpu := range inv.GPUs {
		name := gpu.Name()
		if other, taken := takenBy(gpu, inv); taken {
			now.devices[name] = keptDevice{err: fmt.Errorf("%w: of %s", ErrNodeTaken, other)}
			continue
		}
		switch gpu.Health.Reason {
		case device.ReasonLost:
			carry(name, fmt.Errorf("the GPU is lost: %s", gpu.Health.Message))
			continue
		case device.ReasonNotAnswering, device.ReasonNVMLUnavailable:
			carry(name, fmt.Errorf("the GPU does not answer: %s", gpu.Health.Message))
			continue
		}
		progress("tell what containers need for device %s", name)
		edits, err := generator.device(gpu.UUID)
		if err != nil {
			failures = append(failures, &DeviceEditsError{name, err})
			carry(name, err)
			logger.Error(err, "Cannot find what containers need for a GPU; claims of it get what was found before, if anything, or fail", "device", name)
			continue
		}
		now.devices[name] = keptDevice{nodes: nodesOf(edits, devRoot, neededNodes(gpu)...)}
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: edits})
	}
	if len(failures) > 0 && len(spec.Devices) == 0 {
		return nil, errors.Join(failures...)
	}
	if err := w.translate(&spec); err != nil {
		return nil, err
	}
	spec.Devices = append(spec.Devices, carried...) // they are translated
	if err := finish(&spec); err != nil {
		return nil, err
	}
	now.version, now.common = spec.Version, spec.ContainerEdits
	for _, d := range spec.Devices {
		device := now.devices[d.Name]
		device.edits = d.ContainerEdits
		now.devices[d.Name] = device
	}
	return now, nil
}

// takenBy returns which GPU has the minor number that a GPU had, if that is not listed any more. The driver numbers GPUs
// when it is loaded, and one that is lost by then has no number.
func takenBy(gpu device.GPU, inv device.Inventory) (string, bool) {
	for _, other := range inv.GPUs {
		listed := other.Health.Reason != device.ReasonLost && other.Health.Reason != device.ReasonNVMLUnavailable
		if other.UUID != gpu.UUID && listed && !gpu.Health.Healthy() && gpu.Minor != nil && other.Minor != nil && *gpu.Minor == *other.Minor {
			return other.Name(), true
		}
	}
	return "", false
}

// carry returns the edits that a device had, or err in their place.
func (k *kept) carry(name string, err error) keptDevice {
	if k != nil {
		if had, ok := k.devices[name]; ok && had.err == nil {
			return had
		}
	}
	return keptDevice{err: err}
}

// translate gives edits the host's paths and a fixed order.
func (w *Writer) translate(spec *specs.Spec) error {
	toHost := root.New(
		// With the slash, so that /driver-root is not found in /driver-root-2.
		root.WithRoot(withSlash(w.options.DriverRootMount)),
		root.WithTargetRoot(withSlash(w.options.DriverRoot)),
	)
	if err := transform.Merge(toHost, transform.NewSimplifier()).Transform(spec); err != nil {
		return fmt.Errorf("translate CDI edits to the host: %w", err)
	}
	return nil
}

// finish gives a spec the lowest CDI version that all its edits can be written in, and checks them.
func finish(spec *specs.Spec) error {
	version, err := specs.MinimumRequiredVersion(spec)
	if err != nil {
		return fmt.Errorf("choose the CDI version: %w", err)
	}
	spec.Version = version
	errs := []error{(&cdi.ContainerEdits{ContainerEdits: &spec.ContainerEdits}).Validate()}
	for i := range spec.Devices {
		errs = append(errs, (&cdi.ContainerEdits{ContainerEdits: &spec.Devices[i].ContainerEdits}).Validate())
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("CDI edits of nvcdi are not valid: %w", err)
	}
	return nil
}

func withSlash(path string) string {
	if path = filepath.Clean(path); path != "/" {
		path += "/"
	}
	return path
}

// devRoot is where the device nodes are. They may appear after the process has started.
func (w *Writer) devRoot() string {
	if w.options.DevRoot != "" {
		return w.options.DevRoot
	}
	if _, err := statNode(filepath.Join(w.options.DriverRootMount, commonNodes[0])); err == nil {
		return w.options.DriverRootMount
	}
	return "/"
}
