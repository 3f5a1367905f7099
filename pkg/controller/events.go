// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"fmt"
	"hash/fnv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/flowcontrol"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// maxNote is the longest note of an Event in bytes (events.k8s.io/v1).
const maxNote = 1024

const (
	// newNotes is how many messages of one reason a gang may send at once, noteEvery how often after that.
	newNotes, noteEvery = 5, 30 * time.Second
)

// eventSender sends Events about GangClaims and about their pods.
//
// The recorder of events.k8s.io counts Events of the same reason and action as one series, and shows the
// first one's message only. The action therefore names the message too, so that a message that has changed
// is seen. A gang whose messages change all the time falls back to being counted.
type eventSender struct {
	recorder recorder.EventRecorder
	clock    clock.PassiveClock

	mu    sync.Mutex
	shown map[types.NamespacedName]map[string]*shownNote // by GangClaim and reason
}

// shownNote is the message of a reason that was shown last.
type shownNote struct {
	digest string
	limit  flowcontrol.PassiveRateLimiter
}

func newEventSender(r recorder.EventRecorder, clk clock.PassiveClock) *eventSender {
	return &eventSender{recorder: r, clock: clk, shown: map[types.NamespacedName]map[string]*shownNote{}}
}

// send sends what was decided. What a person sees at a pod names the GangClaim, and the other way round.
func (s *eventSender) send(claim *v1alpha1.GangClaim, events []gang.Event) {
	for _, e := range events {
		if e.Pod != nil {
			s.eventf(keyOf(claim), e.Pod, claim, e.Type, e.Reason, "StartGang", "GangClaim "+claim.Name+": "+e.Message)
			continue
		}
		s.eventf(keyOf(claim), claim, nil, e.Type, e.Reason, "StartGang", e.Message)
	}
}

// eventf sends an Event about a gang.
func (s *eventSender) eventf(gang types.NamespacedName, regarding, related runtime.Object, eventType, reason, action, message string) {
	message = note(message)
	s.recorder.Eventf(regarding, related, eventType, reason, action+"-"+s.digest(gang, fmt.Sprintf("%s %T", reason, regarding), message), "%s", message)
}

// digest names the message, or the one that was shown last where too many have been.
func (s *eventSender) digest(gang types.NamespacedName, reason, message string) string {
	digest := digestOf(message)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.shown[gang] == nil {
		s.shown[gang] = map[string]*shownNote{}
	}
	last := s.shown[gang][reason]
	if last == nil {
		last = &shownNote{limit: flowcontrol.NewTokenBucketPassiveRateLimiterWithClock(float32(1/noteEvery.Seconds()), newNotes, s.clock)}
		s.shown[gang][reason] = last
	}
	if last.digest != digest && last.limit.TryAccept() {
		last.digest = digest
	}
	return last.digest
}

func digestOf(message string) string {
	sum := fnv.New32a()
	_, _ = sum.Write([]byte(message)) // never fails
	return fmt.Sprintf("%08x", sum.Sum32())
}

// forget drops what is known of a GangClaim that is gone.
func (s *eventSender) forget(gang types.NamespacedName) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.shown, gang)
}

// failed says at the GangClaim which action the API server refuses, and why: the gang waits for it.
func (s *eventSender) failed(claim *v1alpha1.GangClaim, verb string, err error) {
	s.eventf(keyOf(claim), claim, nil, corev1.EventTypeWarning, "ActionFailed", verb, err.Error()+": trying again")
}

// note cuts a message to what the API takes.
func note(message string) string {
	const more = " …"
	if len(message) <= maxNote {
		return message
	}
	cut := maxNote - len(more)
	for cut > 0 && message[cut]&0xC0 == 0x80 { // not within a character
		cut--
	}
	return message[:cut] + more
}

// bareOrphan says at a pod why it will not start.
func (s *eventSender) bareOrphan(pod *corev1.Pod, claim *resourceapi.ResourceClaim) {
	s.recorder.Eventf(pod, claim, corev1.EventTypeWarning, "GangClaimGone", "Sweep", "%s",
		note("The GangClaim of this pod was deleted before the gang started, so the pod will not start, and holds its devices: delete the pod."))
}

// worthMoving says at a pod, which has opted in, that its move would make a domain whole.
func (s *eventSender) worthMoving(pod *corev1.Pod, message string) {
	message = note("No gang waits, and nothing is evicted. It would be worth it to " + message)
	s.recorder.Eventf(pod, nil, corev1.EventTypeNormal, "WorthMoving", "Consolidate-"+digestOf(message), "%s", message)
}
