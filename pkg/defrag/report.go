// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Reasons of the condition RoomCanBeMade.
const (
	// ReasonMovesFound means that the moves of status.defragmentation would make room.
	ReasonMovesFound = "MovesFound"
	// ReasonMoving means that the moves are being made.
	ReasonMoving = "Moving"
	// ReasonWaiting means that the moves are made when the gang has waited for a while.
	ReasonWaiting = "Waiting"
	// ReasonOneAtATime means that pods are being moved for another gang first.
	ReasonOneAtATime = "OneAtATime"
	// ReasonEvictionBudget means that moves were found and too many pods were evicted in the last hour.
	ReasonEvictionBudget = "EvictionBudget"
	// ReasonNoMoves means that no moves that are allowed make room.
	ReasonNoMoves = "NoMoves"
	// ReasonTooManyMoves means that it takes more moves than are allowed for one gang.
	ReasonTooManyMoves = "TooManyMoves"
	// ReasonGivenUp means that none of the places that were tried came out to serve.
	ReasonGivenUp = "GivenUp"
	// ReasonPlanning means that the search is to be made again.
	ReasonPlanning = "Planning"
)

// Found says whether a reason stands for moves that were found.
func Found(reason string) bool {
	switch reason {
	case ReasonMovesFound, ReasonMoving, ReasonWaiting, ReasonOneAtATime, ReasonEvictionBudget:
		return true
	}
	return false
}

// mostNames is how many pods a message names.
const mostNames = 5

func (q *inquiry) report(reason, message string) *v1alpha1.GangDefragmentation {
	return &v1alpha1.GangDefragmentation{Reason: reason, Message: message, RuledOut: q.summary()}
}

// found reports moves that would make room.
func (q *inquiry) found(t *placement.Trial, plan *v1alpha1.GangPlan) *v1alpha1.GangDefragmentation {
	r := q.report(ReasonMovesFound, "")
	var total placement.Price
	var texts []string
	for _, d := range t.Moves {
		p := q.price(d.Resident)
		total = total.Plus(p)
		move := q.move(d)
		r.Moves = append(r.Moves, move)
		texts = append(texts, moveText(d, move))
	}
	r.Cost = costText(total)
	for _, p := range plan.Placements {
		name := p.Domain
		if name == "" {
			name = p.Node
		}
		if !slices.Contains(r.Domains, name) {
			r.Domains = append(r.Domains, name)
		}
	}
	r.Message = fmt.Sprintf("evict %s: %s. The gang then gets %s", count(len(texts), "pod"), few(texts), few(r.Domains))
	return r
}

func moveText(d placement.Destination, move v1alpha1.GangMove) string {
	return fmt.Sprintf("%s/%s (%s → %s, priority %d)", move.Namespace, move.Pod, at(move.From), at(move.To), corev1helpers.PodPriority(d.Pod))
}

func costText(total placement.Price) string {
	return fmt.Sprintf("%s, importance %d, lost work %d", count(total.Pods, "pod"), total.Rank, total.Work)
}

func (q *inquiry) move(d placement.Destination) v1alpha1.GangMove {
	from := d.Devices[0]
	why := fmt.Sprintf("priority %d is lower than %d", corev1helpers.PodPriority(d.Pod), q.gang.Priority)
	if movable(d.Pod) {
		why = "label " + v1alpha1.MovableLabel + "=true"
	}
	return v1alpha1.GangMove{
		Namespace: d.Pod.Namespace, Pod: d.Pod.Name, PodUID: d.Pod.UID,
		Claim: d.Claim.Name, ClaimUID: d.Claim.UID, OwnerUID: metav1.GetControllerOfNoCopy(d.Pod).UID,
		From:               v1alpha1.GangMovePlace{Node: d.Pod.Spec.NodeName, Pool: from.Pool, Device: from.Device, Domain: d.FromDomain},
		To:                 v1alpha1.GangMovePlace{Node: d.Node, Pool: d.To.Pool, Device: d.To.Device, Domain: d.Domain},
		Why:                why,
		GracePeriodSeconds: int64(gracePeriod(d.Pod) / time.Second),
	}
}

// at is a place in short: the domain, or the node, and the device.
func at(p v1alpha1.GangMovePlace) string {
	if p.Node == "" {
		return "no place"
	}
	if p.Domain != "" {
		return p.Domain + "/" + p.Device
	}
	return p.Node + "/" + p.Device
}

// impossible reports that moving does not help, with the best attempt.
func (q *inquiry) impossible(t *placement.Trial) *v1alpha1.GangDefragmentation {
	r := q.report(ReasonNoMoves, "")
	r.Message = fmt.Sprintf("with all moves that are allowed there would be a place for %d of %s", t.Members, count(len(q.gang.Pods), "member"))
	if t.Members > 0 && len(t.Victims) > 0 {
		r.Message += ", by moving " + few(namesOf(t.Victims))
	}
	r.Message += ruledOutText(r.RuledOut)
	return r
}

func (q *inquiry) tooMany(t *placement.Trial) *v1alpha1.GangDefragmentation {
	r := q.report(ReasonTooManyMoves, "")
	r.Message = fmt.Sprintf("it takes %s, of which %d are allowed for one gang: at the least %s%s",
		count(len(t.Victims), "move"), min(q.limits.Moves, MaxMoves), few(namesOf(t.Victims)), ruledOutText(r.RuledOut))
	return r
}

func (q *inquiry) gaveUp(t *placement.Trial) *v1alpha1.GangDefragmentation {
	r := q.report(ReasonGivenUp, "")
	r.Message = fmt.Sprintf("%d places were tried, and none serves; the last by moving %s%s", tries, few(namesOf(t.Victims)), ruledOutText(r.RuledOut))
	return r
}

func namesOf(list []placement.Resident) []string {
	var names []string
	for _, r := range list {
		names = append(names, nameOf(r))
	}
	return names
}

// ruledOutText says why pods were not considered.
func ruledOutText(list []v1alpha1.GangRuledOut) string {
	var parts []string
	for _, r := range list {
		parts = append(parts, fmt.Sprintf("%s (%s)", count(int(r.Pods), "pod"), r.Reason+": "+r.Example))
	}
	if len(parts) == 0 {
		return ""
	}
	return ". Not to be moved: " + few(parts)
}

func few(list []string) string {
	if len(list) > mostNames {
		return fmt.Sprintf("%s and %d more", strings.Join(list[:mostNames], ", "), len(list)-mostNames)
	}
	return strings.Join(list, ", ")
}

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
