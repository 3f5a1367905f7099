// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/switchyard-dev/switchyard/pkg/mig"
)

// MIG is how a GPU can be partitioned.
type MIG struct {
	// Profiles are the kinds of partitions that NVML reports, by ID.
	Profiles []mig.Profile `json:"profiles"`
	// Withdrawn says that the GPU offers partitions no more: its MIG mode was turned off, or the node
	// does not let it be partitioned. What was listed once stays listed while the node lives.
	Withdrawn bool `json:"withdrawn,omitempty"`
	// Static are the GPU instances that exist and that this driver has not made: they stay, and what
	// overlaps them cannot be made.
	Static []mig.Instance `json:"static,omitempty"`
	// Instances are all GPU instances that discovery saw, by ID. They come and go with claims and are no
	// part of what is known of a node.
	Instances []mig.Instance `json:"-"`
}

// Partition is a place for a MIG partition on a GPU, whether or not there is one now.
type Partition struct {
	GPU GPU
	mig.Partition
}

// maxName is how long the name of a device may be: that of a DNS label.
const maxName = 63

// Partitions returns every place for a partition on the GPU, in the order in which they should be used;
// none for a GPU that never was in MIG mode, or whose UUID is too long to name partitions after.
func (g GPU) Partitions() []Partition {
	if g.MIG == nil {
		return nil
	}
	var partitions []Partition
	for _, place := range mig.Order(g.MIG.Profiles) {
		p := Partition{GPU: g, Partition: place}
		if len(p.Name()) > maxName {
			return nil
		}
		partitions = append(partitions, p)
	}
	return partitions
}

// PartitionRef names a partition without what is known of it. Profile and start say where it is, since
// all instances of a profile have one size.
type PartitionRef struct {
	// GPU is the device name of the GPU.
	GPU string
	// ProfileID is the driver's number of the profile.
	ProfileID int
	// Start is the first memory slice.
	Start int
}

const partitionInfix = "-mig-"

// Name is the device's name in its pool: "<name of the GPU>-mig-<profile ID>-<start>". As that of a GPU,
// it must never change.
func (r PartitionRef) Name() string {
	return fmt.Sprintf("%s%s%d-%d", r.GPU, partitionInfix, r.ProfileID, r.Start)
}

// ParsePartitionName is the opposite of PartitionRef.Name; false for the name of a GPU.
func ParsePartitionName(name string) (PartitionRef, bool) {
	at := strings.LastIndex(name, partitionInfix)
	if at <= 0 {
		return PartitionRef{}, false
	}
	profile, start, ok := strings.Cut(name[at+len(partitionInfix):], "-")
	if !ok {
		return PartitionRef{}, false
	}
	ref := PartitionRef{GPU: name[:at]}
	var errs [2]error
	ref.ProfileID, errs[0] = strconv.Atoi(profile)
	ref.Start, errs[1] = strconv.Atoi(start)
	// Atoi takes signs and zeros in front.
	return ref, errs[0] == nil && errs[1] == nil && ref.ProfileID >= 0 && ref.Start >= 0 && ref.Name() == name
}

// Ref names the partition.
func (p Partition) Ref() PartitionRef {
	return PartitionRef{GPU: p.GPU.Name(), ProfileID: p.Profile.ID, Start: p.Placement.Start}
}

// Name is the device's name in its pool; see PartitionRef.Name.
func (p Partition) Name() string { return p.Ref().Name() }

// ID is the short identity, as that of a GPU: of the GPU's UUID, the profile and the placement.
func (p Partition) ID() string {
	return shortID(fmt.Sprintf("%s/%d/%d", p.GPU.UUID, p.Profile.ID, p.Placement.Start))
}

// Occupied reports whether GPU instances that this driver has not made keep the partition from being
// used. An instance in its very place does not, if it is a whole partition.
func (p Partition) Occupied() bool {
	if p.GPU.MIG == nil {
		return false
	}
	var others []mig.Instance
	for _, instance := range p.GPU.MIG.Static {
		if instance.ProfileID == p.Profile.ID && instance.Placement == p.Placement {
			_, whole := instance.Whole(p.Profile.Slices)
			return !whole
		}
		others = append(others, instance)
	}
	return !mig.NewBudget(p.GPU.MIG.Profiles).Allows(p.Partition, others)
}

// OffersPartitions reports whether partitions of the GPU can be made now, its health aside.
func (g GPU) OffersPartitions() bool { return g.MIGEnabled && g.MIG != nil && !g.MIG.Withdrawn }
