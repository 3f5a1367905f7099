// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/uuid"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// MIGState is the partitioning of a GPU.
type MIGState struct {
	Enabled bool `json:"enabled,omitempty"`
	// Instances are the GPU instances, by ID.
	Instances []GPUInstance `json:"instances,omitempty"`
	// FailNext are the operations that fail the next time, each with the nvmlReturn_t that it returns.
	FailNext map[MIGOperation]nvml.Return `json:"failNext,omitempty"`
}

// GPUInstance is a partition of a GPU's memory and multiprocessors (nvmlGpuInstanceInfo_t).
type GPUInstance struct {
	ID        uint32 `json:"id"`
	ProfileID uint32 `json:"profileID"`
	Start     uint32 `json:"start"`
	Size      uint32 `json:"size"`
	// Compute are the compute instances, by ID.
	Compute []ComputeInstance `json:"compute,omitempty"`
}

// ComputeInstance is a partition of a GPU instance's multiprocessors (nvmlComputeInstanceInfo_t).
type ComputeInstance struct {
	ID uint32 `json:"id"`
	// ProfileID is the number of NVML_COMPUTE_INSTANCE_PROFILE_*.
	ProfileID uint32 `json:"profileID"`
	// Start and Slices are the compute slices of the GPU instance that it takes.
	Start  uint32 `json:"start"`
	Slices uint32 `json:"slices"`
	// UUID is that of the MIG device, "MIG-...".
	UUID string `json:"uuid"`
}

// MIGOperation is a change to the partitions of a GPU.
type MIGOperation string

// The changes to the partitions of a GPU.
const (
	CreateGPUInstance      MIGOperation = "CreateGPUInstance"
	CreateComputeInstance  MIGOperation = "CreateComputeInstance"
	DestroyGPUInstance     MIGOperation = "DestroyGPUInstance"
	DestroyComputeInstance MIGOperation = "DestroyComputeInstance"
)

// MIGOperations are all changes to the partitions of a GPU.
func MIGOperations() []MIGOperation {
	return []MIGOperation{CreateGPUInstance, CreateComputeInstance, DestroyGPUInstance, DestroyComputeInstance}
}

// withoutInstances is the state of the GPU if it had no instances.
func withoutInstances(m *MIGState) *MIGState {
	if m == nil {
		return nil
	}
	return &MIGState{Enabled: m.Enabled}
}

// instance returns a GPU instance, nil if there is none of that ID.
func (m *MIGState) instance(id uint32) *GPUInstance {
	if m == nil {
		return nil
	}
	if i := slices.IndexFunc(m.Instances, func(gi GPUInstance) bool { return gi.ID == id }); i >= 0 {
		return &m.Instances[i]
	}
	return nil
}

func (gi *GPUInstance) compute(id uint32) *ComputeInstance {
	if gi == nil {
		return nil
	}
	if i := slices.IndexFunc(gi.Compute, func(ci ComputeInstance) bool { return ci.ID == id }); i >= 0 {
		return &gi.Compute[i]
	}
	return nil
}

// overlaps says whether the instance has a memory slice between start and start+size.
func (gi *GPUInstance) overlaps(start, size uint32) bool {
	return gi.Start < start+size && start < gi.Start+gi.Size
}

// refuseInstance says why no instance of a profile can be made at a memory slice; SUCCESS if one can.
// What is in use counts: memory slices by their place, compute slices and engines by their number.
func refuseInstance(board *profile.MIG, have []GPUInstance, p profile.MIGProfile, start uint32) nvml.Return {
	if !slices.Contains(p.Starts, start) {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	left := board.Engines
	computeSlices, ofProfile := board.ComputeSlices, 0
	for _, gi := range have {
		if gi.overlaps(start, p.Size) {
			return nvml.ERROR_INSUFFICIENT_RESOURCES
		}
		used, ok := board.ByID(gi.ProfileID)
		if !ok {
			continue
		}
		computeSlices -= used.Slices
		left.Copy -= used.Copy
		left.Decoders -= used.Decoders
		left.Encoders -= used.Encoders
		left.JPEG -= used.JPEG
		left.OFA -= used.OFA
		if used.ID == p.ID {
			ofProfile++
		}
	}
	if ofProfile >= p.Max || p.Slices > computeSlices || p.Copy > left.Copy || p.Decoders > left.Decoders ||
		p.Encoders > left.Encoders || p.JPEG > left.JPEG || p.OFA > left.OFA {
		return nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	return nvml.SUCCESS
}

// instanceID numbers GPU instances as the driver does: a 7g.40gb of an A100 is 0, a 4g.20gb is 1, 2g.10gb
// are 3 to 5, and 1g.5gb are 7 to 13.
func instanceID(board *profile.MIG, start, size uint32) uint32 {
	return uint32(board.MemorySlices)/size - 1 + start/size
}

// createInstance makes a GPU instance.
func (s *State) createInstance(gpu int, p profile.MIGProfile, start uint32) (GPUInstance, nvml.Return) {
	mig := s.GPUs[gpu].MIG
	if ret := mig.failing(CreateGPUInstance); ret != nvml.SUCCESS {
		return GPUInstance{}, ret
	}
	board := s.Profile.Product.MIG
	if ret := refuseInstance(board, mig.Instances, p, start); ret != nvml.SUCCESS {
		return GPUInstance{}, ret
	}
	gi := GPUInstance{ID: instanceID(board, start, p.Size), ProfileID: p.ID, Start: start, Size: p.Size}
	mig.Instances = append(mig.Instances, gi)
	slices.SortFunc(mig.Instances, func(a, b GPUInstance) int { return int(a.ID) - int(b.ID) })
	return gi, nvml.SUCCESS
}

// destroyInstance destroys a GPU instance, which must have no compute instance left.
func (s *State) destroyInstance(gpu int, id uint32) nvml.Return {
	mig := s.GPUs[gpu].MIG
	gi := mig.instance(id)
	switch {
	case gi == nil:
		return nvml.ERROR_NOT_FOUND
	case len(gi.Compute) > 0:
		return nvml.ERROR_IN_USE
	}
	if ret := mig.failing(DestroyGPUInstance); ret != nvml.SUCCESS {
		return ret
	}
	mig.Instances = slices.DeleteFunc(mig.Instances, func(gi GPUInstance) bool { return gi.ID == id })
	return nvml.SUCCESS
}

// createCompute makes a compute instance of so many slices, at the first ones that are free.
func (s *State) createCompute(gpu int, id, profileID, count uint32) (ComputeInstance, nvml.Return) {
	mig := s.GPUs[gpu].MIG
	gi := mig.instance(id)
	if gi == nil {
		return ComputeInstance{}, nvml.ERROR_NOT_FOUND
	}
	if ret := mig.failing(CreateComputeInstance); ret != nvml.SUCCESS {
		return ComputeInstance{}, ret
	}
	p, _ := s.Profile.Product.MIG.ByID(gi.ProfileID)
	start, ok := freeSlices(gi, uint32(p.Slices), count)
	if !ok {
		return ComputeInstance{}, nvml.ERROR_INSUFFICIENT_RESOURCES
	}
	ci := ComputeInstance{ProfileID: profileID, Start: start, Slices: count}
	for gi.compute(ci.ID) != nil {
		ci.ID++
	}
	ci.UUID = migUUID(s.GPUs[gpu].UUID, gi.ID, ci.ID)
	gi.Compute = append(gi.Compute, ci)
	slices.SortFunc(gi.Compute, func(a, b ComputeInstance) int { return int(a.ID) - int(b.ID) })
	return ci, nvml.SUCCESS
}

// freeSlices finds so many compute slices in a row that no compute instance has.
func freeSlices(gi *GPUInstance, total, count uint32) (start uint32, ok bool) {
	for start := uint32(0); start+count <= total; start++ {
		if !slices.ContainsFunc(gi.Compute, func(ci ComputeInstance) bool { return ci.Start < start+count && start < ci.Start+ci.Slices }) {
			return start, true
		}
	}
	return 0, false
}

func (s *State) destroyCompute(gpu int, id, compute uint32) nvml.Return {
	mig := s.GPUs[gpu].MIG
	gi := mig.instance(id)
	if gi.compute(compute) == nil {
		return nvml.ERROR_NOT_FOUND
	}
	if ret := mig.failing(DestroyComputeInstance); ret != nvml.SUCCESS {
		return ret
	}
	gi.Compute = slices.DeleteFunc(gi.Compute, func(ci ComputeInstance) bool { return ci.ID == compute })
	return nvml.SUCCESS
}

// failing says what an operation is to fail with, once.
func (m *MIGState) failing(operation MIGOperation) nvml.Return {
	ret, ok := m.FailNext[operation]
	if !ok {
		return nvml.SUCCESS
	}
	delete(m.FailNext, operation)
	return ret
}

// migUUID is the UUID of a MIG device. The driver, too, gives the device that is made anew in the same
// place the UUID of the one before.
func migUUID(gpu string, instance, compute uint32) string {
	return "MIG-" + uuid.NewSHA1(uuidSpace, fmt.Appendf(nil, "%s/%d/%d", gpu, instance, compute)).String()
}

// refusal carries what NVML answers out of Node.Update. One that has changed the state all the same, as
// a failure that happens once, is kept.
type refusal struct{ ret nvml.Return }

func (r refusal) Error() string { return r.ret.Error() }

// changePartitions changes the partitions of a GPU on behalf of an NVML call.
func (g *gpuCalls) changePartitions(change func(*State) nvml.Return) nvml.Return {
	answer := nvml.SUCCESS
	err := g.lib.node.Update(func(s *State) error {
		mig := s.GPUs[g.position].MIG
		if mig == nil || !mig.Enabled {
			return refusal{nvml.ERROR_NOT_SUPPORTED}
		}
		planned := len(mig.FailNext)
		answer = change(s)
		if answer != nvml.SUCCESS && len(mig.FailNext) == planned {
			return refusal{answer} // nothing to write
		}
		return nil
	})
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return refused.ret
	case err != nil:
		g.lib.node.logger.Error(err, "Changing the partitions of a simulated GPU failed", "gpu", g.position)
		return nvml.ERROR_UNKNOWN
	default:
		return answer
	}
}
