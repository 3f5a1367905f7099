// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Priority of a gang is the lowest of its live pods', which a quota or an admission policy may bound, and no higher
// than that of the GangClaim's class, which nothing bounds: whoever makes a GangClaim may name any. class is nil
// where the GangClaim names none, or one that does not exist. A gang without pods and class has priority 0.
func Priority(class *schedulingv1.PriorityClass, pods []*corev1.Pod) int32 {
	var values []int32
	if class != nil {
		values = append(values, class.Value)
	}
	for _, pod := range pods {
		if pod.DeletionTimestamp == nil && !placement.Ended(pod) {
			values = append(values, ptr.Deref(pod.Spec.Priority, 0))
		}
	}
	if len(values) == 0 {
		return 0
	}
	return slices.Min(values)
}
