// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
)

const shortSlice = gpuConfigHead + `,"sharing":{"strategy":"TimeSlicing","timeSlicing":{"interval":"Short"}}}`

// A GPU that has no time slice to set refuses each call that would set one, also that which takes one back.
func TestFieldCase22_AClaimThatCannotHaveItsTimeSliceSpoilsTheGPUForNobody(t *testing.T) {
	m, f := sharingMachine(t, 1)
	f.sliceErr = errTest
	p := m.ready()
	p.mustRefuse(m.sharedClaim("sliced", shortSlice, gpu(0)), "sharing.timeSlicing.interval", "test error")
	f.wantNothingLeft(t, p)
	p.mustPrepare(m.claim("plain", gpu(0)))
	if wait := p.reconciler.reconcile(p.ctx); wait != m.config().ReconcileInterval {
		t.Errorf("the reconciler has something to do again after %v", wait)
	}
}

// A call that does not come back in time may have set it.
func TestATimeSliceThatMayHaveBeenSetIsTakenBack(t *testing.T) {
	m, f := sharingMachine(t, 1)
	p := m.ready()
	uuid := gpus(1).GPUs[0].UUID
	settle := func(want gpuSettings) error {
		ctx, cancel := context.WithCancel(p.ctx)
		defer cancel()
		f.onSlice = cancel
		return p.settings.settle(ctx, gpu(0), uuid, func() gpuSettings { return want }, false)
	}
	f.sliceErr = errTest
	for _, want := range []gpuSettings{{timeSlice: "Short"}, {}} {
		if err := settle(want); !errors.Is(err, errTest) || !p.settings.has(gpu(0)) {
			t.Fatalf("settle %+v: %v; noted: %v", want, err, p.settings.has(gpu(0)))
		}
	}
	f.slices[uuid], f.sliceErr = 1, nil
	p.mustPrepare(m.claim("plain", gpu(0)))
	if f.slices[uuid] != 0 {
		t.Errorf("the time slice is %d", f.slices[uuid])
	}
	f.wantNothingLeft(t, p)
}

func TestANoteOfSettingsThatAPowerLossEmptiedMeansNothing(t *testing.T) {
	m, f := sharingMachine(t, 1)
	f.sliceErr = errTest
	note := filepath.Join(m.ready().settings.dir, gpu(0))
	for _, left := range []string{"", "\x00\x00\x00\x00"} {
		if err := os.WriteFile(note, []byte(left), 0o600); err != nil {
			t.Fatal(err)
		}
		p := m.ready()
		f.wantNothingLeft(t, p)
		c := m.claim("plain", gpu(0))
		p.mustPrepare(c)
		p.mustUnprepare(c)
		m.deleteClaim(c)
	}
}
