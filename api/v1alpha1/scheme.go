// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme registers the kinds that the API server serves.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &GangClaim{}, &GangClaimList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
