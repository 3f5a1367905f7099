// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"strings"
	"time"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Names in our key space that nobody else acts on.
const (
	// Finalizer on a GangClaim holds its deletion until template, unready claims and rules are swept.
	Finalizer = v1alpha1.GroupName + "/gang"

	// DevicesAnnotation on a DeviceTaintRule for a whole pool, or for a sibling of a planned device, has the names of the
	// planned devices, comma-separated: what a replacement may be planned on after the plan itself was replaced.
	DevicesAnnotation = v1alpha1.GroupName + "/devices"
)

// What was done to an object when TouchedAnnotation was written: creationTimestamp has whole seconds, and
// the protocol waits for tenths.
const (
	// StampCreated is on a rule when it is created or repaired.
	StampCreated = "created"
	// StampTouched is on a rule or a pod when it is touched.
	StampTouched = "touched"
	// StampNeutralized is on a rule when its effect is set to None.
	StampNeutralized = "neutralized"
)

// Stamp returns a value for TouchedAnnotation: what is done to the object, and when. Appliers call it
// with the time of the write, not of the decision.
func Stamp(did string, at time.Time) string {
	return did + " " + at.UTC().Format(time.RFC3339Nano)
}

// stamped returns when did was done to the object with these annotations; false when its last stamp
// says something else, or nothing that can be read.
func stamped(annotations map[string]string, did string) (time.Time, bool) {
	word, at, ok := strings.Cut(annotations[v1alpha1.TouchedAnnotation], " ")
	if !ok || word != did {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, at)
	return t, err == nil
}
