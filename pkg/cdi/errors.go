// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"errors"
	"fmt"
)

var (
	// ErrNotReady says that Refresh has not succeeded yet, and why where it was tried.
	ErrNotReady = errors.New("what containers need for the GPUs of this node is not known yet")
	// ErrNodeTaken says that the device node of a GPU that is lost is another GPU's now. A spec that names it gives
	// containers that other GPU.
	ErrNodeTaken = errors.New("its device node is another GPU's now")
	// ErrNotResponding says that nvcdi hangs.
	ErrNotResponding = errors.New("nvcdi has not answered")
)

// notReady is ErrNotReady with the failure of the last look, if there was one.
func notReady(failure error) error {
	if failure == nil {
		return ErrNotReady
	}
	return fmt.Errorf("%w: the last look failed: %w", ErrNotReady, failure)
}

// UnknownDeviceError says that a device was not in the inventory of the last Refresh.
type UnknownDeviceError struct{ Device string }

func (e *UnknownDeviceError) Error() string {
	return fmt.Sprintf("device %s is not among the GPUs of this node", e.Device)
}

// DeviceEditsError says that nvcdi could not tell what containers need for a device.
type DeviceEditsError struct {
	Device string
	Err    error
}

func (e *DeviceEditsError) Error() string {
	return fmt.Sprintf("device %s: find what containers need: %v", e.Device, e.Err)
}

func (e *DeviceEditsError) Unwrap() error { return e.Err }

// DeviceNodeError says that a device node which containers need is missing or is none.
type DeviceNodeError struct {
	// Device is the device that the node was needed for.
	Device string
	// Node is the path of the node as this process sees it.
	Node string
	Err  error
}

func (e *DeviceNodeError) Error() string {
	return fmt.Sprintf("device %s: device node %s cannot be given to containers: %v; load the NVIDIA driver or make the node (nvidia-modprobe -c 0 -u)", e.Device, e.Node, e.Err)
}

func (e *DeviceNodeError) Unwrap() error { return e.Err }
