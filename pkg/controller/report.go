// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// report tells of templates and claims that tolerate every gang's fence and were there before the
// admission policy, which looks at new ones only. It runs once, at the start.
func (s *sweeper) report(ctx context.Context) {
	var templates resourceapi.ResourceClaimTemplateList
	var claims resourceapi.ResourceClaimList
	logger := klog.FromContext(ctx)
	for _, list := range []client.ObjectList{&templates, &claims} {
		if err := s.client.List(ctx, list); err != nil {
			logger.Error(err, "Cannot look for objects that tolerate fences")
			return
		}
	}
	offenders := 0
	look := func(kind string, object client.Object, spec resourceapi.ResourceClaimSpec) {
		// Ours tolerate the fence of their own gang.
		if object.GetLabels()[v1alpha1.GangLabel] != "" {
			return
		}
		path, tolerates := v1alpha1.ToleratesFence(spec)
		if !tolerates {
			return
		}
		offenders++
		logger.Info("Found an object that may take devices that are reserved for gangs", "kind", kind, "object", klog.KObj(object), "field", path)
		s.events.toleratesFence(object, path)
	}
	for i := range templates.Items {
		look("ResourceClaimTemplate", &templates.Items[i], templates.Items[i].Spec.Spec)
	}
	for i := range claims.Items {
		look("ResourceClaim", &claims.Items[i], claims.Items[i].Spec)
	}
	s.metrics.offenders.Set(float64(offenders))
}

// toleratesFence says at a template or claim what is wrong with it.
func (s *eventSender) toleratesFence(object client.Object, path string) {
	s.recorder.Eventf(object, nil, corev1.EventTypeWarning, "ToleratesFence", "Report", "%s",
		note(path+" tolerates the taint "+v1alpha1.ReservedTaintKey+", so this may take devices that are reserved for gangs: delete it, and create it without that toleration"))
}
