// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package gang

import (
	"encoding/json"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// Template is the ResourceClaimTemplate of a plan. Its creation releases the gang.
func Template(claim *v1alpha1.GangClaim, plan *v1alpha1.GangPlan) *resourceapi.ResourceClaimTemplate {
	return &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{
			Namespace:   claim.Namespace,
			Name:        claim.Name,
			Labels:      objectLabels(claim, plan),
			Annotations: objectAnnotations(claim),
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(claim, v1alpha1.GroupVersion.WithKind(v1alpha1.GangClaimKind)),
			},
		},
		Spec: resourceapi.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: objectLabels(claim, plan), Annotations: objectAnnotations(claim)},
			Spec:       placement.ClaimSpec(claim, plan),
		},
	}
}

// objectLabels are the labels of everything that is made for a plan.
func objectLabels(claim *v1alpha1.GangClaim, plan *v1alpha1.GangPlan) map[string]string {
	return map[string]string{v1alpha1.GangLabel: string(claim.UID), v1alpha1.PlanLabel: plan.Hash}
}

// objectAnnotations tell people what everything that is made for a gang was made for.
func objectAnnotations(claim *v1alpha1.GangClaim) map[string]string {
	return map[string]string{v1alpha1.GangClaimAnnotation: claim.Namespace + "/" + claim.Name}
}

// ourTemplate says whether the template that was observed was made for this gang.
func (v *view) ourTemplate() bool {
	return v.Template != nil && v.Template.Labels[v1alpha1.GangLabel] == string(v.Claim.UID)
}

// foreignTemplate says whether someone else has a template of the gang's name.
func (v *view) foreignTemplate() bool {
	return v.Template != nil && !v.ourTemplate()
}

// intactTemplate says whether the template that was observed is the plan's. Labels and annotations that an
// admission webhook added do not matter.
func (v *view) intactTemplate() bool {
	want := Template(v.Claim, v.plan)
	for key, value := range want.Spec.Labels {
		if v.Template.Spec.Labels[key] != value {
			return false
		}
	}
	return v.ourTemplate() &&
		sameSpec(v.Template.Spec.Spec, want.Spec.Spec)
}

// sameSpec compares the specs of claims as the API server stores them, with its defaults.
func sameSpec(a, b resourceapi.ResourceClaimSpec) bool {
	return equality.Semantic.DeepEqual(stored(a), stored(b))
}

func stored(spec resourceapi.ResourceClaimSpec) *resourceapi.ResourceClaimSpec {
	s := spec.DeepCopy()
	for i := range s.Devices.Requests {
		r := s.Devices.Requests[i].Exactly
		if r == nil {
			continue
		}
		if r.AllocationMode == "" {
			r.AllocationMode = resourceapi.DeviceAllocationModeExactCount
		}
		if r.AllocationMode == resourceapi.DeviceAllocationModeExactCount && r.Count == 0 {
			r.Count = 1
		}
		for j := range r.Tolerations {
			if r.Tolerations[j].Operator == "" {
				r.Tolerations[j].Operator = resourceapi.DeviceTolerationOpEqual
			}
		}
	}
	for i := range s.Devices.Config {
		o := s.Devices.Config[i].Opaque
		if o == nil {
			continue
		}
		var value any
		if json.Unmarshal(o.Parameters.Raw, &value) == nil {
			if raw, err := json.Marshal(value); err == nil {
				o.Parameters.Raw = raw
			}
		}
	}
	return s
}
