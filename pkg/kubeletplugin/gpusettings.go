// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/internal/atomicfile"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// ComputeModes says who may compute on a GPU, which is named as a device. *nvml.Library implements it.
type ComputeModes interface {
	ComputeMode(ctx context.Context, gpu string) (string, error)
	SetComputeMode(ctx context.Context, gpu, mode string) error
}

// TimeSlicer sets the time slices of GPUs: 0 is the driver's choice, 1 to 3 are short to long. sharing.SMI implements it.
type TimeSlicer interface {
	SetTimeSlice(ctx context.Context, gpuUUID string, interval int) error
}

// settingsTimeout bounds what one claim waits for the settings of a GPU.
const settingsTimeout = 15 * time.Second

// exclusiveProcess is the compute mode in which only one process computes on a GPU: the MPS server.
const exclusiveProcess = "ExclusiveProcess"

// timeSlices are what nvidia-smi calls the intervals.
var timeSlices = map[string]int{
	"":                                0,
	string(v1alpha1.DefaultTimeSlice): 0,
	string(v1alpha1.ShortTimeSlice):   1,
	string(v1alpha1.MediumTimeSlice):  2,
	string(v1alpha1.LongTimeSlice):    3,
}

// gpuSettings are what claims want of a GPU's settings. The zero value is what the GPU had before.
type gpuSettings struct {
	exclusive bool
	timeSlice string
}

// changedSettings is what was changed of a GPU's settings: the content of a file in the ledger. It is written before a
// setting is changed and after it was taken back, so that a change without a note cannot exist. No setting outlives
// a reboot.
type changedSettings struct {
	BootID string `json:"bootID"`
	// ComputeMode is what it was before; empty when it was not changed.
	ComputeMode string `json:"computeMode,omitempty"`
	// TimeSlice is what it was or is to be set to, and TimeSliceSet says that it was; empty when it was not changed.
	TimeSlice    string `json:"timeSlice,omitempty"`
	TimeSliceSet bool   `json:"timeSliceSet,omitempty"`
}

// settings changes the settings of GPUs and takes them back. Those of one GPU are dealt with one after the other.
type settings struct {
	dir, bootID string
	modes       ComputeModes
	slices      TimeSlicer
	gpus        keyedLock[string]
}

// settingsDirName is the directory of the ledger in the plugin directory.
const settingsDirName = "settings"

// openSettings forgets what was changed on other boots.
func openSettings(config Config, bootID string) (*settings, error) {
	s := &settings{dir: filepath.Join(config.PluginDir, settingsDirName), bootID: bootID, modes: config.ComputeModes, slices: config.TimeSlicer}
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		return nil, fmt.Errorf("create the directory for settings of GPUs: %w", err)
	}
	if _, err := atomicfile.RemoveStale(s.dir, isGPUName); err != nil {
		return nil, fmt.Errorf("tidy the directory for settings of GPUs: %w", err)
	}
	gpus, err := s.list()
	if err != nil {
		return nil, err
	}
	for _, gpu := range gpus {
		if s.ofOtherBoot(gpu) {
			if err := s.forget(gpu); err != nil {
				return nil, err
			}
		}
	}
	return s, nil
}

// ofOtherBoot reports whether a note is one of another boot. Notes are not synced, so a power loss may leave one that
// is empty or of zeros; within a boot none becomes like that.
func (s *settings) ofOtherBoot(gpu string) bool {
	var changed changedSettings
	data, err := os.ReadFile(filepath.Join(s.dir, gpu))
	if err != nil {
		return false
	}
	return len(bytes.Trim(data, "\x00")) == 0 || json.Unmarshal(data, &changed) == nil && changed.BootID != s.bootID
}

// isGPUName reports whether a name can be that of a whole GPU as a device.
func isGPUName(name string) bool {
	_, partition := device.ParsePartitionName(name)
	return strings.HasPrefix(name, "gpu-") && !partition
}

// list returns the GPUs whose settings were changed.
func (s *settings) list() ([]string, error) {
	entries, err := os.ReadDir(s.dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("list the GPUs whose settings were changed: %w", err)
	}
	var gpus []string
	for _, entry := range entries {
		if isGPUName(entry.Name()) {
			gpus = append(gpus, entry.Name())
		}
	}
	return gpus, nil
}

// has reports whether settings of a GPU were changed.
func (s *settings) has(gpu string) bool {
	_, err := os.Lstat(filepath.Join(s.dir, gpu))
	return err == nil
}

func (s *settings) read(gpu string) (changedSettings, error) {
	var changed changedSettings
	data, err := os.ReadFile(filepath.Join(s.dir, gpu))
	if err == nil {
		err = json.Unmarshal(data, &changed)
	}
	return changed, err
}

func (s *settings) write(gpu string, changed changedSettings) error {
	changed.BootID = s.bootID
	data, err := json.Marshal(changed)
	if err == nil {
		err = os.MkdirAll(s.dir, 0o700) // somebody may have tidied up
	}
	if err == nil {
		err = atomicfile.Write(filepath.Join(s.dir, gpu), data, 0o600)
	}
	if err != nil {
		return fmt.Errorf("note that settings of GPU %s are changed: %w", gpu, err)
	}
	return nil
}

func (s *settings) forget(gpu string) error {
	if err := os.Remove(filepath.Join(s.dir, gpu)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("note that settings of GPU %s are as before: %w", gpu, err)
	}
	return nil
}

// settle makes the settings of a GPU what is wanted when it is its turn, and those that nobody wants any more what they
// were. What is set already is set again only if always says so.
func (s *settings) settle(ctx context.Context, gpu, uuid string, wanted func() gpuSettings, always bool) error {
	ctx, cancel := context.WithTimeout(ctx, settingsTimeout)
	defer cancel()
	unlock, err := s.gpus.Lock(ctx, gpu)
	if err != nil {
		return fmt.Errorf("wait for another claim that changes settings of the GPU: %w", err)
	}
	defer unlock()
	changed, err := s.read(gpu)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		// It says at most what the compute mode was.
		changed = changedSettings{ComputeMode: "Default", TimeSlice: string(v1alpha1.DefaultTimeSlice)}
	}
	want := wanted()
	if err := s.settleMode(ctx, gpu, want, &changed); err != nil {
		return err
	}
	if err := s.settleTimeSlice(ctx, gpu, uuid, want, &changed, always); err != nil {
		return err
	}
	if changed.ComputeMode == "" && changed.TimeSlice == "" {
		return s.forget(gpu)
	}
	return nil
}

func (s *settings) settleMode(ctx context.Context, gpu string, want gpuSettings, changed *changedSettings) error {
	if !want.exclusive && changed.ComputeMode == "" {
		return nil
	}
	if s.modes == nil {
		return errors.New("this plugin cannot set compute modes")
	}
	now, err := s.modes.ComputeMode(ctx, gpu)
	if err != nil {
		return err
	}
	if !want.exclusive {
		if now == exclusiveProcess && now != changed.ComputeMode { // else somebody has changed it
			if err := s.modes.SetComputeMode(ctx, gpu, changed.ComputeMode); err != nil {
				return err
			}
		}
		changed.ComputeMode = ""
		return s.write(gpu, *changed)
	}
	if changed.ComputeMode == "" {
		changed.ComputeMode = now
		if err := s.write(gpu, *changed); err != nil {
			return err
		}
		crashAt(crashBeforeSettings)
	}
	if now == exclusiveProcess {
		return nil
	}
	return s.modes.SetComputeMode(ctx, gpu, exclusiveProcess)
}

func (s *settings) settleTimeSlice(ctx context.Context, gpu, uuid string, want gpuSettings, changed *changedSettings, always bool) error {
	if want.timeSlice == changed.TimeSlice && (want.timeSlice == "" || changed.TimeSliceSet && !always) {
		return nil
	}
	if s.slices == nil {
		return errors.New("sharing.timeSlicing.interval: this plugin cannot set time slices")
	}
	if want.timeSlice != "" {
		noted := changed.TimeSlice == want.timeSlice
		changed.TimeSlice, changed.TimeSliceSet = want.timeSlice, false
		if err := s.write(gpu, *changed); err != nil {
			return err
		}
		if !noted {
			crashAt(crashBeforeSettings)
		}
	}
	err := s.slices.SetTimeSlice(ctx, uuid, timeSlices[want.timeSlice])
	if err != nil && want.timeSlice == "" && !changed.TimeSliceSet && ctx.Err() == nil {
		// The GPU refused it before, or was never asked: it has none to set, so there is none to take back. Else
		// one claim with an interval would have it refused to all that come after.
		klog.FromContext(ctx).Info("A time slice of a GPU that is not known to have been set cannot be taken back, leaving it", "device", gpu, "err", err)
		err = nil
	}
	if err != nil {
		return fmt.Errorf("sharing.timeSlicing.interval: set it to %s: %w; if the GPU has none to set, remove the interval", want.timeSlice, err)
	}
	changed.TimeSlice, changed.TimeSliceSet = want.timeSlice, want.timeSlice != ""
	return s.write(gpu, *changed)
}
