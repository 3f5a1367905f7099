// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"slices"
	"time"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

const (
	// VerdictGrace is how long a driver may take to set the recovery action after an XID. Only then the
	// action None says that the XID needs nothing.
	VerdictGrace = 5 * time.Second
	// looksUntilReset is in how many looks in a row a GPU must be lost, or ask for a reset, to have been
	// reset when it works again. A single failed call is no proof.
	looksUntilReset = 2
	// maxXIDs is how many different XIDs a record keeps: more than a GPU that fails in every way has.
	maxXIDs = 64
)

// Record is what is known against one GPU. It is kept over a restart of the driver, and forgotten at a
// reboot. The zero value knows nothing.
type Record struct {
	// XIDs are the errors that count, by code.
	XIDs []Occurrence `json:"xids,omitempty"`
	// Readings are the latest values that the GPU reported.
	Readings Readings `json:"readings,omitzero"`
	// LostLooks counts the looks in a row at which the GPU was lost or asked for a reset.
	LostLooks int `json:"lostLooks,omitempty"`
}

// Occurrence is an XID that was reported, once or more.
type Occurrence struct {
	Code  uint64    `json:"code"`
	First time.Time `json:"first"`
	Last  time.Time `json:"last"`
}

// Readings are what NVML tells of a GPU's health when it is asked. A value that the GPU or the driver does
// not have is nil.
type Readings struct {
	// RecoveryAction is NVML_FI_DEV_GET_GPU_RECOVERY_ACTION.
	RecoveryAction *RecoveryAction `json:"recoveryAction,omitempty"`
	// UncorrectableECC counts uncorrected errors since the GPU was reset (nvmlDeviceGetTotalEccErrors,
	// volatile).
	UncorrectableECC *uint64 `json:"uncorrectableECC,omitempty"`
	// RowRemapPending and RowRemapFailure are what nvmlDeviceGetRemappedRows tells: a reset is needed for a
	// row to be remapped, and a remapping has failed.
	RowRemapPending *bool `json:"rowRemapPending,omitempty"`
	RowRemapFailure *bool `json:"rowRemapFailure,omitempty"`
	// Incomplete says that a call failed: what is nil may only be unknown now.
	Incomplete bool `json:"-"`
}

// Clone returns a copy that shares nothing that changes.
func (r Record) Clone() Record {
	r.XIDs = slices.Clone(r.XIDs)
	return r
}

// Empty reports whether nothing has to be remembered.
func (r Record) Empty() bool {
	action := r.Readings.RecoveryAction
	return len(r.XIDs) == 0 && r.LostLooks == 0 && (action == nil || *action == RecoveryNone) &&
		!isTrue(r.Readings.RowRemapPending) && !isTrue(r.Readings.RowRemapFailure) &&
		(r.Readings.UncorrectableECC == nil || *r.Readings.UncorrectableECC == 0)
}

func isTrue(value *bool) bool { return value != nil && *value }

// Raise notes an XID and reports whether it is one that counts and that was not known yet.
func (r *Record) Raise(code uint64, policy Policy, now time.Time) bool {
	if policy.XIDEffect(code) == Ignore {
		return false
	}
	at, known := slices.BinarySearchFunc(r.XIDs, code, func(o Occurrence, code uint64) int { return cmp.Compare(o.Code, code) })
	switch {
	case known:
		r.XIDs[at].Last = now
		return false
	case len(r.XIDs) >= maxXIDs:
		return false
	}
	r.XIDs = slices.Insert(r.XIDs, at, Occurrence{Code: code, First: now, Last: now})
	return true
}

// Look notes what a look at the GPU found, which began at a time: whether it answers, which is what
// discovery says of it, and its readings.
func (r *Record) Look(seen device.Health, readings Readings, policy Policy, began time.Time) {
	if !seen.Healthy() {
		r.LostLooks = min(r.LostLooks+1, looksUntilReset)
		r.read(readings)
		return
	}
	wasReset := r.LostLooks >= looksUntilReset
	r.LostLooks = 0

	before := r.Readings.RecoveryAction
	r.read(readings)
	action := r.Readings.RecoveryAction
	wasRecovered := before != nil && *before != RecoveryNone && action != nil && *action == RecoveryNone

	r.XIDs = slices.DeleteFunc(r.XIDs, func(o Occurrence) bool {
		age := began.Sub(o.Last)
		switch {
		case age < 0: // reported during this look
			return false
		case wasReset || wasRecovered:
			return true
		case age < VerdictGrace:
			return false
		case o.Code == codeFallenOffBus:
			return true
		default:
			return !policy.named(o.Code) && action != nil && *action == RecoveryNone && Classify(o.Code).Summarised
		}
	})
	if len(r.XIDs) == 0 {
		r.XIDs = nil
	}
}

// DriverUnloaded notes that the kernel driver was found not to be loaded: when the GPU works again, it was
// initialised anew.
func (r *Record) DriverUnloaded() { r.LostLooks = looksUntilReset }

// read takes over readings. Where a call failed, what was known goes on.
func (r *Record) read(now Readings) {
	if now.Incomplete {
		now.RecoveryAction = cmp.Or(now.RecoveryAction, r.Readings.RecoveryAction)
		now.UncorrectableECC = cmp.Or(now.UncorrectableECC, r.Readings.UncorrectableECC)
		now.RowRemapPending = cmp.Or(now.RowRemapPending, r.Readings.RowRemapPending)
		now.RowRemapFailure = cmp.Or(now.RowRemapFailure, r.Readings.RowRemapFailure)
		now.Incomplete = false
	}
	r.Readings = now
}
