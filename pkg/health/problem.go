// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// Reasons of problems beside those of package device, the recovery actions ("NeedsGPUReset") and the XIDs
// ("XID48").
const (
	// ReasonRowRemapFailure is the reason of a GPU on which a memory row could not be remapped.
	ReasonRowRemapFailure = "RowRemapFailure"
	// ReasonUncorrectableECC is the reason of a GPU with uncorrected memory errors since its last reset, if
	// it has no recovery action that says what they mean.
	ReasonUncorrectableECC = "UncorrectableECC"
	// ReasonRowRemapPending is the reason of a GPU that needs a reset, when idle, for a row to be remapped.
	ReasonRowRemapPending = "RowRemapPending"
	// ReasonNVLinkDown is the reason of a GPU with fewer active NVLinks than it had on this boot.
	ReasonNVLinkDown = "NVLinkDown"
)

// Problem is something that is wrong with a GPU.
type Problem struct {
	// Reason is a stable CamelCase word, at most 63 letters and digits: the value of a taint.
	Reason string
	// Message tells a person what is wrong.
	Message string
	Effect  Effect
	// XID is the error number, 0 for a problem that is none.
	XID uint64

	rank rank
}

// rank orders problems of equal effect: the first gives the GPU its reason.
type rank int

const (
	rankLost rank = iota
	rankResetRequired
	rankFatalXID
	rankXID
	rankRecovery
	rankUnreachable
	rankRemapFailure
	rankECC
	rankRemapPending
	rankLinks
)

// Problems returns all that is wrong with a GPU, the worst first: what its record says, what discovery says
// of it and the links it has lost.
func (r Record) Problems(gpu device.GPU, policy Policy) []Problem {
	problems := slices.Concat(r.lost(gpu, policy), r.xids(policy), r.readings(policy), links(gpu))
	slices.SortFunc(problems, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(b.Effect, a.Effect), cmp.Compare(a.rank, b.rank), cmp.Compare(a.XID, b.XID))
	})
	return problems
}

func (r Record) lost(gpu device.GPU, policy Policy) []Problem {
	if gpu.Health.Healthy() {
		return nil
	}
	order := rankUnreachable
	switch gpu.Health.Reason {
	case device.ReasonLost:
		order = rankLost
	case device.ReasonResetRequired:
		order = rankResetRequired
	}
	// An eviction cannot be taken back, and a single call may fail.
	fatal := unusable(gpu.Health) && r.LostLooks >= looksUntilBelieved
	return []Problem{{Reason: gpu.Health.Reason, Message: gpu.Health.Message, Effect: policy.sick(fatal), rank: order}}
}

func (r Record) xids(policy Policy) []Problem {
	var problems []Problem
	for _, o := range r.XIDs {
		xid := Classify(o.Code)
		p := Problem{
			Reason:  fmt.Sprintf("XID%d", o.Code),
			Message: fmt.Sprintf("XID %d since %s: %s", o.Code, o.First.UTC().Format(time.RFC3339), xid.Meaning),
			Effect:  policy.XIDEffect(o.Code),
			XID:     o.Code,
			rank:    rankXID,
		}
		switch {
		case o.Code == codeFallenOffBus:
			// It is the same as what the next look finds: one reason, so one write of the slice.
			p.Reason, p.rank = device.ReasonLost, rankLost
		case xid.Fatal:
			p.rank = rankFatalXID
		}
		if p.Effect == NoExecute && r.undecided(xid) && !policy.named(o.Code) {
			// An eviction cannot be taken back, and the GPU may yet say that nothing needs to be done.
			p.Effect = NoSchedule
		}
		if p.Effect != Ignore {
			problems = append(problems, p)
		}
	}
	return problems
}

// undecided reports whether the GPU says that nothing needs to be done, so that an XID is only believed
// until that stands. A GPU that has become silent since decides nothing.
func (r Record) undecided(xid XID) bool {
	action := r.Readings.RecoveryAction
	return xid.Summarised && action != nil && *action == RecoveryNone && r.LostLooks == 0 && r.SilentLooks < looksUntilBelieved
}

func (r Record) readings(policy Policy) []Problem {
	var problems []Problem
	action := r.Readings.RecoveryAction
	if action != nil && *action != RecoveryNone {
		problems = append(problems, Problem{
			Reason:  action.reason(),
			Message: action.message(),
			Effect:  policy.sick(recoveryActions[*action].fatal),
			rank:    rankRecovery,
		})
	}
	if isTrue(r.Readings.RowRemapFailure) {
		problems = append(problems, Problem{
			Reason:  ReasonRowRemapFailure,
			Message: "a memory row could not be remapped: the GPU needs to be replaced",
			Effect:  policy.sick(false),
			rank:    rankRemapFailure,
		})
	}
	if count := r.Readings.UncorrectableECC; action == nil && count != nil && *count > 0 {
		problems = append(problems, Problem{
			Reason:  ReasonUncorrectableECC,
			Message: fmt.Sprintf("%d uncorrected memory errors since the last reset", *count),
			Effect:  policy.sick(false),
			rank:    rankECC,
		})
	}
	if isTrue(r.Readings.RowRemapPending) {
		problems = append(problems, Problem{
			Reason:  ReasonRowRemapPending,
			Message: "a memory row will be remapped at the next reset of the GPU",
			Effect:  Inform,
			rank:    rankRemapPending,
		})
	}
	return problems
}

// links finds links that were up on this boot and are down; of a GPU that does not answer as it should they
// are not known. The GPU computes as well as before: what it
// cannot do any more is said by its domain and its number of links.
func links(gpu device.GPU) []Problem {
	if gpu.NVLinks >= gpu.MaxNVLinks || gpu.MIGEnabled || !gpu.Health.Healthy() {
		return nil
	}
	return []Problem{{
		Reason:  ReasonNVLinkDown,
		Message: fmt.Sprintf("%d of %d NVLinks are down", gpu.MaxNVLinks-gpu.NVLinks, gpu.MaxNVLinks),
		Effect:  Inform,
		rank:    rankLinks,
	}}
}

// Judge returns the health of a GPU with the given problems, the worst first. seen is what discovery says,
// whose message of a healthy GPU stays.
func Judge(seen device.Health, problems []Problem) device.Health {
	var health device.Health
	var messages []string
	if seen.Healthy() && seen.Message != "" {
		messages = append(messages, seen.Message)
	}
	for _, p := range problems {
		switch {
		case p.Effect >= NoSchedule && health.Reason == "":
			health.Reason, health.Evict = p.Reason, p.Effect == NoExecute
		case p.Effect == Inform && health.Degraded == "":
			health.Degraded = p.Reason
		}
		if p.Message != "" {
			messages = append(messages, p.Message)
		}
	}
	health.Message = strings.Join(messages, "; ")
	return health
}
