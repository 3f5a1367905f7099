// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// fakeRecorder shows of each series of Events what the real one does: the message of the first.
type fakeRecorder struct {
	recorder.EventRecorder

	series map[string]int
	shown  []string
}

func (r *fakeRecorder) Eventf(regarding, related runtime.Object, eventType, reason, action, note string, args ...any) {
	if r.series == nil {
		r.series = map[string]int{}
	}
	key := fmt.Sprintf("%T %s %v %s %s %s", regarding, regarding.(client.Object).GetName(), related, eventType, reason, action)
	if r.series[key]++; r.series[key] == 1 {
		r.shown = append(r.shown, reason+": "+fmt.Sprintf(note, args...))
	}
}

func waits(messages ...string) []gang.Event {
	var events []gang.Event
	for _, m := range messages {
		events = append(events, gang.Event{Type: corev1.EventTypeWarning, Reason: "NoFeasibleDomain", Message: m})
	}
	return events
}

func TestAMessageThatHasChangedIsShown(t *testing.T) {
	sent := &fakeRecorder{}
	s := newEventSender(sent, clocktesting.NewFakePassiveClock(start))
	claim := gangNamed("a")
	s.send(claim, waits("7 free", "8 free", "8 free"))
	s.send(claim, []gang.Event{{Pod: gpuPod("pod", start), Reason: "NoFeasibleDomain", Message: "8 free"}})
	s.failed(claim, "CreateRules", errors.New("forbidden"))
	want := []string{"NoFeasibleDomain: 7 free", "NoFeasibleDomain: 8 free", "NoFeasibleDomain: GangClaim a: 8 free", "ActionFailed: forbidden: trying again"}
	if !slices.Equal(sent.shown, want) {
		t.Errorf("shown are %q, want %q", sent.shown, want)
	}
}

func TestAGangWhoseMessagesChangeAllTheTimeIsLimited(t *testing.T) {
	sent, now := &fakeRecorder{}, clocktesting.NewFakePassiveClock(start)
	s := newEventSender(sent, now)
	noisy, quiet := gangNamed("noisy"), gangNamed("quiet")
	for i := range 1000 {
		s.send(noisy, waits(fmt.Sprint(i, " free")))
	}
	if len(sent.shown) != newNotes {
		t.Errorf("%d messages are shown, want %d", len(sent.shown), newNotes)
	}
	s.send(quiet, waits("1 free"))
	if last := sent.shown[len(sent.shown)-1]; len(sent.shown) != newNotes+1 || !strings.Contains(last, "1 free") {
		t.Errorf("the last message is %q; want that of the gang that said little", last)
	}
	now.SetTime(start.Add(noteEvery))
	s.send(noisy, waits("none free"))
	if last := sent.shown[len(sent.shown)-1]; !strings.Contains(last, "none free") {
		t.Errorf("the last message is %q; want the newest after a while", last)
	}
	s.forget(keyOf(noisy))
	s.forget(keyOf(quiet))
	if len(s.shown) > 0 {
		t.Errorf("%d gangs are remembered that are gone", len(s.shown))
	}
}
