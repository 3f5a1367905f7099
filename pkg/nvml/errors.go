// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

var (
	// ErrUnavailable matches every error of [Library.Discover] that says that NVML cannot be used now:
	// it is not installed, does not match the driver, fails, or does not answer. Trying again may help.
	ErrUnavailable = errors.New("NVML is unavailable")
	// ErrRestartRequired matches an ErrUnavailable that only a new process can overcome: the library
	// file was replaced by another driver's, and the dynamic linker keeps the old one loaded.
	ErrRestartRequired = errors.New("NVML was replaced while in use: restart required")
)

// Reasons of an [UnavailableError], for Events and metrics.
const (
	// ReasonLibraryNotFound: libnvidia-ml.so.1 is not there or cannot be loaded.
	ReasonLibraryNotFound = "LibraryNotFound"
	// ReasonDriverNotLoaded: the NVIDIA kernel driver is not loaded (NVML_ERROR_DRIVER_NOT_LOADED).
	ReasonDriverNotLoaded = "DriverNotLoaded"
	// ReasonVersionMismatch: library and kernel driver are of different versions
	// (NVML_ERROR_LIB_RM_VERSION_MISMATCH).
	ReasonVersionMismatch = "DriverLibraryMismatch"
	// ReasonRestartRequired: a ReasonVersionMismatch that ErrRestartRequired describes.
	ReasonRestartRequired = "RestartRequired"
	// ReasonNotResponding: a call did not return in time.
	ReasonNotResponding = "NotResponding"
	// ReasonFailed: any other error of NVML.
	ReasonFailed = "Failed"
)

// UnavailableError says why NVML cannot be used now. It matches [ErrUnavailable], and
// [ErrRestartRequired] where it applies.
type UnavailableError struct {
	// Reason is one of the Reason constants.
	Reason string
	// Message tells a person what is wrong and what to do.
	Message string
}

func (e *UnavailableError) Error() string { return "NVML is unavailable: " + e.Message }

// Is reports whether the error is of the kind of target.
func (e *UnavailableError) Is(target error) bool {
	return target == ErrUnavailable || target == ErrRestartRequired && e.Reason == ReasonRestartRequired
}

// unavailable describes the error that the named NVML call returned.
func unavailable(call string, ret gonvml.Return) *UnavailableError {
	switch ret {
	case gonvml.ERROR_DRIVER_NOT_LOADED:
		return &UnavailableError{ReasonDriverNotLoaded, fmt.Sprintf("%s: the NVIDIA kernel driver is not loaded on this node (%s)", call, ret)}
	case gonvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return &UnavailableError{ReasonVersionMismatch, fmt.Sprintf("%s: the library and the loaded kernel driver are of different versions, as after a driver upgrade: reload the kernel driver or reboot the node (%s)", call, ret)}
	case gonvml.ERROR_NO_PERMISSION:
		return &UnavailableError{ReasonFailed, fmt.Sprintf("%s: no permission to open the NVIDIA device nodes: run privileged or mount /dev (%s)", call, ret)}
	default:
		return &UnavailableError{ReasonFailed, fmt.Sprintf("%s: %s", call, ret)}
	}
}
