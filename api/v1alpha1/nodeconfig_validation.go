// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

const (
	// SelectAllGPUs is the word for all GPUs of a node.
	SelectAllGPUs = "all"
	// SelectNoGPUs is the word for none of them.
	SelectNoGPUs = "none"

	// MaxMPSShares is how many claims may have a share of a GPU with strategy MPS: the clients that a GPU of
	// Volta or later takes (CUDA Multi-Process Service, "Limitations").
	MaxMPSShares = 48
	// MaxTimeSlicedShares is how many may with strategy TimeSlicing.
	MaxTimeSlicedShares = 128

	minInterval = time.Second
	// maxDeviceWait leaves the kubelet, which gives up on a call after 45s, an answer.
	maxDeviceWait = 40 * time.Second
)

func (s NodeShares) validate(path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch s.GPUs {
	case "":
		errs = append(errs, field.Required(path.Child("gpus"), "set it to all, or to indexes and UUIDs separated by commas"))
	case SelectNoGPUs:
		errs = append(errs, field.Invalid(path.Child("gpus"), s.GPUs, "shares nothing; remove the entry"))
	default:
		_, selectErrs := validateSelection(path.Child("gpus"), s.GPUs)
		errs = append(errs, selectErrs...)
	}
	most := int32(MaxTimeSlicedShares)
	switch s.Strategy {
	case MPSStrategy:
		most = MaxMPSShares
	case TimeSlicingStrategy:
	case "":
		errs = append(errs, field.Required(path.Child("strategy"), fmt.Sprintf("set it to %s or %s", MPSStrategy, TimeSlicingStrategy)))
	default:
		errs = append(errs, field.NotSupported(path.Child("strategy"), s.Strategy, []SharingStrategy{MPSStrategy, TimeSlicingStrategy}))
	}
	switch {
	case s.MaxClaims == 0:
		errs = append(errs, field.Required(path.Child("maxClaims"), "set it to how many claims may have a share of one GPU"))
	case s.MaxClaims < 2 || s.MaxClaims > most:
		errs = append(errs, field.Invalid(path.Child("maxClaims"), s.MaxClaims, fmt.Sprintf("must be between 2 and %d with strategy %s", most, s.Strategy)))
	}
	if step := s.MemoryStep; step != nil {
		path := path.Child("memoryStep")
		switch bytes, exact := step.AsInt64(); {
		case step.Sign() <= 0:
			errs = append(errs, field.Invalid(path, step.String(), "must be more than 0 bytes; remove it for "+DefaultMemoryStep))
		case !exact || bytes%mebibyte != 0:
			errs = append(errs, field.Invalid(path, step.String(), "must be a whole number of mebibytes, for example 512Mi or 1Gi"))
		}
	}
	return errs
}

// validateSelections refuses GPUs that are named for two things. That an index and a UUID are one GPU shows only
// on the node.
func (c *NodeConfig) validateSelections() field.ErrorList {
	var errs field.ErrorList
	named := map[string]*field.Path{}
	for i, shares := range c.Shares {
		path := field.NewPath("shares").Index(i).Child("gpus")
		entries, selectErrs := validateSelection(path, shares.GPUs)
		if len(selectErrs) > 0 || shares.GPUs == SelectNoGPUs {
			continue // said already
		}
		if shares.GPUs == SelectAllGPUs && i < len(c.Shares)-1 {
			errs = append(errs, field.Invalid(path, shares.GPUs, fmt.Sprintf("leaves nothing to shares[%d]: a GPU gets the first entry that names it, so put this one last", i+1)))
		}
		for _, entry := range entries {
			if other, twice := named[entry]; twice {
				errs = append(errs, field.Invalid(path, shares.GPUs, fmt.Sprintf("GPU %s is named by %s, too: remove it from one", entry, other)))
				continue
			}
			named[entry] = path
			if c.MIG != nil && c.MIG.names(entry) {
				errs = append(errs, field.Invalid(path, shares.GPUs, fmt.Sprintf("mig.gpus (%s) names GPU %s, too, and a GPU is either partitioned or shared: remove it from one", c.MIG.GPUs, entry)))
			}
		}
	}
	return errs
}

// names reports whether a GPU, or "all", is named for partitions too.
func (m *NodeMIG) names(entry string) bool {
	entries, errs := validateSelection(field.NewPath("mig", "gpus"), m.GPUs)
	if len(errs) > 0 || m.GPUs == SelectNoGPUs {
		return false
	}
	return m.GPUs == SelectAllGPUs || entry == SelectAllGPUs || slices.Contains(entries, entry)
}

// validateSelection reads "all", "none", or indexes and UUIDs separated by commas, and returns the entries in one
// spelling.
func validateSelection(path *field.Path, text string) ([]string, field.ErrorList) {
	if text == SelectAllGPUs || text == SelectNoGPUs {
		return []string{text}, nil
	}
	var entries []string
	var errs field.ErrorList
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		index, err := strconv.Atoi(entry)
		switch {
		case entry == "":
			errs = append(errs, field.Invalid(path, text, `is empty, or has an empty entry: use "all", "none", or indexes and UUIDs separated by commas`))
		case err == nil && index < 0, err != nil && !IsGPUUUID(entry):
			errs = append(errs, field.Invalid(path, text, fmt.Sprintf(`%q is neither the index nor the UUID of a GPU (nvidia-smi -L), nor "all" or "none"`, entry)))
		case err == nil:
			entries = append(entries, strconv.Itoa(index))
		default:
			entries = append(entries, strings.ToLower(entry))
		}
	}
	return entries, errs
}

// Effects of XIDs, as the health policy reads them.
var xidEffects = []string{"Ignore", "None", "NoSchedule", "NoExecute"}

func (h *NodeHealth) validate(path *field.Path) field.ErrorList {
	if h == nil {
		return nil
	}
	var errs field.ErrorList
	if effects := []string{"NoSchedule", "NoExecute"}; h.Effect != "" && !slices.Contains(effects, h.Effect) {
		errs = append(errs, field.NotSupported(path.Child("effect"), h.Effect, effects))
	}
	for _, xid := range slices.Sorted(maps.Keys(h.XIDs)) {
		path := path.Child("xids").Key(xid)
		if code, err := strconv.ParseUint(xid, 10, 32); err != nil || code == 0 || strconv.FormatUint(code, 10) != xid {
			errs = append(errs, field.Invalid(path, xid, "the key must be the number of an XID, from 1"))
		}
		if !slices.Contains(xidEffects, h.XIDs[xid]) {
			errs = append(errs, field.NotSupported(path, h.XIDs[xid], xidEffects))
		}
	}
	return errs
}

func (c *NodeConfig) validateDurations() field.ErrorList {
	var errs field.ErrorList
	check := func(name string, value *metav1.Duration, least, most time.Duration, why string) {
		if value != nil && (value.Duration < least || most > 0 && value.Duration > most) {
			errs = append(errs, field.Invalid(field.NewPath(name), value.Duration.String(), why))
		}
	}
	check("discoveryInterval", c.DiscoveryInterval, minInterval, 0, "must be 1s or more")
	check("reconcileInterval", c.ReconcileInterval, minInterval, 0, "must be 1s or more")
	check("orphanGrace", c.OrphanGrace, 0, 0, "must be 0s or more")
	if c.SteeringInterval != nil && c.SteeringInterval.Duration != 0 {
		check("steeringInterval", c.SteeringInterval, minInterval, 0, "must be 1s or more, or 0s for off")
	}
	check("deviceWait", c.DeviceWait, 0, maxDeviceWait, "must be between 0s and 40s: the kubelet gives up on a call after 45s")
	return errs
}
