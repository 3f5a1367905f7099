// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MIG says what partitioning the board supports.
type MIG struct {
	// MaxInstances is the largest number of MIG devices of one GPU.
	MaxInstances int `json:"maxInstances"`
	// Enabled says that the board starts in MIG mode.
	Enabled bool `json:"enabled,omitempty"`
	// ComputeSlices and MemorySlices are what the GPU is cut into: 7 and 8 on an A100.
	ComputeSlices int `json:"computeSlices"`
	MemorySlices  int `json:"memorySlices"`
	// Engines are those of the whole GPU.
	Engines MIGEngines `json:"engines"`
	// Profiles are the kinds of GPU instances, smallest first.
	Profiles []MIGProfile `json:"profiles"`
}

// MIGEngines counts the engines of a GPU or of a GPU instance.
type MIGEngines struct {
	Copy     int `json:"copy,omitempty"`
	Decoders int `json:"dec,omitempty"`
	Encoders int `json:"enc,omitempty"`
	JPEG     int `json:"jpeg,omitempty"`
	OFA      int `json:"ofa,omitempty"`
}

// MIGProfile is one kind of GPU instance (nvmlGpuInstanceProfileInfo_t), a row of nvidia-smi mig -lgip
// with its placements from -lgipp.
type MIGProfile struct {
	// Name is what nvidia-smi calls it, for example "1g.10gb+me".
	Name string `json:"name"`
	// Kind is NVML's name of it without the prefix, for example "1_SLICE_REV1".
	Kind string `json:"kind"`
	// ID is the driver's number of it, as in nvidia-smi mig -cgi 19. It is not that of Kind.
	ID uint32 `json:"id"`
	// Max is how many of them fit on an empty GPU.
	Max int `json:"max"`
	// Slices is the number of compute slices.
	Slices int `json:"slices"`
	// MemoryMiB is what nvidia-smi shows in GiB.
	MemoryMiB       uint64 `json:"memoryMiB"`
	Multiprocessors int    `json:"sm"`
	MIGEngines      `json:",inline"`
	// Starts are the memory slices at which it may begin, Size is how many it takes.
	Starts []uint32 `json:"starts"`
	Size   uint32   `json:"size"`
}

// MIGKinds are NVML's kinds of GPU instances; the index is the number of NVML_GPU_INSTANCE_PROFILE_*.
var MIGKinds = []string{
	"1_SLICE", "2_SLICE", "3_SLICE", "4_SLICE", "7_SLICE", "8_SLICE", "6_SLICE", "1_SLICE_REV1", "2_SLICE_REV1", "1_SLICE_REV2",
	"1_SLICE_GFX", "2_SLICE_GFX", "4_SLICE_GFX", "1_SLICE_NO_ME", "2_SLICE_NO_ME", "1_SLICE_ALL_ME", "2_SLICE_ALL_ME", "3_SLICE_GFX",
}

// OfKind returns the profile of NVML's number.
func (m *MIG) OfKind(number int) (MIGProfile, bool) {
	if number < 0 || number >= len(MIGKinds) {
		return MIGProfile{}, false
	}
	return m.find(func(p MIGProfile) bool { return p.Kind == MIGKinds[number] })
}

// ByID returns the profile of the driver's number.
func (m *MIG) ByID(id uint32) (MIGProfile, bool) {
	return m.find(func(p MIGProfile) bool { return p.ID == id })
}

// ByName returns the profile with nvidia-smi's name.
func (m *MIG) ByName(name string) (MIGProfile, bool) {
	return m.find(func(p MIGProfile) bool { return p.Name == name })
}

func (m *MIG) find(match func(MIGProfile) bool) (MIGProfile, bool) {
	if i := slices.IndexFunc(m.Profiles, match); i >= 0 {
		return m.Profiles[i], true
	}
	return MIGProfile{}, false
}

func validateMIG(m MIG, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, between(m.MaxInstances, 1, 8, path.Child("maxInstances"))...)
	errs = append(errs, between(m.ComputeSlices, 1, 8, path.Child("computeSlices"))...)
	errs = append(errs, between(m.MemorySlices, 1, 8, path.Child("memorySlices"))...)
	if len(m.Profiles) == 0 {
		errs = append(errs, field.Required(path.Child("profiles"), "a board that can be partitioned has some"))
	}
	for i, p := range m.Profiles {
		path := path.Child("profiles").Index(i)
		for _, other := range m.Profiles[:i] {
			switch {
			case p.Name == other.Name:
				errs = append(errs, field.Duplicate(path.Child("name"), p.Name))
			case p.ID == other.ID:
				errs = append(errs, field.Duplicate(path.Child("id"), p.ID))
			case p.Kind == other.Kind:
				errs = append(errs, field.Duplicate(path.Child("kind"), p.Kind))
			}
		}
		errs = append(errs, validateMIGProfile(p, m, path)...)
	}
	return errs
}

func validateMIGProfile(p MIGProfile, m MIG, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if p.Name == "" {
		errs = append(errs, field.Required(path.Child("name"), `as nvidia-smi mig -lgip prints it, for example "1g.10gb"`))
	}
	errs = append(errs, oneOf(p.Kind, MIGKinds, path.Child("kind"))...)
	errs = append(errs, between(p.Max, 1, m.MaxInstances, path.Child("max"))...)
	errs = append(errs, between(p.Slices, 1, m.ComputeSlices, path.Child("slices"))...)
	errs = append(errs, between(p.Multiprocessors, 1, 1024, path.Child("sm"))...)
	if p.MemoryMiB == 0 {
		errs = append(errs, field.Required(path.Child("memoryMiB"), "1024 times the GiB of nvidia-smi mig -lgip"))
	}
	errs = append(errs, between(int(p.Size), 1, m.MemorySlices, path.Child("size"))...)
	if len(p.Starts) == 0 {
		errs = append(errs, field.Required(path.Child("starts"), "as nvidia-smi mig -lgipp prints them"))
	}
	for i, start := range p.Starts {
		if int(start+p.Size) > m.MemorySlices {
			errs = append(errs, field.Invalid(path.Child("starts").Index(i), start, fmt.Sprintf("ends behind the last of %d memory slices", m.MemorySlices)))
		}
		if i > 0 && start <= p.Starts[i-1] {
			errs = append(errs, field.Invalid(path.Child("starts").Index(i), start, "must be in ascending order"))
		}
	}
	for _, engine := range []struct {
		name       string
		has, whole int
	}{
		{"copy", p.Copy, m.Engines.Copy},
		{"dec", p.Decoders, m.Engines.Decoders},
		{"enc", p.Encoders, m.Engines.Encoders},
		{"jpeg", p.JPEG, m.Engines.JPEG},
		{"ofa", p.OFA, m.Engines.OFA},
	} {
		if engine.has < 0 || engine.has > engine.whole {
			errs = append(errs, field.Invalid(path.Child(engine.name), engine.has, fmt.Sprintf("must be between 0 and the %d of the whole GPU (engines.%s)", engine.whole, engine.name)))
		}
	}
	return errs
}
