// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package resourcemodel

import (
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

const (
	// TaintUnhealthy is the key of the taint of a GPU that must not be handed out. Its value is the
	// reason, such as device.ReasonLost.
	TaintUnhealthy = v1alpha1.DriverName + "/unhealthy"
	// TaintDegraded is the key of the taint of a GPU that can be handed out and is not as it should be. Its
	// effect None keeps nobody away; its value is the reason, such as health.ReasonNVLinkDown.
	TaintDegraded = v1alpha1.DriverName + "/degraded"
	// TaintMIGEnabled is the key of the taint of a GPU in MIG mode, which cannot be used whole.
	TaintMIGEnabled = v1alpha1.DriverName + "/mig-enabled"
	// TaintReconfiguring is the key of the taint of a GPU that the node configuration wants to be published in
	// another form, shared or not, and that is still held in the form it has.
	TaintReconfiguring = v1alpha1.DriverName + "/reconfiguring"
)

// Taints returns the taints of a GPU, none for one that is as it should be. They keep new pods away and
// leave running ones alone, unless the GPU's health says that these should go, too.
func Taints(gpu device.GPU) []resourceapi.DeviceTaint {
	taints := HealthTaints(gpu.Health)
	if gpu.MIGEnabled {
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintMIGEnabled, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if gpu.Reconfiguring {
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintReconfiguring, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return taints
}

// HealthTaints returns the taints that a GPU's health gives the GPU, and every partition of it.
func HealthTaints(health device.Health) []resourceapi.DeviceTaint {
	var taints []resourceapi.DeviceTaint
	if !health.Healthy() {
		effect := resourceapi.DeviceTaintEffectNoSchedule
		if health.Evict {
			effect = resourceapi.DeviceTaintEffectNoExecute
		}
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintUnhealthy, Value: taintValue(health.Reason), Effect: effect})
	}
	if health.Degraded != "" {
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintDegraded, Value: taintValue(health.Degraded), Effect: resourceapi.DeviceTaintEffectNone})
	}
	return taints
}

// taintValue returns a reason as a taint's value, empty if it cannot be one.
func taintValue(reason string) string {
	if len(validation.IsValidLabelValue(reason)) > 0 {
		return ""
	}
	return reason
}
