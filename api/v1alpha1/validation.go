// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
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
	if c.Sharing != nil && c.Sharing.MPS != nil && len(c.Sharing.MPS.PerDevicePinnedMemoryLimit) > 0 {
		errs = append(errs, field.Forbidden(path.Child("mps", "perDevicePinnedMemoryLimit"),
			"MPS serves one MIG partition; use pinnedDeviceMemoryLimit"))
	}
	return append(errs, c.Sharing.validate(path)...)
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
	case "", DefaultTimeSlice, ShortTimeSlice, MediumTimeSlice, LongTimeSlice:
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
		errs = append(errs, validateMemoryLimit(*limit, path.Child("pinnedDeviceMemoryLimit"))...)
	}
	path = path.Child("perDevicePinnedMemoryLimit")
	if count := len(c.PerDevicePinnedMemoryLimit); count > resourceapi.AllocationResultsMaxSize {
		errs = append(errs, field.TooMany(path, count, resourceapi.AllocationResultsMaxSize))
	}
	seen := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(c.PerDevicePinnedMemoryLimit)) {
		errs = append(errs, validateMemoryLimit(c.PerDevicePinnedMemoryLimit[key], path.Key(key))...)
		if !isDeviceKey(key) {
			errs = append(errs, field.Invalid(path, key, `a key must be the place of a GPU in the claim, "0" to "31", or its UUID, such as "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"`))
		}
		if other, twice := seen[strings.ToLower(key)]; twice {
			errs = append(errs, field.Invalid(path, key, fmt.Sprintf("is the same UUID as %q; keep one", other)))
		}
		seen[strings.ToLower(key)] = key
	}
	return errs
}

// isDeviceKey reports whether a key of perDevicePinnedMemoryLimit can name a GPU.
func isDeviceKey(key string) bool {
	place, err := strconv.Atoi(key)
	if err == nil {
		return place >= 0 && place < resourceapi.AllocationResultsMaxSize && strconv.Itoa(place) == key
	}
	return IsGPUUUID(key)
}

// IsGPUUUID reports whether a text is the UUID of a GPU, as nvidia-smi -L prints it, in any case. (Not a regular
// expression: compiling one is milliseconds of the plugin's start.)
func IsGPUUUID(text string) bool {
	rest, ok := strings.CutPrefix(strings.ToLower(text), "gpu-")
	if !ok || len(rest) != 36 {
		return false
	}
	for i, c := range []byte(rest) {
		hyphen, digit := i == 8 || i == 13 || i == 18 || i == 23, '0' <= c && c <= '9' || 'a' <= c && c <= 'f'
		if hyphen && c != '-' || !hyphen && !digit {
			return false
		}
	}
	return true
}

func validateMemoryLimit(limit resource.Quantity, path *field.Path) field.ErrorList {
	switch bytes, exact := limit.AsInt64(); {
	case limit.Sign() <= 0:
		return field.ErrorList{field.Invalid(path, limit.String(), "must be more than 0 bytes; remove it for no limit")}
	case !exact || bytes%mebibyte != 0:
		return field.ErrorList{field.Invalid(path, limit.String(), "must be a whole number of mebibytes, for example 512Mi or 10Gi")}
	}
	return nil
}
