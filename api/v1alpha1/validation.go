// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

const mebibyte = 1 << 20

// Validate implements Config.
func (c *GPUConfig) Validate() field.ErrorList {
	errs := validateTypeMeta(c.APIVersion, c.Kind, GPUConfigKind)
	return append(errs, c.Sharing.validate(field.NewPath("sharing"))...)
}

// Validate implements Config.
func (c *MIGConfig) Validate() field.ErrorList {
	errs := validateTypeMeta(c.APIVersion, c.Kind, MIGConfigKind)
	path := field.NewPath("sharing")
	if c.Sharing != nil && c.Sharing.Strategy == TimeSlicingStrategy && c.Sharing.TimeSlicing != nil {
		return append(errs, field.Forbidden(path.Child("timeSlicing"),
			"a MIG partition has no time slice to set; remove timeSlicing and keep strategy: TimeSlicing"))
	}
	return append(errs, c.Sharing.validate(path)...)
}

// ValidateImplemented refuses what this version of the types accepts and this version of the driver
// cannot do yet, so that a claim fails with a reason rather than run without what it asked for.
func ValidateImplemented(config Config) field.ErrorList {
	sharing := config.SharingConfig()
	if sharing == nil {
		return nil
	}
	return field.ErrorList{field.Forbidden(field.NewPath("sharing"), fmt.Sprintf(
		"strategy %s is not supported yet by this version of the driver; remove sharing to use the device unshared", sharing.Strategy))}
}

func validateTypeMeta(apiVersion, kind, wantKind string) field.ErrorList {
	var errs field.ErrorList
	if apiVersion != APIVersion {
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), apiVersion, []string{APIVersion}))
	}
	if kind != wantKind {
		errs = append(errs, field.NotSupported(field.NewPath("kind"), kind, []string{wantKind}))
	}
	return errs
}

func (s *Sharing) validate(path *field.Path) field.ErrorList {
	if s == nil {
		return nil
	}
	var errs field.ErrorList
	strategies := []SharingStrategy{TimeSlicingStrategy, MPSStrategy}
	switch s.Strategy {
	case TimeSlicingStrategy, MPSStrategy:
	case "":
		return append(errs, field.Required(path.Child("strategy"), fmt.Sprintf("set it to %s or %s", TimeSlicingStrategy, MPSStrategy)))
	default:
		return append(errs, field.NotSupported(path.Child("strategy"), s.Strategy, strategies))
	}
	if s.TimeSlicing != nil && s.Strategy != TimeSlicingStrategy {
		errs = append(errs, forbiddenSettings(path.Child("timeSlicing"), s.Strategy, TimeSlicingStrategy))
	}
	if s.MPS != nil && s.Strategy != MPSStrategy {
		errs = append(errs, forbiddenSettings(path.Child("mps"), s.Strategy, MPSStrategy))
	}
	errs = append(errs, s.TimeSlicing.validate(path.Child("timeSlicing"))...)
	return append(errs, s.MPS.validate(path.Child("mps"))...)
}

func forbiddenSettings(path *field.Path, got, want SharingStrategy) *field.Error {
	return field.Forbidden(path, fmt.Sprintf("strategy is %s; remove these settings or set strategy: %s", got, want))
}

func (c *TimeSlicingConfig) validate(path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	switch c.Interval {
	case DefaultTimeSlice, ShortTimeSlice, MediumTimeSlice, LongTimeSlice:
		return nil
	default:
		return field.ErrorList{field.NotSupported(path.Child("interval"), c.Interval,
			[]TimeSliceInterval{DefaultTimeSlice, ShortTimeSlice, MediumTimeSlice, LongTimeSlice})}
	}
}

func (c *MPSConfig) validate(path *field.Path) field.ErrorList {
	if c == nil {
		return nil
	}
	var errs field.ErrorList
	if percentage := c.ActiveThreadPercentage; percentage != nil && (*percentage < 1 || *percentage > 100) {
		errs = append(errs, field.Invalid(path.Child("activeThreadPercentage"), *percentage, "must be between 1 and 100 (percent)"))
	}
	if limit := c.PinnedDeviceMemoryLimit; limit != nil {
		path := path.Child("pinnedDeviceMemoryLimit")
		switch bytes, exact := limit.AsInt64(); {
		case limit.Sign() <= 0:
			errs = append(errs, field.Invalid(path, limit.String(), "must be more than 0 bytes; remove it for no limit"))
		case !exact || bytes%mebibyte != 0:
			errs = append(errs, field.Invalid(path, limit.String(), "must be a whole number of mebibytes, for example 512Mi or 10Gi"))
		}
	}
	return errs
}
