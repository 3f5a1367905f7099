// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

func gangClaim(change func(*GangClaim)) *GangClaim {
	claim := &GangClaim{ObjectMeta: metav1.ObjectMeta{Name: "llama-tp4"}, Spec: GangClaimSpec{Members: 2, DevicesPerMember: 4}}
	change(claim)
	return claim
}

func withSelector(expression string) func(*GangClaim) {
	return func(c *GangClaim) {
		c.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
}

func withToleration(toleration resourceapi.DeviceToleration) func(*GangClaim) {
	return func(c *GangClaim) { c.Spec.Tolerations = []resourceapi.DeviceToleration{toleration} }
}

func withParameters(driver, parameters string) func(*GangClaim) {
	return func(c *GangClaim) {
		c.Spec.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: driver, Parameters: runtime.RawExtension{Raw: []byte(parameters)}},
		}}}
	}
}

func TestValidateGangClaim(t *testing.T) {
	long := strings.Repeat("a", resourceapi.CELSelectorExpressionMaxLength)
	for name, test := range map[string]struct {
		claim *GangClaim
		// want are parts of the only error: the field and the fix. None: valid.
		want []string
	}{
		"numbers alone are enough":           {claim: gangClaim(func(*GangClaim) {})},
		"a name as long as a label's value":  {claim: gangClaim(func(c *GangClaim) { c.Name = strings.Repeat("a", 63) })},
		"a name longer than a label's value": {gangClaim(func(c *GangClaim) { c.Name = strings.Repeat("a", 64) }), []string{"metadata.name", "63"}},
		"the longest restart grace":          {claim: gangClaim(func(c *GangClaim) { c.Spec.RestartGracePeriod = &metav1.Duration{Duration: time.Hour} })},
		"a restart grace that is too long":   {gangClaim(func(c *GangClaim) { c.Spec.RestartGracePeriod = &metav1.Duration{Duration: time.Hour + 1} }), []string{"spec.restartGracePeriod", "1h or less"}},
		"a restart grace below zero":         {gangClaim(func(c *GangClaim) { c.Spec.RestartGracePeriod = &metav1.Duration{Duration: -1} }), []string{"spec.restartGracePeriod", "0s or more"}},
		"a selector of the greatest length":  {claim: gangClaim(withSelector(long))},
		"a selector that is too long":        {gangClaim(withSelector(long + "a")), []string{"spec.selectors[0].cel.expression", "split it"}},
		"an empty selector":                  {gangClaim(withSelector("")), []string{"spec.selectors[0].cel.expression", "remove the selector"}},
		"a selector that is no CEL":          {gangClaim(func(c *GangClaim) { c.Spec.Selectors = make([]resourceapi.DeviceSelector, 1) }), []string{"spec.selectors[0].cel.expression: Required"}},
		"a taint tolerated by key":           {claim: gangClaim(withToleration(resourceapi.DeviceToleration{Key: "gpu.switchyard.dev/unhealthy", Operator: "Exists", Effect: "NoSchedule"}))},
		"a taint tolerated by key and value": {claim: gangClaim(withToleration(resourceapi.DeviceToleration{Key: "example.com/a", Operator: "Equal", Value: "b"}))},
		"a toleration without an operator":   {claim: gangClaim(withToleration(resourceapi.DeviceToleration{Key: "example.com/a", Value: "b", Effect: "NoExecute"}))},
		"all taints tolerated":               {gangClaim(withToleration(resourceapi.DeviceToleration{Operator: "Exists"})), []string{"spec.tolerations[0].key", "switchyard.dev/reserved", "name the key"}},
		"another gang's fence tolerated":     {gangClaim(withToleration(resourceapi.DeviceToleration{Key: ReservedTaintKey, Operator: "Exists"})), []string{"spec.tolerations[0].key: Forbidden", "remove the toleration"}},
		"a key that is no label's":           {gangClaim(withToleration(resourceapi.DeviceToleration{Key: "a b", Operator: "Exists"})), []string{`spec.tolerations[0].key: Invalid value: "a b"`}},
		"an operator that does not exist":    {gangClaim(withToleration(resourceapi.DeviceToleration{Key: "a", Operator: "In"})), []string{"spec.tolerations[0].operator", `"Exists", "Equal"`}},
		"a value with operator Exists":       {gangClaim(withToleration(resourceapi.DeviceToleration{Key: "a", Operator: "Exists", Value: "b"})), []string{"spec.tolerations[0].value", "remove value"}},
		"a value that is no label's":         {gangClaim(withToleration(resourceapi.DeviceToleration{Key: "a", Operator: "Equal", Value: "b c"})), []string{`spec.tolerations[0].value: Invalid value: "b c"`}},
		"an effect that cannot be tolerated": {gangClaim(withToleration(resourceapi.DeviceToleration{Key: "a", Operator: "Exists", Effect: "PreferNoSchedule"})), []string{"spec.tolerations[0].effect", `"NoSchedule", "NoExecute"`}},
		"our configuration":                  {claim: gangClaim(withParameters(DriverName, `{`+gpuHead+`}`))},
		"another driver's configuration":     {claim: gangClaim(withParameters("nic.example.com", `{"any": "thing"}`))},
		"our configuration with a typo":      {gangClaim(withParameters(DriverName, `{`+gpuHead+`, "sharring": {}}`)), []string{"spec.config[0].opaque.parameters", "sharring: unknown field", "sharing"}},
		"no parameters":                      {gangClaim(withParameters(DriverName, ``)), []string{"spec.config[0].opaque.parameters", "must be one JSON object"}},
		"no parameters for another driver":   {gangClaim(withParameters("nic.example.com", ``)), []string{"spec.config[0].opaque.parameters", "must be one JSON object"}},
		"null parameters for another driver": {gangClaim(withParameters("nic.example.com", `null`)), []string{"spec.config[0].opaque.parameters", "must be one JSON object"}},
		"parameters that are too long":       {gangClaim(withParameters("nic.example.com", `{"a": "`+long+`"}`)), []string{"spec.config[0].opaque.parameters", "10240 bytes"}},
		"sharing by MPS":                     {claim: gangClaim(withParameters(DriverName, `{`+gpuHead+`, "sharing": {"strategy": "MPS"}}`))},
		"configuration without a driver":     {gangClaim(withParameters("", `{}`)), []string{"spec.config[0].opaque.driver: Required", "gpu.switchyard.dev"}},
		"a driver's name that is none":       {gangClaim(withParameters("nic_1", `{}`)), []string{`spec.config[0].opaque.driver: Invalid value: "nic_1"`}},
		"a driver's name that is too long":   {gangClaim(withParameters(strings.Repeat("a", 64), `{}`)), []string{"spec.config[0].opaque.driver", "63"}},
		"configuration without parameters":   {gangClaim(func(c *GangClaim) { c.Spec.Config = make([]resourceapi.DeviceClaimConfiguration, 1) }), []string{"spec.config[0].opaque: Required", "remove the entry"}},
		"configuration of one request": {gangClaim(func(c *GangClaim) {
			withParameters(DriverName, `{`+gpuHead+`}`)(c)
			c.Spec.Config[0].Requests = []string{"a"}
		}), []string{"spec.config[0].requests: Forbidden", "one request"}},
		"the second entry of a list is found": {gangClaim(func(c *GangClaim) {
			withSelector("true")(c)
			withSelector("")(c)
			c.Spec.Selectors = append([]resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "true"}}}, c.Spec.Selectors...)
		}), []string{"spec.selectors[1]"}},
	} {
		t.Run(name, func(t *testing.T) {
			errs := ValidateGangClaim(test.claim)
			if len(test.want) == 0 {
				if len(errs) > 0 {
					t.Errorf("refused: %v", errs)
				}
				return
			}
			if len(errs) != 1 {
				t.Fatalf("errors %v, want one with %q", errs, test.want)
			}
			for _, part := range test.want {
				if !strings.Contains(errs[0].Error(), part) {
					t.Errorf("error %q, want it to contain %q", errs[0], part)
				}
			}
		})
	}
}
