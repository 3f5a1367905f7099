// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"encoding/json"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/health"
)

var (
	healthy       = device.Health{}
	lost          = device.Health{Reason: device.ReasonLost, Message: "NVML does not list the GPU any more"}
	resetRequired = device.Health{Reason: device.ReasonResetRequired, Message: "nvmlDeviceGetMemoryInfo: reset required"}
	noAnswer      = device.Health{Reason: device.ReasonNotAnswering, Message: "nvmlDeviceGetMemoryInfo: unknown error"}
	noNVML        = device.Health{Reason: device.ReasonNVMLUnavailable, Message: "NVML is unavailable"}
	start         = time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)
)

// action is what a GPU of a driver from R565 on reports.
func action(a health.RecoveryAction) health.Readings { return health.Readings{RecoveryAction: &a} }

// story is what happens to a GPU, with a clock that goes on.
type story struct {
	t      *testing.T
	policy health.Policy
	now    time.Time
	record health.Record
	gpu    device.GPU
}

func begin(t *testing.T, policy health.Policy) *story {
	return &story{t: t, policy: policy, now: start, gpu: device.GPU{UUID: "GPU-0", NVLinks: 18, MaxNVLinks: 18}}
}

func (s *story) xid(codes ...uint64) *story {
	for _, code := range codes {
		s.record.Raise(code, s.policy, s.now)
	}
	return s
}

func (s *story) after(d time.Duration) *story {
	s.now = s.now.Add(d)
	return s
}

func (s *story) look(seen device.Health, readings health.Readings) *story {
	s.gpu.Health = seen
	s.record.Look(seen, readings, s.policy, s.now)
	return s
}

// restart has the record written and read, as over a restart of the plugin.
func (s *story) restart() *story {
	s.t.Helper()
	data, err := json.Marshal(s.record)
	if err != nil {
		s.t.Fatal(err)
	}
	s.record = health.Record{}
	if err := json.Unmarshal(data, &s.record); err != nil {
		s.t.Fatal(err)
	}
	return s
}

func (s *story) health() device.Health {
	return health.Judge(s.gpu.Health, s.record.Problems(s.gpu, s.policy))
}

func TestHealthOfAGPU(t *testing.T) {
	const grace = health.VerdictGrace
	evict := health.Policy{EvictFatal: true}
	silent := health.Readings{Incomplete: true}
	yes, no, count, none := true, false, uint64(3), health.RecoveryNone
	for name, test := range map[string]struct {
		policy   health.Policy
		happens  func(*story)
		reason   string
		evict    bool
		degraded string
		message  string
	}{
		"nothing is known":                      {happens: func(*story) {}},
		"an error of an application is ignored": {happens: func(s *story) { s.xid(13, 31, 43, 45, 94) }},
		"an error of the device counts":         {happens: func(s *story) { s.xid(119) }, reason: "XID119", message: "XID 119 since 2026-11-29T03:00:00Z: GSP RPC timeout"},
		"an unknown XID counts":                 {happens: func(s *story) { s.xid(999) }, reason: "XID999"},
		"a recorded row remapping is only said": {happens: func(s *story) { s.xid(63) }, degraded: "XID63"},

		"the worst stays when an application's error follows": {happens: func(s *story) { s.xid(95).after(time.Second).xid(45) }, reason: "XID95"},
		"the worst stays when a lesser one follows":           {happens: func(s *story) { s.xid(95, 63) }, reason: "XID95", degraded: "XID63"},
		"a fatal one gives the reason over a lower code":      {happens: func(s *story) { s.xid(48, 95) }, reason: "XID95", message: "XID 48"},
		"of equal ones the lowest code gives the reason":      {happens: func(s *story) { s.xid(119, 46) }, reason: "XID46"},
		"79 is the same as being lost":                        {happens: func(s *story) { s.xid(79) }, reason: device.ReasonLost, message: "XID 79"},
		"lost gives the reason over an XID":                   {happens: func(s *story) { s.xid(95).look(lost, health.Readings{}) }, reason: device.ReasonLost, message: "XID 95"},
		"a GPU that asks for a reset is sick":                 {happens: func(s *story) { s.look(resetRequired, health.Readings{}) }, reason: device.ReasonResetRequired},
		"it survives a restart":                               {happens: func(s *story) { s.xid(119).restart() }, reason: "XID119"},
		"readings survive a restart":                          {happens: func(s *story) { s.look(healthy, action(health.RecoveryGPUReset)).restart() }, reason: "NeedsGPUReset"},

		"without a recovery action an XID stays":               {happens: func(s *story) { s.xid(48).after(24*time.Hour).look(healthy, health.Readings{}) }, reason: "XID48"},
		"the action None is not believed at once":              {happens: func(s *story) { s.xid(48).after(grace-1).look(healthy, action(none)) }, reason: "XID48"},
		"the action None wins over the table":                  {happens: func(s *story) { s.xid(48).after(grace).look(healthy, action(none)) }},
		"the action None wins for an unknown XID":              {happens: func(s *story) { s.xid(999).after(grace).look(healthy, action(none)) }},
		"the action None says nothing of an XID it leaves out": {happens: func(s *story) { s.xid(119).after(time.Hour).look(healthy, action(none)) }, reason: "XID119"},
		"the action None does not win over the policy":         {policy: health.Policy{XIDs: map[uint64]health.Effect{48: health.NoSchedule}}, happens: func(s *story) { s.xid(48).after(time.Hour).look(healthy, action(none)) }, reason: "XID48"},
		"an action keeps pods away without any XID":            {happens: func(s *story) { s.look(healthy, action(health.RecoveryDrainAndReset)) }, reason: "NeedsDrainAndReset", message: "drained and reset"},
		"an action confirms an ignored XID":                    {happens: func(s *story) { s.xid(94).look(healthy, action(health.RecoveryDrainAndReset)) }, reason: "NeedsDrainAndReset"},
		"an action that this version does not know counts":     {happens: func(s *story) { s.look(healthy, action(9)) }, reason: "NeedsAction9", message: "documentation"},
		"the reason stays the XID when the action confirms it": {happens: func(s *story) { s.xid(48).after(time.Minute).look(healthy, action(health.RecoveryGPUReset)) }, reason: "XID48", message: "must be reset"},
		"an action that is over ends all XIDs before": {happens: func(s *story) {
			s.xid(119).look(healthy, action(health.RecoveryGPUReset)).after(time.Minute).look(healthy, action(none))
		}},
		"an XID during the look in which an action is over counts": {happens: func(s *story) {
			s.look(healthy, action(health.RecoveryGPUReset)).after(time.Minute).xid(119).after(-time.Second).look(healthy, action(none))
		}, reason: "XID119"},
		"an action that cannot be read any more says nothing of an XID": {happens: func(s *story) {
			s.look(healthy, action(none)).xid(48).after(grace).look(healthy, silent).after(time.Hour).look(healthy, silent)
		}, reason: "XID48"},
		"an action that can be read again says it then": {happens: func(s *story) {
			s.look(healthy, action(none)).xid(48).after(grace).look(healthy, silent).after(time.Minute).look(healthy, action(none))
		}},
		"an action that was not read in between is over all the same": {happens: func(s *story) {
			s.xid(119).look(healthy, action(health.RecoveryGPUReset)).after(time.Minute).look(healthy, silent).after(time.Minute).look(healthy, action(none))
		}},
		"an action that is over without a reset ends what it summarises": {happens: func(s *story) {
			s.xid(74, 119).look(healthy, action(health.RecoveryDrainP2P)).after(time.Second).look(healthy, action(none))
		}, reason: "XID119"},
		"also the recovery of an IMEX domain": {happens: func(s *story) {
			s.xid(74, 119).look(healthy, action(health.RecoveryRecoverIMEXDomain)).after(time.Second).look(healthy, action(none))
		}, reason: "XID119"},
		"also an action that this version does not know": {happens: func(s *story) {
			s.xid(74, 119).look(healthy, action(9)).after(time.Second).look(healthy, action(none))
		}, reason: "XID119"},
		"an action that is over without a reset does not win over the policy": {policy: health.Policy{XIDs: map[uint64]health.Effect{74: health.NoSchedule}}, happens: func(s *story) {
			s.xid(74).look(healthy, action(health.RecoveryDrainP2P)).after(time.Minute).look(healthy, action(none))
		}, reason: "XID74"},
		"a reset ends what the policy names": {policy: health.Policy{XIDs: map[uint64]health.Effect{74: health.NoSchedule}}, happens: func(s *story) {
			s.xid(74).look(healthy, action(health.RecoveryDrainAndReset)).after(time.Minute).look(healthy, action(none))
		}},
		"an action that cannot be read goes on": {happens: func(s *story) {
			s.look(healthy, action(health.RecoveryGPUReset)).look(healthy, health.Readings{Incomplete: true})
		}, reason: "NeedsGPUReset"},
		"an action that the GPU does not have any more is gone": {happens: func(s *story) { s.look(healthy, action(health.RecoveryGPUReset)).look(healthy, health.Readings{}) }},

		"a GPU that was lost twice and works was reset": {happens: func(s *story) {
			s.xid(119).look(lost, health.Readings{}).look(lost, health.Readings{}).look(healthy, health.Readings{})
		}},
		"also over a restart": {happens: func(s *story) {
			s.xid(119).look(lost, health.Readings{}).restart().look(lost, health.Readings{}).restart().look(healthy, health.Readings{})
		}},
		"a GPU that does not answer keeps pods away": {happens: func(s *story) { s.look(noAnswer, silent) }, reason: device.ReasonNotAnswering, message: "unknown error"},
		"that it did not answer is no proof of a reset": {happens: func(s *story) {
			s.xid(119).look(noAnswer, silent).look(noAnswer, silent).look(noAnswer, silent).look(healthy, health.Readings{})
		}, reason: "XID119"},
		"nor does it make one of a single look": {happens: func(s *story) {
			s.xid(119).look(lost, silent).look(noAnswer, silent).look(healthy, health.Readings{})
		}, reason: "XID119"},
		"nor does it hide one": {happens: func(s *story) {
			s.xid(119).look(lost, silent).look(noAnswer, silent).look(lost, silent).look(noAnswer, silent).look(healthy, health.Readings{})
		}},
		"one failed look is no proof of a reset": {happens: func(s *story) { s.xid(119).look(lost, health.Readings{}).look(healthy, health.Readings{}) }, reason: "XID119"},
		"failed looks that do not follow each other are none": {happens: func(s *story) {
			s.xid(119).look(lost, health.Readings{}).look(healthy, health.Readings{}).look(lost, health.Readings{}).look(healthy, health.Readings{})
		}, reason: "XID119"},
		"a GPU that asked for a reset twice and works was reset": {happens: func(s *story) {
			s.xid(119).look(resetRequired, health.Readings{}).look(resetRequired, health.Readings{}).look(healthy, health.Readings{})
		}},
		"a driver that was unloaded has reset the GPU":                {happens: func(s *story) { s.xid(119); s.record.DriverUnloaded(); s.look(healthy, health.Readings{}) }},
		"fallen off the bus ends when the GPU answers":                {happens: func(s *story) { s.xid(79).after(grace).look(healthy, health.Readings{}) }},
		"fallen off the bus does not end at once":                     {happens: func(s *story) { s.xid(79).after(time.Second).look(healthy, health.Readings{}) }, reason: device.ReasonLost},
		"an XID that repeats during the grace period counts from new": {happens: func(s *story) { s.xid(48).after(grace-1).xid(48).after(grace-1).look(healthy, action(none)) }, reason: "XID48"},

		"a failed row remapping keeps pods away":          {happens: func(s *story) { s.look(healthy, health.Readings{RowRemapFailure: &yes, RowRemapPending: &yes}) }, reason: health.ReasonRowRemapFailure, degraded: health.ReasonRowRemapPending},
		"a failed row remapping does so with action None": {happens: func(s *story) { s.look(healthy, health.Readings{RowRemapFailure: &yes, RecoveryAction: &none}) }, reason: health.ReasonRowRemapFailure},
		"a pending row remapping is only said":            {happens: func(s *story) { s.look(healthy, health.Readings{RowRemapFailure: &no, RowRemapPending: &yes}) }, degraded: health.ReasonRowRemapPending},
		"a row remapping that is done is gone": {happens: func(s *story) {
			s.look(healthy, health.Readings{RowRemapPending: &yes}).look(healthy, health.Readings{RowRemapPending: &no})
		}},
		"uncorrected errors keep pods away":               {happens: func(s *story) { s.look(healthy, health.Readings{UncorrectableECC: &count}) }, reason: health.ReasonUncorrectableECC, message: "3 uncorrected"},
		"uncorrected errors are left to the action":       {happens: func(s *story) { s.look(healthy, health.Readings{UncorrectableECC: &count, RecoveryAction: &none}) }},
		"a link that is down is only said":                {happens: func(s *story) { s.gpu.NVLinks = 16 }, degraded: health.ReasonNVLinkDown, message: "2 of 18 NVLinks are down"},
		"links of a GPU that does not answer say nothing": {happens: func(s *story) { s.look(noAnswer, silent); s.gpu.NVLinks = 0 }, reason: device.ReasonNotAnswering},
		"a lost GPU's links say nothing more":             {happens: func(s *story) { s.look(lost, health.Readings{}); s.gpu.NVLinks = 0 }, reason: device.ReasonLost},
		"links in MIG mode say nothing":                   {happens: func(s *story) { s.gpu.NVLinks, s.gpu.MIGEnabled = 0, true }},
		"why a GPU has no domain stays in the message":    {happens: func(s *story) { s.gpu.Health.Message = "no fabric" }, message: "no fabric"},

		"no eviction after one look at a lost GPU":                  {policy: evict, happens: func(s *story) { s.look(lost, silent) }, reason: device.ReasonLost},
		"eviction of a lost GPU's pods":                             {policy: evict, happens: func(s *story) { s.look(lost, silent).look(lost, silent) }, reason: device.ReasonLost, evict: true},
		"also over two restarts":                                    {policy: evict, happens: func(s *story) { s.look(lost, silent).restart().look(lost, silent).restart() }, reason: device.ReasonLost, evict: true},
		"eviction at once after fallen off the bus":                 {policy: evict, happens: func(s *story) { s.look(healthy, action(none)).xid(79).look(lost, silent) }, reason: device.ReasonLost, evict: true},
		"no eviction after one look at a GPU that asks for a reset": {policy: evict, happens: func(s *story) { s.look(resetRequired, silent) }, reason: device.ReasonResetRequired},
		"eviction when it asks again":                               {policy: evict, happens: func(s *story) { s.look(resetRequired, silent).look(resetRequired, silent) }, reason: device.ReasonResetRequired, evict: true},
		"no eviction from a GPU that does not answer":               {policy: evict, happens: func(s *story) { s.look(noAnswer, silent).look(noAnswer, silent).look(noAnswer, silent) }, reason: device.ReasonNotAnswering},
		"no eviction because NVML is away":                          {policy: evict, happens: func(s *story) { s.gpu.Health = noNVML }, reason: device.ReasonNVMLUnavailable, message: "unavailable"},
		"no eviction because the driver was reloaded":               {policy: evict, happens: func(s *story) { s.record.DriverUnloaded(); s.look(lost, silent) }, reason: device.ReasonLost},
		"no eviction when the action cannot be read once":           {policy: evict, happens: func(s *story) { s.look(healthy, action(none)).xid(95).look(healthy, silent) }, reason: "XID95"},
		"eviction when it cannot be read any more":                  {policy: evict, happens: func(s *story) { s.look(healthy, action(none)).xid(95).look(healthy, silent).look(healthy, silent) }, reason: "XID95", evict: true},
		"eviction after a fatal XID of an older driver":             {policy: evict, happens: func(s *story) { s.xid(95) }, reason: "XID95", evict: true},
		"no eviction after an XID that is not fatal":                {policy: evict, happens: func(s *story) { s.xid(48) }, reason: "XID48"},
		"no eviction while the GPU says that it is fine":            {policy: evict, happens: func(s *story) { s.look(healthy, action(none)).xid(95) }, reason: "XID95"},
		"eviction once the GPU agrees":                              {policy: evict, happens: func(s *story) { s.look(healthy, action(none)).xid(95).look(healthy, action(health.RecoveryGPUReset)) }, reason: "XID95", evict: true},
		"eviction for an action that ends all work":                 {policy: evict, happens: func(s *story) { s.xid(48).look(healthy, action(health.RecoveryGPUReset)) }, reason: "NeedsGPUReset", evict: true},
		"no eviction for an action that lets work end":              {policy: evict, happens: func(s *story) { s.look(healthy, action(health.RecoveryDrainAndReset)) }, reason: "NeedsDrainAndReset"},
		"the policy makes an XID evict":                             {policy: health.Policy{XIDs: map[uint64]health.Effect{31: health.NoExecute}}, happens: func(s *story) { s.look(healthy, action(none)).xid(31) }, reason: "XID31", evict: true},
		"the policy makes an XID nothing":                           {policy: health.Policy{XIDs: map[uint64]health.Effect{48: health.Ignore}}, happens: func(s *story) { s.xid(48) }},
		"the policy makes an XID a notice":                          {policy: health.Policy{XIDs: map[uint64]health.Effect{48: health.Inform}}, happens: func(s *story) { s.xid(48) }, degraded: "XID48"},
		"the policy counts for what was recorded before it":         {happens: func(s *story) { s.xid(48); s.policy.XIDs = map[uint64]health.Effect{48: health.Ignore} }},
	} {
		t.Run(name, func(t *testing.T) {
			s := begin(t, test.policy)
			test.happens(s)
			got := s.health()
			if got.Reason != test.reason || got.Evict != test.evict || got.Degraded != test.degraded {
				t.Errorf("health is %+v, want reason %q, evict %v, degraded %q", got, test.reason, test.evict, test.degraded)
			}
			if !strings.Contains(got.Message, test.message) {
				t.Errorf("the message %q does not say %q", got.Message, test.message)
			}
			if clean := test.reason == "" && test.degraded == ""; clean && test.message == "" && got.Message != "" {
				t.Errorf("nothing is wrong, and the message is %q", got.Message)
			}
		})
	}
}

func TestRaiseReportsNewProblemsOnly(t *testing.T) {
	var r health.Record
	for _, step := range []struct {
		code uint64
		new  bool
	}{{31, false}, {48, true}, {48, false}, {46, true}} {
		if got := r.Raise(step.code, health.Policy{}, start); got != step.new {
			t.Errorf("XID %d is new: %v, want %v", step.code, got, step.new)
		}
	}
	for code := range uint64(1000) {
		r.Raise(1000+code, health.Policy{}, start)
	}
	if len(r.XIDs) != 64 {
		t.Errorf("a GPU that goes mad has a record of %d XIDs, want 64", len(r.XIDs))
	}
	if r.Raise(2000, health.Policy{}, start) || len(r.XIDs) != 64 {
		t.Error("a full record takes one more of the same effect")
	}
	if drain := (health.Policy{EvictFatal: true}); !r.Raise(79, drain, start) || len(r.XIDs) != 64 {
		t.Error("a full record has no room for an XID with more effect")
	}
}

func TestAnXIDThatIsIgnoredByNameCountsForTheNextPolicy(t *testing.T) {
	s := begin(t, health.Policy{XIDs: map[uint64]health.Effect{119: health.Ignore}})
	if s.record.Raise(119, s.policy, s.now) {
		t.Error("it is told while it is ignored")
	}
	if got := s.restart().health(); !got.Healthy() {
		t.Errorf("it counts while it is ignored: %+v", got)
	}
	s.policy = health.Policy{}
	if got := s.health(); got.Healthy() {
		t.Error("it does not count when it is not ignored any more")
	}
}

func TestEmptyRecord(t *testing.T) {
	zero, none := uint64(0), health.RecoveryNone
	no := false
	r := health.Record{Readings: health.Readings{RecoveryAction: &none, UncorrectableECC: &zero, RowRemapPending: &no, RowRemapFailure: &no}}
	if !r.Empty() || !(&health.Record{}).Empty() {
		t.Error("a healthy GPU has a record worth keeping")
	}
	for name, change := range map[string]func(*health.Record){
		"an XID":          func(r *health.Record) { r.Raise(48, health.Policy{}, start) },
		"a lost look":     func(r *health.Record) { r.Look(lost, health.Readings{}, health.Policy{}, start) },
		"an action":       func(r *health.Record) { r.Readings = action(health.RecoveryNodeReboot) },
		"an ECC error":    func(r *health.Record) { one := uint64(1); r.Readings.UncorrectableECC = &one },
		"a remapped row":  func(r *health.Record) { yes := true; r.Readings.RowRemapPending = &yes },
		"a failed row":    func(r *health.Record) { yes := true; r.Readings.RowRemapFailure = &yes },
		"a driver reload": func(r *health.Record) { r.DriverUnloaded() },
	} {
		r := health.Record{}
		if change(&r); r.Empty() {
			t.Errorf("%s is not kept", name)
		}
	}
}

// Whatever happens in whatever order, what is worst is what is said, and every reason can be a taint's value.
func TestTheWorstProblemDecides(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	policies := []health.Policy{{}, {EvictFatal: true}, {XIDs: map[uint64]health.Effect{31: health.NoExecute, 48: health.Inform, 95: health.Ignore}}}
	for range 5000 {
		s := begin(t, policies[random.IntN(len(policies))])
		for range random.IntN(12) {
			s.after(time.Duration(random.IntN(8)) * time.Second)
			switch random.IntN(5) {
			case 0, 1:
				s.xid([]uint64{13, 31, 45, 48, 63, 79, 95, 119, 999}[random.IntN(9)])
			case 2:
				s.look(healthy, action(health.RecoveryAction(random.IntN(9))))
			case 3:
				s.look([]device.Health{healthy, lost, resetRequired, noAnswer}[random.IntN(4)], health.Readings{Incomplete: random.IntN(2) == 0})
			case 4:
				s.gpu.NVLinks = random.IntN(19)
			}
		}
		problems := s.record.Problems(s.gpu, s.policy)
		got := health.Judge(s.gpu.Health, problems)
		worst := health.Ignore
		for _, p := range problems {
			worst = max(worst, p.Effect)
			if len(validation.IsValidLabelValue(p.Reason)) > 0 || p.Reason == "" {
				t.Fatalf("reason %q cannot be a taint's value", p.Reason)
			}
		}
		if (got.Reason != "") != (worst >= health.NoSchedule) || got.Evict != (worst == health.NoExecute) {
			t.Fatalf("problems %+v make %+v", problems, got)
		}
		if clone := s.record.Clone(); !reflect.DeepEqual(clone, s.record) {
			t.Fatalf("a clone is %+v, want %+v", clone, s.record)
		}
		if before := s.health(); !reflect.DeepEqual(s.restart().health(), before) {
			t.Fatalf("a restart makes %+v of %+v", s.health(), before)
		}
	}
}
