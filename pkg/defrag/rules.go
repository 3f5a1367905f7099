// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Reasons why a pod is not moved: status.defragmentation.ruledOut[].reason.
const (
	// NotOnePod means that the claim is shared, reserved for no pod, or for one that is not known.
	NotOnePod = "NotOnePod"
	// Ending means that the pod is being deleted or has ended: its device comes free without us.
	Ending = "Ending"
	// GangMember means that the pod is of a gang, which would be torn apart.
	GangMember = "GangMember"
	// SeveralDevices means that the pod has more than one device, or other claims.
	SeveralDevices = "SeveralDevices"
	// SharedCounters means that the pod has a partition of a GPU, or a GPU that can be partitioned (KEP-4815), and no gang
	// waits, or one for a part of that GPU.
	SharedCounters = "SharedCounters"
	// NotReplaced means that no controller would replace the pod, or only on its own node, or that this is not known
	// of its controller and the pod has not opted in.
	NotReplaced = "NotReplaced"
	// NotOptedIn means that the pod has no label that lets it be moved while no gang waits.
	NotOptedIn = "NotOptedIn"
	// PriorityNotLower means that the pod's priority is not lower than the gang's and it has not opted in.
	PriorityNotLower = "PriorityNotLower"
	// HigherPriority means that the pod has opted in, and has a higher priority than the gang.
	HigherPriority = "HigherPriority"
	// NotForeseen means that something may bind the pod to its node, or let its replacement have the freed device, that
	// the planner does not look at.
	NotForeseen = "NotForeseen"
	// LongGracePeriod means that the pod may take too long to end.
	LongGracePeriod = "LongGracePeriod"
	// CoolingDown means that the pod came in place of one that was evicted a short while ago.
	CoolingDown = "CoolingDown"
	// RefusedBefore means that the API server refused to evict the pod a short while ago.
	RefusedBefore = "RefusedBefore"
	// DisruptionBudget means that a PodDisruptionBudget does not allow it.
	DisruptionBudget = "DisruptionBudget"
	// EvictionBudget means that too many pods of the namespace were evicted in the last hour.
	EvictionBudget = "EvictionBudget"
	// NoPlaceElsewhere means that no device and node elsewhere suit the pod.
	NoPlaceElsewhere = "NoPlaceElsewhere"
)

// rule says why a pod must not be moved, or "" if it may for all that the rule knows. The pod is not nil but in
// the first.
type rule struct {
	reason string
	broken func(*inquiry, placement.Resident) string
}

// rules are asked in this order; the first that is broken is the reason.
var rules = []rule{
	{NotOnePod, notOnePod},
	{Ending, ending},
	{GangMember, gangMember},
	{SeveralDevices, severalDevices},
	{SharedCounters, sharedCounters},
	{NotOptedIn, notOptedIn},
	{NotReplaced, notReplaced},
	{HigherPriority, higherPriority},
	{PriorityNotLower, priorityNotLower},
	{NotForeseen, toleratesFence},
	{NotForeseen, notForeseen},
	{LongGracePeriod, longGracePeriod},
	{CoolingDown, coolingDown},
	{RefusedBefore, refusedBefore},
	{DisruptionBudget, disruptionBudget},
}

func notOnePod(_ *inquiry, r placement.Resident) string {
	if r.Pod != nil {
		return ""
	}
	return fmt.Sprintf("is used by %d pods that are known", max(len(r.Claim.Status.ReservedFor)-1, 0))
}

func ending(_ *inquiry, r placement.Resident) string {
	if r.Pod.DeletionTimestamp != nil || r.Claim.DeletionTimestamp != nil || placement.Ended(r.Pod) {
		return "is ending by itself"
	}
	return ""
}

func gangMember(_ *inquiry, r placement.Resident) string {
	switch {
	case r.Claim.Labels[v1alpha1.GangLabel] != "":
		return "is a member of a gang"
	case r.Pod.Spec.SchedulingGroup != nil:
		return "is scheduled as one of a group"
	}
	return ""
}

func severalDevices(_ *inquiry, r placement.Resident) string {
	switch {
	case len(r.Devices) != 1:
		return fmt.Sprintf("has %d devices", len(r.Devices))
	case len(r.Pod.Spec.ResourceClaims) > 1:
		return fmt.Sprintf("has %d claims", len(r.Pod.Spec.ResourceClaims))
	case len(r.Claim.Spec.Devices.Requests) != 1:
		return fmt.Sprintf("has a claim with %d requests", len(r.Claim.Spec.Devices.Requests))
	}
	return ""
}

// sharedCounters leaves a pod with a partition where the gang would not get the whole GPU: which of its pods are in the way
// is not looked at. While no gang waits, the GPU would have to be free as a whole to be worth it.
func sharedCounters(q *inquiry, r placement.Resident) string {
	switch {
	case r.ForPart:
		return "has a GPU, or a partition of it, of which the gang would get a part"
	case r.SharesCounters && q.gang.Claim == nil:
		return "has a partition of a GPU, or a GPU that can be partitioned, which is moved for a gang only"
	}
	return ""
}

// notOptedIn is asked where no gang gains: then a low priority alone is no reason to move a pod.
func notOptedIn(q *inquiry, r placement.Resident) string {
	if q.gang.Claim == nil && !movable(r.Pod) {
		return fmt.Sprintf("has no label %s=true", v1alpha1.MovableLabel)
	}
	return ""
}

// notReplaced knows only the controllers of which it is sure that each pod is replaced alone, and by one that does not
// remember the loss. With others a pod may be one of a group that ends with it, or its end may be counted as a failure: a
// Job with backoffLimit 0, a worker of a PyTorchJob, a RayCluster or an MPIJob. Who owns these can say that it is all right.
func notReplaced(_ *inquiry, r placement.Resident) string {
	owner := metav1.GetControllerOfNoCopy(r.Pod)
	switch {
	case owner == nil:
		return "is a bare pod: nobody would replace it"
	case owner.Kind == "DaemonSet" || owner.Kind == "Node":
		return fmt.Sprintf("belongs to its node (%s)", owner.Kind)
	case !movable(r.Pod) && !replacesEach(owner):
		return fmt.Sprintf("belongs to a %s, which may not replace it, or not alone: its owner must opt in with the label %s=true", owner.Kind, v1alpha1.MovableLabel)
	case !movable(r.Pod) && r.Pod.Labels[leaderWorkerSetLabel] != "":
		return fmt.Sprintf("is one of a LeaderWorkerSet, whose pods end together: its owner must opt in with the label %s=true", v1alpha1.MovableLabel)
	}
	for _, ref := range r.Pod.Spec.ResourceClaims {
		if ref.ResourceClaimName != nil {
			return "names a ResourceClaim, which its replacement would find with the same device"
		}
	}
	return ""
}

// leaderWorkerSetLabel is on the pods of a LeaderWorkerSet, which are made by StatefulSets (sigs.k8s.io/lws).
const leaderWorkerSetLabel = "leaderworkerset.sigs.k8s.io/name"

// replacesEach says of a controller that it replaces each pod alone.
func replacesEach(owner *metav1.OwnerReference) bool {
	group, _, _ := strings.Cut(owner.APIVersion, "/")
	switch owner.Kind {
	case "ReplicaSet", "StatefulSet":
		return group == "apps"
	case "ReplicationController":
		return owner.APIVersion == "v1"
	}
	return false
}

// toleratesFence has no exception: the fence is what keeps a replacement off the devices that are freed.
func toleratesFence(_ *inquiry, r placement.Resident) string {
	if path, tolerates := v1alpha1.ToleratesFence(r.Claim.Spec); tolerates {
		return fmt.Sprintf("has a claim that tolerates the fence (spec.%s): its replacement could take the device that was freed", path)
	}
	return ""
}

func higherPriority(q *inquiry, r placement.Resident) string {
	if p := corev1helpers.PodPriority(r.Pod); q.gang.Claim != nil && p > q.gang.Priority {
		return fmt.Sprintf("has priority %d, above the gang's %d", p, q.gang.Priority)
	}
	return ""
}

func priorityNotLower(q *inquiry, r placement.Resident) string {
	if p := corev1helpers.PodPriority(r.Pod); p == q.gang.Priority && !movable(r.Pod) {
		return fmt.Sprintf("has priority %d, the gang's, and no label %s=true", p, v1alpha1.MovableLabel)
	}
	return ""
}

// movable says whether the pod's owner lets it be moved.
func movable(pod *corev1.Pod) bool { return pod.Labels[v1alpha1.MovableLabel] == "true" }

// notForeseen trusts a pod that has opted in: its owner says that it can run elsewhere.
func notForeseen(_ *inquiry, r placement.Resident) string {
	spec := &r.Pod.Spec
	if movable(r.Pod) {
		return ""
	}
	for _, v := range spec.Volumes {
		if v.PersistentVolumeClaim != nil || v.Ephemeral != nil {
			return "has a persistent volume, which may bind it to its node"
		}
	}
	if a := spec.Affinity; a != nil {
		if a.PodAffinity != nil && len(a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 ||
			a.PodAntiAffinity != nil && len(a.PodAntiAffinity.RequiredDuringSchedulingIgnoredDuringExecution) > 0 {
			return "has a required inter-pod affinity or anti-affinity"
		}
	}
	for _, c := range spec.TopologySpreadConstraints {
		if c.WhenUnsatisfiable == corev1.DoNotSchedule {
			return "has a required topology spread"
		}
	}
	// Of the init containers only sidecars keep theirs; a port that is too careful costs one victim.
	for _, c := range slices.Concat(spec.Containers, spec.InitContainers) {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.HostPort != 0 }) {
			return "has a host port"
		}
	}
	return ""
}

func longGracePeriod(q *inquiry, r placement.Resident) string {
	if grace := gracePeriod(r.Pod); grace > q.limits.GracePeriod {
		return fmt.Sprintf("may take %s to end, more than %s", grace, q.limits.GracePeriod)
	}
	return ""
}

// gracePeriod is at most a year: the API server takes more seconds than a Duration has.
func gracePeriod(pod *corev1.Pod) time.Duration {
	if s := pod.Spec.TerminationGracePeriodSeconds; s != nil {
		return time.Duration(min(*s, 365*24*3600)) * time.Second
	}
	return corev1.DefaultTerminationGracePeriodSeconds * time.Second
}

// coolingDown knows pods by who makes them: a replacement has another name.
func coolingDown(q *inquiry, r placement.Resident) string {
	owner := metav1.GetControllerOfNoCopy(r.Pod)
	for _, e := range q.recent {
		// A creation time has whole seconds.
		if e.OwnerUID == owner.UID && e.Outcome != v1alpha1.EvictionRefused && !r.Pod.CreationTimestamp.Time.Before(e.Time.Truncate(time.Second)) {
			return fmt.Sprintf("was made after pod %s of the same %s was evicted, less than %s ago", e.Pod, owner.Kind, q.limits.Cooldown)
		}
	}
	return ""
}

func refusedBefore(q *inquiry, r placement.Resident) string {
	for _, e := range q.recent {
		if e.Outcome == v1alpha1.EvictionRefused && e.Namespace == r.Pod.Namespace && e.Pod == r.Pod.Name {
			return fmt.Sprintf("was not evicted, less than %s ago, as the API server refused", q.limits.Cooldown)
		}
	}
	return ""
}

func disruptionBudget(q *inquiry, r placement.Resident) string {
	list := q.budgets.of(r.Pod)
	switch {
	case len(list) > 1:
		return fmt.Sprintf("is in %d PodDisruptionBudgets, which the Eviction API does not support", len(list))
	case len(list) == 1 && list[0].allowed() < 1:
		return fmt.Sprintf("is in PodDisruptionBudget %s, which allows no disruption now", list[0].object.Name)
	}
	return ""
}

// price is what it costs to move a pod that may be moved. Priorities and ages count by their order of magnitude.
func (q *inquiry) price(r placement.Resident) placement.Price {
	const zero = 32
	rank := zero
	switch p := corev1helpers.PodPriority(r.Pod); {
	case p > 0:
		rank += bits.Len32(uint32(p))
	case p < 0:
		rank -= bits.Len32(uint32(-int64(p))) // 2³¹ fits
	}
	since := r.Pod.CreationTimestamp.Time
	if start := r.Pod.Status.StartTime; start != nil {
		since = start.Time
	}
	minutes := max(q.now.Sub(since), 0) / time.Minute
	return placement.Price{Pods: 1, Rank: rank, Work: bits.Len64(uint64(minutes))}
}
