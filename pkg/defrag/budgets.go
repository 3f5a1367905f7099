// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package defrag

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// budget is a PodDisruptionBudget.
type budget struct {
	object   *policyv1.PodDisruptionBudget
	selector labels.Selector
}

// allowed is how many more of its pods may be evicted now. What the disruption controller has not looked at
// since its last change allows nothing, as in the Eviction API.
func (b *budget) allowed() int {
	if b.object.Status.ObservedGeneration < b.object.Generation {
		return 0
	}
	return int(b.object.Status.DisruptionsAllowed)
}

// budgets are the PodDisruptionBudgets by namespace, each list sorted by name.
type budgets map[string][]*budget

func (b budgets) set(object *policyv1.PodDisruptionBudget) {
	b.remove(types.NamespacedName{Namespace: object.Namespace, Name: object.Name})
	selector, err := metav1.LabelSelectorAsSelector(object.Spec.Selector)
	if err != nil {
		selector = labels.Everything() // The API server refuses to evict a pod that such a budget may be about.
	}
	list := append(b[object.Namespace], &budget{object, selector})
	slices.SortFunc(list, func(x, y *budget) int {
		if x.object.Name < y.object.Name {
			return -1
		}
		return 1
	})
	b[object.Namespace] = list
}

func (b budgets) remove(key types.NamespacedName) {
	list := slices.DeleteFunc(slices.Clone(b[key.Namespace]), func(x *budget) bool { return x.object.Name == key.Name })
	if b[key.Namespace] = list; len(list) == 0 {
		delete(b, key.Namespace)
	}
}

// of lists the budgets that are about a pod.
func (b budgets) of(pod *corev1.Pod) []*budget {
	var list []*budget
	for _, x := range b[pod.Namespace] {
		if x.selector.Matches(labels.Set(pod.Labels)) {
			list = append(list, x)
		}
	}
	return list
}
