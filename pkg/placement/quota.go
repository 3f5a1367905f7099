// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

// claimCount is the quota of ResourceClaims by number.
const claimCount corev1.ResourceName = "count/resourceclaims.resource.k8s.io"

func (c *Cluster) classOfResource(name corev1.ResourceName) *resourceapi.DeviceClass {
	return ClassOfResource(maps.Values(c.classes), name)
}

// ClassOfResource returns the DeviceClass behind an extended resource (KEP-5004), nil when there is
// none. Of several that name the same resource it is the newest, then the first by name, as in
// kube-scheduler.
func ClassOfResource(classes iter.Seq[*resourceapi.DeviceClass], name corev1.ResourceName) *resourceapi.DeviceClass {
	if !strings.Contains(string(name), "/") {
		return nil
	}
	var found *resourceapi.DeviceClass
	for class := range classes {
		if string(name) == resourceapi.ResourceDeviceClassPrefix+class.Name {
			return class
		}
		if class.Spec.ExtendedResourceName == nil || *class.Spec.ExtendedResourceName != string(name) {
			continue
		}
		if found == nil || newer(class, found) {
			found = class
		}
	}
	return found
}

func newer(a, b *resourceapi.DeviceClass) bool {
	if !a.CreationTimestamp.Equal(&b.CreationTimestamp) {
		return b.CreationTimestamp.Before(&a.CreationTimestamp)
	}
	return a.Name < b.Name
}

// quotaNeeds is what the claims of a gang count for in ResourceQuotas.
func quotaNeeds(class *resourceapi.DeviceClass, members, devices int64) map[corev1.ResourceName]int64 {
	needs := map[corev1.ResourceName]int64{
		claimCount: members,
		corev1.ResourceName(class.Name + corev1.ResourceClaimsPerClass):                 devices,
		corev1.ResourceName(corev1.ResourceImplicitExtendedClaimsPerClass + class.Name): devices,
	}
	if class.Spec.ExtendedResourceName != nil {
		needs[corev1.ResourceName(corev1.DefaultResourceRequestsPrefix+*class.Spec.ExtendedResourceName)] = devices
	}
	return needs
}

// quotaRefusal looks for a ResourceQuota of the namespace that does not admit the claims; spent is what
// gangs that were planned before will take of it. Quotas with scopes are about pods only.
func (c *Cluster) quotaRefusal(namespace string, needs, spent map[corev1.ResourceName]int64) string {
	quotas := c.quotas[namespace]
	for _, name := range slices.Sorted(maps.Keys(quotas)) {
		quota := quotas[name]
		if len(quota.Spec.Scopes) > 0 || quota.Spec.ScopeSelector != nil {
			continue
		}
		hard := quota.Status.Hard
		if hard == nil {
			hard = quota.Spec.Hard
		}
		for _, resource := range slices.Sorted(maps.Keys(needs)) {
			limit, limited := hard[resource]
			if !limited {
				continue
			}
			used := quota.Status.Used[resource]
			left := limit.Value() - used.Value() - spent[resource]
			if needs[resource] > left {
				return fmt.Sprintf("ResourceQuota %s leaves %d of %s, %d are needed: raise the quota or delete what uses it",
					name, max(left, 0), resource, needs[resource])
			}
		}
	}
	return ""
}
