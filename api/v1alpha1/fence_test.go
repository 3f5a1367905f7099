// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
)

func TestToleratesFence(t *testing.T) {
	var (
		plain      = resourceapi.DeviceToleration{Key: "gpu.switchyard.dev/unhealthy", Operator: resourceapi.DeviceTolerationOpExists}
		equal      = resourceapi.DeviceToleration{Key: ReservedTaintKey, Operator: resourceapi.DeviceTolerationOpEqual, Value: "uid"}
		exists     = resourceapi.DeviceToleration{Key: ReservedTaintKey, Operator: resourceapi.DeviceTolerationOpExists}
		everything = resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists}
	)
	exactly := func(tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{Exactly: &resourceapi.ExactDeviceRequest{Tolerations: tolerations}}
	}
	admin := exactly(everything)
	admin.Exactly.AdminAccess = ptr.To(true)
	noAdmin := exactly(everything)
	noAdmin.Exactly.AdminAccess = ptr.To(false)
	alternatives := func(tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequest {
		return resourceapi.DeviceRequest{FirstAvailable: []resourceapi.DeviceSubRequest{{}, {Tolerations: tolerations}}}
	}
	for name, test := range map[string]struct {
		requests []resourceapi.DeviceRequest
		want     string // empty: none
	}{
		"no requests":                              {nil, ""},
		"no tolerations":                           {[]resourceapi.DeviceRequest{exactly(), alternatives()}, ""},
		"another taint":                            {[]resourceapi.DeviceRequest{exactly(plain), alternatives(plain)}, ""},
		"the fence of one gang":                    {[]resourceapi.DeviceRequest{exactly(equal)}, "devices.requests[0].exactly.tolerations[0]"},
		"the fences of all gangs":                  {[]resourceapi.DeviceRequest{exactly(exists)}, "devices.requests[0].exactly.tolerations[0]"},
		"every taint":                              {[]resourceapi.DeviceRequest{exactly(everything)}, "devices.requests[0].exactly.tolerations[0]"},
		"the second toleration of the second":      {[]resourceapi.DeviceRequest{exactly(plain), exactly(plain, exists)}, "devices.requests[1].exactly.tolerations[1]"},
		"an alternative":                           {[]resourceapi.DeviceRequest{alternatives(plain, everything)}, "devices.requests[0].firstAvailable[1].tolerations[1]"},
		"adminAccess takes no device from anybody": {[]resourceapi.DeviceRequest{admin}, ""},
		"adminAccess beside one that does":         {[]resourceapi.DeviceRequest{admin, exactly(exists)}, "devices.requests[1].exactly.tolerations[0]"},
		"adminAccess that is off":                  {[]resourceapi.DeviceRequest{noAdmin}, "devices.requests[0].exactly.tolerations[0]"},
	} {
		t.Run(name, func(t *testing.T) {
			path, tolerates := ToleratesFence(resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: test.requests}})
			if path != test.want || tolerates != (test.want != "") {
				t.Errorf("ToleratesFence = %q, %t, want %q", path, tolerates, test.want)
			}
		})
	}
}
