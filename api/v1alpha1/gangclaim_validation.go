// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1validation "k8s.io/apimachinery/pkg/apis/meta/v1/validation"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// maxDriverNameLength is how many characters the name of a DRA driver may have
// (resource.k8s.io/v1 DeviceRequestAllocationResult.driver).
const maxDriverNameLength = 63

// MaxRestartGracePeriod is the longest restartGracePeriod of a GangClaim: a fence keeps devices from everybody.
const MaxRestartGracePeriod = time.Hour

// ValidateGangClaim reports what the API server would refuse in the ResourceClaimTemplate of the gang,
// and what the node plugin would refuse in its claims: faults that would show only when devices are
// planned and fenced. The CRD's rules catch most of them earlier; what they cannot judge at a bearable
// cost, label syntax and opaque parameters, is judged here alone.
//
// Whether a CEL expression compiles is not judged: that takes the scheduler's compiler, which the
// planner has.
func ValidateGangClaim(claim *GangClaim) field.ErrorList {
	var errs field.ErrorList
	if name := claim.Name; len(name) > validation.LabelValueMaxLength {
		errs = append(errs, field.TooLong(field.NewPath("metadata", "name"), name, validation.LabelValueMaxLength))
	}
	spec := field.NewPath("spec")
	if grace := claim.Spec.RestartGracePeriod; grace != nil && (grace.Duration < 0 || grace.Duration > MaxRestartGracePeriod) {
		errs = append(errs, field.Invalid(spec.Child("restartGracePeriod"), grace.Duration.String(),
			"must be 0s or more and at most 1h, since it keeps devices from all other gangs: set it to 1h or less"))
	}
	for i, selector := range claim.Spec.Selectors {
		errs = append(errs, validateGangSelector(selector, spec.Child("selectors").Index(i))...)
	}
	for i, toleration := range claim.Spec.Tolerations {
		errs = append(errs, validateGangToleration(toleration, spec.Child("tolerations").Index(i))...)
	}
	for i, config := range claim.Spec.Config {
		errs = append(errs, validateGangConfig(config, spec.Child("config").Index(i))...)
	}
	return errs
}

func validateGangSelector(selector resourceapi.DeviceSelector, path *field.Path) field.ErrorList {
	expression := path.Child("cel", "expression")
	switch {
	case selector.CEL == nil || selector.CEL.Expression == "":
		return field.ErrorList{field.Required(expression, "write a CEL expression, or remove the selector")}
	case len(selector.CEL.Expression) > resourceapi.CELSelectorExpressionMaxLength:
		return field.ErrorList{field.Invalid(expression, field.OmitValueType{}, fmt.Sprintf(
			"must have at most %d bytes, got %d: split it into several selectors, which must all be true",
			resourceapi.CELSelectorExpressionMaxLength, len(selector.CEL.Expression)))}
	}
	return nil
}

func validateGangToleration(toleration resourceapi.DeviceToleration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch toleration.Key {
	case "":
		errs = append(errs, field.Required(path.Child("key"), "tolerating every taint would include "+ReservedTaintKey+
			", which keeps devices for other gangs: name the key of the taint"))
	case ReservedTaintKey:
		errs = append(errs, field.Forbidden(path.Child("key"), "the taint "+ReservedTaintKey+
			" keeps devices for other gangs and cannot be tolerated: remove the toleration"))
	default:
		errs = append(errs, metav1validation.ValidateLabelName(toleration.Key, path.Child("key"))...)
	}
	operators := []resourceapi.DeviceTolerationOperator{resourceapi.DeviceTolerationOpExists, resourceapi.DeviceTolerationOpEqual}
	switch toleration.Operator {
	case resourceapi.DeviceTolerationOpExists:
		if toleration.Value != "" {
			errs = append(errs, field.Invalid(path.Child("value"), toleration.Value,
				"must be empty with operator Exists: remove value, or set operator to Equal"))
		}
	case resourceapi.DeviceTolerationOpEqual, "":
		for _, problem := range validation.IsValidLabelValue(toleration.Value) {
			errs = append(errs, field.Invalid(path.Child("value"), toleration.Value, problem))
		}
	default:
		errs = append(errs, field.NotSupported(path.Child("operator"), toleration.Operator, operators))
	}
	switch toleration.Effect {
	case "", resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute:
	default:
		errs = append(errs, field.NotSupported(path.Child("effect"), toleration.Effect,
			[]resourceapi.DeviceTaintEffect{resourceapi.DeviceTaintEffectNoSchedule, resourceapi.DeviceTaintEffectNoExecute}))
	}
	return errs
}

func validateGangConfig(config resourceapi.DeviceClaimConfiguration, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(config.Requests) > 0 {
		errs = append(errs, field.Forbidden(path.Child("requests"),
			"must be empty: a gang has one request, and configuration applies to all of its devices"))
	}
	opaque := path.Child("opaque")
	if config.Opaque == nil {
		return append(errs, field.Required(opaque, "set driver and parameters, or remove the entry"))
	}
	driver := opaque.Child("driver")
	switch name := config.Opaque.Driver; {
	case name == "":
		errs = append(errs, field.Required(driver, "set it to the name of a DRA driver, such as "+DriverName))
	case len(name) > maxDriverNameLength:
		errs = append(errs, field.TooLong(driver, name, maxDriverNameLength))
	default:
		for _, problem := range validation.IsDNS1123Subdomain(strings.ToLower(name)) {
			errs = append(errs, field.Invalid(driver, name, problem))
		}
	}
	return append(errs, validateGangParameters(config.Opaque, opaque.Child("parameters"))...)
}

// validateGangParameters checks parameters as the API server does and, for our own driver, as the node
// plugin does.
func validateGangParameters(opaque *resourceapi.OpaqueDeviceConfiguration, path *field.Path) field.ErrorList {
	invalid := func(err error) field.ErrorList {
		return field.ErrorList{field.Invalid(path, field.OmitValueType{}, err.Error())}
	}
	raw := opaque.Parameters.Raw
	if len(raw) > resourceapi.OpaqueParametersMaxLength {
		return invalid(fmt.Errorf("must be at most %d bytes of JSON, got %d", resourceapi.OpaqueParametersMaxLength, len(raw)))
	}
	if opaque.Driver != DriverName {
		var object map[string]any
		if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &object); err != nil || object == nil {
			return field.ErrorList{field.Required(path, "must be one JSON object")}
		}
		return nil
	}
	if _, err := Decode(raw); err != nil {
		return invalid(err)
	}
	return nil
}
