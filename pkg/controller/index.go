// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Indexes of the cache.
const (
	podsByTemplate = "template" // names of the ResourceClaimTemplates that a pod uses
	byGang         = "gang"     // value of GangLabel
	claimsByPod    = "pod"      // UID of the pod that a claim was generated for
	gangsByUID     = "uid"
)

func addIndexes(ctx context.Context, indexer client.FieldIndexer) error {
	for _, index := range []struct {
		object  client.Object
		name    string
		extract client.IndexerFunc
	}{
		{&corev1.Pod{}, podsByTemplate, templatesOf},
		{&resourceapi.ResourceClaim{}, byGang, gangOf},
		{&resourceapi.ResourceClaim{}, claimsByPod, podOf},
		{&resourceapi.ResourceClaimTemplate{}, byGang, gangOf},
		{&resourceapi.DeviceTaintRule{}, byGang, gangOf},
		{&v1alpha1.GangClaim{}, gangsByUID, func(o client.Object) []string { return []string{string(o.GetUID())} }},
	} {
		if err := indexer.IndexField(ctx, index.object, index.name, index.extract); err != nil {
			return fmt.Errorf("index %T by %s: %w", index.object, index.name, err)
		}
	}
	return nil
}

// templatesOf returns the names of the templates of a pod, each once.
func templatesOf(object client.Object) []string {
	pod, ok := object.(*corev1.Pod)
	if !ok {
		return nil
	}
	var names []string
	seen := map[string]bool{}
	for _, claim := range pod.Spec.ResourceClaims {
		if name := claim.ResourceClaimTemplateName; name != nil && !seen[*name] {
			seen[*name] = true
			names = append(names, *name)
		}
	}
	return names
}

func gangOf(object client.Object) []string {
	if uid := object.GetLabels()[v1alpha1.GangLabel]; uid != "" {
		return []string{uid}
	}
	return nil
}

func podOf(object client.Object) []string {
	if owner := metav1.GetControllerOf(object); owner != nil && owner.Kind == "Pod" && owner.APIVersion == "v1" {
		return []string{string(owner.UID)}
	}
	return nil
}
