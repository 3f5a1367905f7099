// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/recorder"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// maxNote is the longest note of an Event in bytes (events.k8s.io/v1).
const maxNote = 1024

// eventSender sends Events about GangClaims and about their pods.
type eventSender struct{ recorder recorder.EventRecorder }

// send sends what was decided. What a person sees at a pod names the GangClaim, and the other way round.
func (s *eventSender) send(claim *v1alpha1.GangClaim, events []gang.Event) {
	for _, e := range events {
		if e.Pod != nil {
			s.recorder.Eventf(e.Pod, claim, e.Type, e.Reason, "StartGang", "%s", note("GangClaim "+claim.Name+": "+e.Message))
			continue
		}
		s.recorder.Eventf(claim, runtime.Object(nil), e.Type, e.Reason, "StartGang", "%s", note(e.Message))
	}
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
