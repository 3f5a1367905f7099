// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"fmt"
)

// errorKind says what sort of thing went wrong: the label "kind" of the errors metric.
type errorKind string

const (
	kindInvalidAllocation errorKind = "invalid_allocation"
	kindInvalidConfig     errorKind = "invalid_config"
	kindUnsupportedConfig errorKind = "unsupported_config"
	kindDeviceInUse       errorKind = "device_in_use"
	kindDeviceUnknown     errorKind = "device_unknown"
	kindDeviceUnhealthy   errorKind = "device_unhealthy"
	kindDeviceInMIGMode   errorKind = "device_in_mig_mode"
	kindPartition         errorKind = "partition"
	kindSettings          errorKind = "settings"
	kindMPS               errorKind = "mps"
	kindRuntimeWithoutCDI errorKind = "runtime_without_cdi"
	kindNotReady          errorKind = "not_ready"
	kindGangIncomplete    errorKind = "gang_incomplete"
	kindCheckpoint        errorKind = "checkpoint"
	kindCDI               errorKind = "cdi"
	kindOther             errorKind = "other"
)

// kindError is an error that knows its kind.
type kindError struct {
	kind errorKind
	err  error
}

func (e *kindError) Error() string { return e.err.Error() }
func (e *kindError) Unwrap() error { return e.err }

func newError(kind errorKind, format string, args ...any) error {
	return &kindError{kind: kind, err: fmt.Errorf(format, args...)}
}

func kindOf(err error) errorKind {
	if known, ok := errors.AsType[*kindError](err); ok {
		return known.kind
	}
	return kindOther
}
