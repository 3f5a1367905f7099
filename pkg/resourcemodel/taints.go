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
	// TaintMIGEnabled is the key of the taint of a GPU in MIG mode, which cannot be used whole.
	TaintMIGEnabled = v1alpha1.DriverName + "/mig-enabled"
)

// Taints returns the taints of a GPU, none for one that can be handed out. They keep new pods away and
// leave running ones alone.
func Taints(gpu device.GPU) []resourceapi.DeviceTaint {
	var taints []resourceapi.DeviceTaint
	if !gpu.Health.Healthy() {
		value := gpu.Health.Reason
		if len(validation.IsValidLabelValue(value)) > 0 {
			value = ""
		}
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintUnhealthy, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	if gpu.MIGEnabled {
		taints = append(taints, resourceapi.DeviceTaint{Key: TaintMIGEnabled, Effect: resourceapi.DeviceTaintEffectNoSchedule})
	}
	return taints
}
