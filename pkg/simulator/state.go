// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/uuid"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
)

// Profile is the hardware of a node.
type Profile = profile.Profile

// StateVersion is the version of the state file that this package writes, and the newest it reads.
const StateVersion = 1

// State is everything that is known of a node.
type State struct {
	// Version is StateVersion.
	Version int `json:"version"`
	// Generation counts the changes.
	Generation uint64 `json:"generation"`
	// NodeName and Seed are what UUIDs are derived from.
	NodeName string `json:"nodeName"`
	Seed     string `json:"seed,omitempty"`
	// DeviceNodes is what stands in <dir>/root/dev.
	DeviceNodes DeviceNodes `json:"deviceNodes"`

	Driver DriverState `json:"driver"`
	// Fabric is nil where the boards cannot join one.
	Fabric *FabricState `json:"fabric,omitempty"`
	// GPUs has an entry for each GPU of the profile, in its order.
	GPUs []GPUState `json:"gpus"`
	// XIDs are the last errors raised, oldest first.
	XIDs []XID `json:"xids,omitempty"`
	// NextXID is the sequence number of the next error.
	NextXID uint64 `json:"nextXID"`
	// RecordCalls has every process write down the NVML calls it makes.
	RecordCalls bool `json:"recordCalls,omitempty"`

	Profile Profile `json:"profile"`
}

// DeviceNodes says what kind of files stand for device nodes.
type DeviceNodes string

// The kinds of files that may stand for device nodes.
const (
	// DeviceNodesCharacter makes character devices, which needs CAP_MKNOD.
	DeviceNodesCharacter DeviceNodes = "Character"
	// DeviceNodesFiles makes empty regular files, for tests without privileges: nvcdi skips them.
	DeviceNodesFiles DeviceNodes = "Files"
)

// DriverState is the state of the driver.
type DriverState struct {
	// Failure breaks every NVML call.
	Failure DriverFailure `json:"failure,omitempty"`
	// CallDelay is what every NVML call takes, as Go writes durations: "50ms".
	CallDelay Duration `json:"callDelay,omitempty"`
}

// DriverFailure is a way in which NVML cannot be initialised. The zero value is none.
type DriverFailure string

// The ways in which NVML cannot be initialised.
const (
	DriverNotLoaded        DriverFailure = "NotLoaded"        // ERROR_DRIVER_NOT_LOADED
	DriverVersionMismatch  DriverFailure = "VersionMismatch"  // ERROR_LIB_RM_VERSION_MISMATCH
	DriverLibraryMissing   DriverFailure = "LibraryMissing"   // ERROR_LIBRARY_NOT_FOUND
	DriverUnknownError     DriverFailure = "UnknownError"     // ERROR_UNKNOWN
	DriverInsufficientPerm DriverFailure = "InsufficientPerm" // ERROR_NO_PERMISSION
)

// DriverFailures are all ways in which NVML cannot be initialised.
func DriverFailures() []DriverFailure {
	return []DriverFailure{DriverNotLoaded, DriverVersionMismatch, DriverLibraryMissing, DriverUnknownError, DriverInsufficientPerm}
}

// FabricState is what a GPU says of its fabric.
type FabricState struct {
	profile.Fabric
	// Status is the nvmlReturn_t of the registration: 0 is success. It counts once the state is
	// Completed.
	Status uint32 `json:"status,omitempty"`
}

// GPUState is the state of one GPU.
type GPUState struct {
	UUID   string `json:"uuid"`
	Serial string `json:"serial"`
	// Minor is N of /dev/nvidiaN. It never changes.
	Minor  int    `json:"minor"`
	Health Health `json:"health,omitempty"`
	// LinksDown are the numbers of the NVLinks that were taken down at this end, ascending.
	LinksDown []int `json:"linksDown,omitempty"`
	// Faults are what the GPU says of its health while it answers.
	Faults Faults `json:"faults,omitzero"`
	// ComputeMode is nvmlComputeMode_t: 0 is the default. Hardware loses it in a reboot; here it stays.
	ComputeMode nvml.ComputeMode `json:"computeMode,omitempty"`
	// Fabric replaces the node's fabric for this GPU.
	Fabric *FabricState `json:"fabric,omitempty"`
	// MIG is nil where the board cannot be partitioned.
	MIG *MIGState `json:"mig,omitempty"`
}

// Health is how a GPU fails. The zero value is healthy.
type Health string

// How a GPU fails; see the package comment.
const (
	HealthOK            Health = ""
	HealthLost          Health = "Lost"
	HealthRemoved       Health = "Removed"
	HealthResetRequired Health = "ResetRequired"
)

// XID is one error that the driver reported.
type XID struct {
	// Sequence numbers errors from 0, without gaps.
	Sequence uint64 `json:"sequence"`
	// GPU is the UUID.
	GPU string `json:"gpu"`
	// Code is NVIDIA's XID, for example 79: the GPU has fallen off the bus.
	Code uint64    `json:"code"`
	Time time.Time `json:"time"`
}

// xidFallenOffBus is the XID of a GPU that is lost.
const xidFallenOffBus = 79

// keptXIDs is how many errors the state file remembers.
const keptXIDs = 256

// Duration is a time.Duration that is written as text.
type Duration time.Duration

// MarshalText writes the duration as Go does.
func (d Duration) MarshalText() ([]byte, error) { return []byte(time.Duration(d).String()), nil }

// UnmarshalText reads a duration such as "50ms".
func (d *Duration) UnmarshalText(text []byte) error {
	parsed, err := time.ParseDuration(string(text))
	*d = Duration(parsed)
	return err
}

// newState is the state of a node that was just put together.
func newState(p Profile, o Options) State {
	s := State{
		Version:     StateVersion,
		NodeName:    o.NodeName,
		Seed:        o.Seed,
		DeviceNodes: o.DeviceNodes,
		Profile:     p,
	}
	if s.DeviceNodes == "" {
		s.DeviceNodes = DeviceNodesCharacter
	}
	if p.Fabric != nil {
		s.Fabric = &FabricState{Fabric: *p.Fabric}
	}
	for i := range p.GPUs {
		gpu := GPUState{
			UUID:   gpuUUID(o.Seed, o.NodeName, p.Name, i),
			Serial: gpuSerial(o.Seed, o.NodeName, p.Name, i),
			Minor:  i,
		}
		if p.Product.MIG != nil {
			gpu.MIG = &MIGState{Enabled: p.Product.MIG.Enabled}
		}
		s.GPUs = append(s.GPUs, gpu)
	}
	return s
}

// uuidSpace is the name space of the UUIDs of simulated GPUs.
var uuidSpace = uuid.NewSHA1(uuid.NameSpaceDNS, []byte("sim.switchyard.dev"))

func identity(seed, node, profileName string, index int) []byte {
	return fmt.Appendf(nil, "%s/%s/%s/%d", seed, node, profileName, index)
}

func gpuUUID(seed, node, profileName string, index int) string {
	return "GPU-" + uuid.NewSHA1(uuidSpace, identity(seed, node, profileName, index)).String()
}

// gpuSerial has 13 digits, as the serial numbers of real boards.
func gpuSerial(seed, node, profileName string, index int) string {
	sum := sha256.Sum256(identity(seed, node, profileName, index))
	return fmt.Sprintf("165%010d", binary.BigEndian.Uint64(sum[:8])%1e10)
}

// decodeState reads a state file.
func decodeState(data []byte) (State, error) {
	var s State
	if err := json.Unmarshal(data, &s); err != nil {
		return State{}, err
	}
	if s.Version != StateVersion {
		return State{}, fmt.Errorf("has version %d, this program knows version %d: remove the directory and create the node anew", s.Version, StateVersion)
	}
	if len(s.GPUs) != len(s.Profile.GPUs) {
		return State{}, fmt.Errorf("has the state of %d GPUs, and a profile of %d", len(s.GPUs), len(s.Profile.GPUs))
	}
	return s, nil
}

func (s *State) raise(gpu int, code uint64, now time.Time) {
	s.XIDs = append(s.XIDs, XID{Sequence: s.NextXID, GPU: s.GPUs[gpu].UUID, Code: code, Time: now.UTC()})
	s.NextXID++
	if extra := len(s.XIDs) - keptXIDs; extra > 0 {
		s.XIDs = slices.Delete(s.XIDs, 0, extra)
	}
}

// report raises an error and sets the recovery action that goes with it; a worse one stays.
func (s *State) report(gpu int, code uint64, now time.Time) {
	s.raise(gpu, code, now)
	if action, ok := actionOfXID[code]; ok && s.tellsRecoveryAction() && s.GPUs[gpu].Faults.RecoveryAction != actionNodeReboot {
		s.GPUs[gpu].Faults.setAction(action)
	}
}

// fabricOf returns what a GPU says of its fabric; nil where the board cannot join one.
func (s *State) fabricOf(gpu int) *FabricState {
	if s.GPUs[gpu].Fabric != nil {
		return s.GPUs[gpu].Fabric
	}
	return s.Fabric
}
