// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

const (
	specPerm    = 0o644
	specDirPerm = 0o755
)

// Options says where things are. All paths are absolute.
type Options struct {
	// SpecDir is a directory that the container runtime reads CDI specs from; it is made when missing.
	SpecDir string
	// NVML returns the NVML that nvcdi asks: it calls Init and Shutdown itself. It may return nil.
	NVML func() gonvml.Interface
	// DriverRoot is the root of the driver's files on the host: "/", or /run/nvidia/driver for a driver
	// container. Default: "/".
	DriverRoot string
	// DriverRootMount is where this process sees DriverRoot. Default: DriverRoot.
	DriverRootMount string
	// DevRoot is the directory above dev/nvidiactl, where this process sees it. Default:
	// DriverRootMount when the node is there, else "/".
	DevRoot string
	// ProcRoot is where proc is mounted; it says which device nodes MIG partitions need. Default: "/proc".
	ProcRoot string
	// HookPath is the host's path of nvidia-cdi-hook. Without it containers are created without hooks.
	HookPath string
	// Timeout is after how long nvcdi counts as hanging. Default: DefaultTimeout.
	Timeout time.Duration
}

func (o *Options) complete() error {
	if o.DriverRoot == "" {
		o.DriverRoot = "/"
	}
	if o.DriverRootMount == "" {
		o.DriverRootMount = o.DriverRoot
	}
	if o.ProcRoot == "" {
		o.ProcRoot = "/proc"
	}
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	var errs []error
	for _, path := range []struct {
		name, value string
		optional    bool
	}{
		{"SpecDir", o.SpecDir, false},
		{"DriverRoot", o.DriverRoot, false},
		{"DriverRootMount", o.DriverRootMount, false},
		{"DevRoot", o.DevRoot, true},
		{"ProcRoot", o.ProcRoot, false},
		{"HookPath", o.HookPath, true},
	} {
		if path.optional && path.value == "" {
			continue
		}
		if !filepath.IsAbs(path.value) {
			errs = append(errs, fmt.Errorf("CDI option %s: must be an absolute path, not %q", path.name, path.value))
		}
	}
	if filepath.Clean(o.DriverRootMount) == "/" && filepath.Clean(o.DriverRoot) != "/" {
		errs = append(errs, fmt.Errorf("CDI option DriverRootMount: must not be / while DriverRoot is %s: the two name one directory", o.DriverRoot))
	}
	if o.NVML == nil {
		errs = append(errs, errors.New("CDI option NVML: must be set"))
	}
	return errors.Join(errs...)
}

// Writer writes the specs of claims. It is safe for concurrent use on different claims.
type Writer struct {
	options      Options
	logger       klog.Logger
	newGenerator func(ctx context.Context, devRoot string) (generator, error)

	mu   sync.RWMutex
	kept *kept // Guarded by mu, as the rest.
	// looking is nvcdi being asked; nil while it is not.
	looking *look
	// failure is why the last look failed; nil when it did not.
	failure error
}

// NewWriter returns a Writer and removes the temporary files of a killed one. Nothing can be written
// before Refresh. The context carries the logger.
func NewWriter(ctx context.Context, options Options) (*Writer, error) {
	if err := options.complete(); err != nil {
		return nil, err
	}
	w := &Writer{options: options, logger: klog.LoggerWithName(klog.FromContext(ctx), "cdi")}
	w.newGenerator = func(ctx context.Context, devRoot string) (generator, error) {
		lib := options.NVML()
		if lib == nil {
			return nil, errNoNVML
		}
		return newNVCDIGenerator(ctx, lib, w.options, devRoot)
	}
	if err := w.CleanTemp(); err != nil {
		w.logger.Error(err, "Temporary files of a killed process stay in the CDI directory")
	}
	return w, nil
}

// WriteClaim makes sure that the claim's spec is on disk as it should be, and returns the qualified
// CDI name of each device, in their order. It fails with ErrNotReady, ErrNotResponding,
// *UnknownDeviceError, *DeviceEditsError or *DeviceNodeError before anything is written.
func (w *Writer) WriteClaim(claim types.UID, devices []ClaimDevice) ([]string, error) {
	names, err := w.writeClaim(claim, devices)
	if err != nil {
		return nil, fmt.Errorf("CDI spec of claim UID %s: %w", claim, err)
	}
	return names, nil
}

func (w *Writer) writeClaim(claim types.UID, devices []ClaimDevice) ([]string, error) {
	if err := validateNames(claim, devices); err != nil {
		return nil, err
	}
	if len(devices) == 0 {
		return nil, errors.New("there is no device to write")
	}
	edits, err := w.check(devices)
	if err != nil {
		return nil, err
	}
	data, err := w.spec(edits, claim, devices)
	if err != nil {
		return nil, err
	}
	if err := w.ensure(filepath.Join(w.options.SpecDir, specName(claim)), data); err != nil {
		return nil, err
	}
	names := make([]string, len(devices))
	for i, device := range devices {
		names[i] = QualifiedName(claim, device)
	}
	return names, nil
}

// Moved reports whether driver files were added, replaced or removed since the last Refresh, so that specs may lack some.
func (w *Writer) Moved() bool {
	edits, _ := w.current()
	return edits != nil && edits.moved()
}

// Check reports whether WriteClaim could write a spec of the devices, with the same errors.
func (w *Writer) Check(devices []ClaimDevice) error {
	_, err := w.check(devices)
	return err
}

// check returns edits whose device nodes are all there.
func (w *Writer) check(devices []ClaimDevice) (*kept, error) {
	edits, failure := w.current()
	if edits == nil {
		return nil, notReady(failure)
	}
	if edits.moved() {
		if err := w.refreshOnce(edits); err != nil { // as by what is known, then
			w.logger.Error(err, "The driver's files have changed, and what containers need of them cannot be found out")
		}
		edits, _ = w.current()
	}
	stale, err := edits.check(devices)
	if err == nil {
		return edits, nil
	}
	if !stale {
		return nil, err
	}
	if refreshErr := w.refreshOnce(edits); refreshErr != nil {
		return nil, errors.Join(err, refreshErr)
	}
	edits, _ = w.current()
	if _, err := edits.check(devices); err != nil {
		return nil, err
	}
	return edits, nil
}

// check looks for everything that the devices need. stale says that asking nvcdi again may help.
func (k *kept) check(devices []ClaimDevice) (stale bool, err error) {
	for _, device := range devices {
		edits, ok := k.devices[device.of()]
		if !ok {
			return false, &UnknownDeviceError{device.Name}
		}
		if edits.err != nil {
			return true, &DeviceEditsError{device.Name, edits.err}
		}
		if stale, path, err := checkNodes(append(slices.Clip(k.nodes), edits.nodes...)); err != nil {
			return stale, &DeviceNodeError{device.Name, path, err}
		}
	}
	return false, nil
}

// spec is the content of a claim's spec file.
func (w *Writer) spec(k *kept, claim types.UID, devices []ClaimDevice) ([]byte, error) {
	spec := specs.Spec{Version: k.version, Kind: Vendor + "/" + Class, ContainerEdits: k.common}
	for _, device := range devices {
		name := device.deviceName(claim)
		// A device may be there twice: with and without admin access.
		if slices.ContainsFunc(spec.Devices, func(d specs.Device) bool { return d.Name == name }) {
			continue
		}
		edits := k.devices[device.Name].edits
		if device.Partition.GPU != "" {
			if !device.Partition.Made {
				return nil, &DeviceEditsError{device.Name, errors.New("the partition is not made yet")}
			}
			var err error
			if edits, err = k.partition(device, w.options.ProcRoot, w.devRoot()); err != nil {
				return nil, err
			}
		}
		spec.Devices = append(spec.Devices, specs.Device{Name: name, ContainerEdits: share(edits, device.Sharing)})
	}
	data, err := json.Marshal(spec)
	if err != nil {
		return nil, err
	}
	return append(data, '\n'), nil
}

// share adds what containers need to share a device to its edits, which stay as they are.
func share(edits specs.ContainerEdits, sharing *Sharing) specs.ContainerEdits {
	if sharing == nil {
		return edits
	}
	edits.Env = append(slices.Clip(edits.Env), sharing.Env...)
	edits.Mounts = slices.Clip(edits.Mounts)
	for _, mount := range sharing.Mounts {
		edits.Mounts = append(edits.Mounts, &specs.Mount{
			HostPath: mount.HostPath, ContainerPath: mount.ContainerPath, Options: []string{"rw", "nosuid", "nodev", "rbind", "rprivate"},
		})
	}
	return edits
}

// ensure writes a file unless it is there as it should be.
func (w *Writer) ensure(path string, data []byte) error {
	err := atomicfile.Ensure(path, data, specPerm)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(w.options.SpecDir, specDirPerm); err != nil {
			return fmt.Errorf("make the CDI directory: %w", err)
		}
		err = atomicfile.Write(path, data, specPerm)
	}
	return err
}

// RemoveClaim removes the claim's spec; one that is not there is no error.
func (w *Writer) RemoveClaim(claim types.UID) error {
	if !validUID(string(claim)) {
		return nil // It cannot have one.
	}
	if err := os.Remove(filepath.Join(w.options.SpecDir, specName(claim))); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove CDI spec of claim UID %s: %w", claim, err)
	}
	return nil
}

// Claims lists the claims that have a spec, sorted. Specs of others are not looked at.
func (w *Writer) Claims() ([]types.UID, error) {
	entries, err := os.ReadDir(w.options.SpecDir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list CDI specs: %w", err)
	}
	var claims []types.UID
	for _, entry := range entries {
		if uid, ok := claimOf(entry.Name()); ok {
			claims = append(claims, uid)
		}
	}
	slices.Sort(claims)
	return claims, nil
}

// CleanTemp removes the temporary files that killed writers left in the spec directory. Those of
// living ones, also in other processes, and those of other vendors stay.
func (w *Writer) CleanTemp() error {
	removed, err := atomicfile.RemoveStale(w.options.SpecDir, func(base string) bool {
		_, ours := claimOf(base)
		return ours
	})
	if len(removed) > 0 {
		w.logger.Info("Removed temporary files of a killed process", "directory", w.options.SpecDir, "files", removed)
	}
	if err != nil {
		return fmt.Errorf("remove temporary files from the CDI directory: %w", err)
	}
	return nil
}
