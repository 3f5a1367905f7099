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
	// looksUntilBelieved is how many looks in a row must find the same for anything to follow that cannot
	// be taken back, since a single call may fail: that a GPU is lost or asks for a reset, for its pods to be
	// evicted, and for it to have been reset when it works again; that it does not tell its recovery action
	// any more, for the table of XIDs to decide alone.
	looksUntilBelieved = 2
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
	// LostLooks counts the looks at which the GPU was lost or asked for a reset, since it last worked. A look
	// at which it did not answer for another reason says nothing of it and is not counted.
	LostLooks int `json:"lostLooks,omitempty"`
	// Reloaded says that the kernel driver was not loaded at some time since the GPU last worked.
	Reloaded bool `json:"reloaded,omitempty"`
	// SilentLooks counts the looks in a row at which the recovery action, known before, could not be read.
	SilentLooks int `json:"silentLooks,omitempty"`
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
	return len(r.XIDs) == 0 && r.LostLooks == 0 && !r.Reloaded && (action == nil || *action == RecoveryNone) &&
		!isTrue(r.Readings.RowRemapPending) && !isTrue(r.Readings.RowRemapFailure) &&
		(r.Readings.UncorrectableECC == nil || *r.Readings.UncorrectableECC == 0)
}

func isTrue(value *bool) bool { return value != nil && *value }

// Raise notes an XID and reports whether it is one that counts and that was not known yet. One that the policy
// ignores by name is noted all the same: the next policy may not.
func (r *Record) Raise(code uint64, policy Policy, now time.Time) bool {
	effect := policy.XIDEffect(code)
	if effect == Ignore && !policy.named(code) {
		return false
	}
	at, known := slices.BinarySearchFunc(r.XIDs, code, byCode)
	switch {
	case known:
		r.XIDs[at].Last = now
		return false
	case len(r.XIDs) < maxXIDs:
	case !r.forgetLesser(effect, policy):
		return false
	default:
		at, _ = slices.BinarySearchFunc(r.XIDs, code, byCode)
	}
	r.XIDs = slices.Insert(r.XIDs, at, Occurrence{Code: code, First: now, Last: now})
	return effect != Ignore
}

func byCode(o Occurrence, code uint64) int { return cmp.Compare(o.Code, code) }

// forgetLesser forgets an XID with less effect than that, the least there is; false where there is none.
func (r *Record) forgetLesser(than Effect, policy Policy) bool {
	least, at := than, -1
	for i, o := range r.XIDs {
		if effect := policy.XIDEffect(o.Code); effect < least {
			least, at = effect, i
		}
	}
	if at < 0 {
		return false
	}
	r.XIDs = slices.Delete(r.XIDs, at, at+1)
	return true
}

// Look notes what a look at the GPU found, which began at a time: whether it answers, which is what
// discovery says of it, and its readings.
func (r *Record) Look(seen device.Health, readings Readings, policy Policy, began time.Time) {
	if !seen.Healthy() {
		if unusable(seen) {
			r.LostLooks = min(r.LostLooks+1, looksUntilBelieved)
		}
		r.read(readings)
		return
	}
	wasReset := r.LostLooks >= looksUntilBelieved || r.Reloaded
	r.LostLooks, r.Reloaded = 0, false

	before := r.Readings.RecoveryAction
	r.read(readings)
	// Only what the GPU says in this look counts: what it said before may be older than its XIDs.
	cleared := readings.RecoveryAction != nil && *readings.RecoveryAction == RecoveryNone
	recovered := cleared && before != nil && *before != RecoveryNone
	wasReset = wasReset || recovered && recoveryActions[*before].resets

	r.XIDs = slices.DeleteFunc(r.XIDs, func(o Occurrence) bool {
		age := began.Sub(o.Last)
		settled := recovered || age >= VerdictGrace
		switch {
		case age < 0: // reported during this look
			return false
		case wasReset:
			return true
		case o.Code == codeFallenOffBus && age >= VerdictGrace:
			return true
		default:
			return settled && cleared && Classify(o.Code).Summarised && !policy.named(o.Code)
		}
	})
	if len(r.XIDs) == 0 {
		r.XIDs = nil
	}
}

// NotAfter moves what was reported later than that to that time. Of a record that was kept over a restart the clock may
// have been set back since, and an XID that is newer than every look would never end.
func (r *Record) NotAfter(now time.Time) {
	for i := range r.XIDs {
		for _, at := range []*time.Time{&r.XIDs[i].First, &r.XIDs[i].Last} {
			if at.After(now) {
				*at = now
			}
		}
	}
}

// DriverUnloaded notes that the kernel driver was found not to be loaded: when the GPU works again, it was
// initialised anew.
func (r *Record) DriverUnloaded() { r.Reloaded = true }

// unusable reports whether discovery says for certain that nothing can go on with the GPU. That it does not
// answer, or that NVML does not, may have other reasons.
func unusable(seen device.Health) bool {
	return seen.Reason == device.ReasonLost || seen.Reason == device.ReasonResetRequired
}

// read takes over readings. Where a call failed, what was known goes on.
func (r *Record) read(now Readings) {
	if now.Incomplete && now.RecoveryAction == nil && r.Readings.RecoveryAction != nil {
		r.SilentLooks = min(r.SilentLooks+1, looksUntilBelieved)
	} else {
		r.SilentLooks = 0
	}
	if now.Incomplete {
		now.RecoveryAction = cmp.Or(now.RecoveryAction, r.Readings.RecoveryAction)
		now.UncorrectableECC = cmp.Or(now.UncorrectableECC, r.Readings.UncorrectableECC)
		now.RowRemapPending = cmp.Or(now.RowRemapPending, r.Readings.RowRemapPending)
		now.RowRemapFailure = cmp.Or(now.RowRemapFailure, r.Readings.RowRemapFailure)
		now.Incomplete = false
	}
	r.Readings = now
}
