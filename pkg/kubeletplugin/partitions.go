// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// Partitioner makes and destroys MIG partitions. *nvml.Library implements it; its documentation says
// with which errors.
type Partitioner interface {
	// Instances returns the GPU instances of a GPU, which is named as a device.
	Instances(ctx context.Context, gpu string) ([]mig.Instance, error)
	CreateGPUInstance(ctx context.Context, ref device.PartitionRef) error
	CreateComputeInstance(ctx context.Context, ref device.PartitionRef) error
	// DestroyComputeInstances and DestroyGPUInstance do nothing where there is none.
	DestroyComputeInstances(ctx context.Context, ref device.PartitionRef) error
	DestroyGPUInstance(ctx context.Context, ref device.PartitionRef) error
}

// partitionTimeout bounds what one claim waits for NVML to make or destroy a partition. The kubelet gives
// up on a call after 45 s.
const partitionTimeout = 30 * time.Second

// madePartition is a partition that exists.
type madePartition struct {
	gpuInstance, computeInstance int
	uuid                         string
}

// partitions makes the partitions of claims and takes them back. Those of one GPU are dealt with one
// after the other, those of different GPUs at the same time.
type partitions struct {
	platform Partitioner
	ledger   *partitionLedger
	gpus     keyedLock[string]
	silent   silentGPUs
	// holder returns the claim on this boot whose checkpoint record has the partition, if any.
	holder func(device.PartitionRef) (checkpoint.Record, bool)
	// inDoubt reports whether records are damaged, so that holder may miss one. It is asked after holder, which
	// may be the one that finds the damage.
	inDoubt func() bool
}

// ensure makes sure that a partition exists and returns it. What exists in its place already is used,
// whoever made it. What was begun is finished. When it fails, nothing is left that it made.
func (p *partitions) ensure(ctx context.Context, want device.Partition) (madePartition, error) {
	ctx, cancel := context.WithTimeout(ctx, partitionTimeout)
	defer cancel()
	ref := want.Ref()
	if p.platform == nil {
		return madePartition{}, newError(kindPartition, "MIG partition %s: this plugin cannot make partitions", ref.Name())
	}
	unlock, err := p.gpus.Lock(ctx, ref.GPU)
	if err != nil {
		p.silent.note(ref.GPU, err)
		return madePartition{}, newError(kindPartition, "MIG partition %s: wait for another claim's partition on the GPU: %w", ref.Name(), err)
	}
	defer unlock()
	made, err := p.ensureLocked(ctx, want)
	p.silent.note(ref.GPU, err)
	if err != nil {
		return madePartition{}, newError(kindPartition, "MIG partition %s (%s): %w", ref.Name(), want.Profile.Name, err)
	}
	return made, nil
}

func (p *partitions) ensureLocked(ctx context.Context, want device.Partition) (madePartition, error) {
	ref := want.Ref()
	instances, err := p.platform.Instances(ctx, ref.GPU)
	if err != nil {
		return madePartition{}, err
	}
	begun := false
	if there, ok := instanceOf(instances, ref); ok {
		if whole, ok := there.Whole(want.Profile.Slices); ok {
			return madePartition{there.ID, whole.ID, whole.UUID}, nil
		}
		if !p.ledger.has(ref) {
			return madePartition{}, fmt.Errorf("GPU instance %d is in its place without one compute instance of all its slices, and was not made by this driver: "+
				"complete it (nvidia-smi mig -cci) or destroy it (nvidia-smi mig -dgi)", there.ID)
		}
		begun = true
	} else if instances, err = p.makeRoom(ctx, want, instances); err != nil {
		return madePartition{}, err
	} else if !mig.NewBudget(want.GPU.MIG.Profiles).Allows(want.Partition, instances) {
		return madePartition{}, fmt.Errorf("no room: %s", p.describe(ref.GPU, instances))
	}
	if err := p.create(ctx, ref, begun); err != nil {
		return madePartition{}, err
	}
	if instances, err = p.platform.Instances(ctx, ref.GPU); err != nil {
		return madePartition{}, err
	}
	there, _ := instanceOf(instances, ref)
	whole, ok := there.Whole(want.Profile.Slices)
	if !ok || whole.UUID == "" {
		return madePartition{}, errors.New("NVML made it and does not list it: trying again may help")
	}
	return madePartition{there.ID, whole.ID, whole.UUID}, nil
}

// create makes a partition; begun says that its GPU instance is there, and is ours. Another process may
// be doing the same for the same claim, in a rolling update: that something is there already is no error.
func (p *partitions) create(ctx context.Context, ref device.PartitionRef, begun bool) (err error) {
	if begun {
		if err := p.platform.DestroyComputeInstances(ctx, ref); err != nil {
			return err
		}
	} else {
		noted := p.ledger.has(ref)
		if err := p.ledger.add(ref); err != nil {
			return err
		}
		crashAt(crashBeforeGPUInstance)
		if err := p.platform.CreateGPUInstance(ctx, ref); err != nil {
			instances, listErr := p.platform.Instances(ctx, ref.GPU)
			_, there := instanceOf(instances, ref)
			taken := errors.Is(err, nvml.ErrNoRoom) && !noted // somebody was quicker: it is theirs
			if listErr != nil || there && !taken {
				return errors.Join(err, listErr) // the entry stays, for what may be there
			}
			return errors.Join(err, p.ledger.remove(ref))
		}
	}
	crashAt(crashAfterGPUInstance)
	if err := p.platform.CreateComputeInstance(ctx, ref); err != nil {
		return errors.Join(err, p.destroyLocked(ctx, ref))
	}
	crashAt(crashAfterComputeInstance)
	return nil
}

// makeRoom destroys partitions of ours that no claim has any more, if they are in the way.
func (p *partitions) makeRoom(ctx context.Context, want device.Partition, instances []mig.Instance) ([]mig.Instance, error) {
	budget := mig.NewBudget(want.GPU.MIG.Profiles)
	if budget.Allows(want.Partition, instances) {
		return instances, nil
	}
	var errs []error
	for _, instance := range instances {
		ref := device.PartitionRef{GPU: want.Ref().GPU, ProfileID: instance.ProfileID, Start: instance.Placement.Start}
		if _, held := p.holder(ref); held || p.inDoubt() || !p.ledger.has(ref) {
			continue
		}
		klog.FromContext(ctx).Info("Destroying a MIG partition that no claim has, since it is in another's place", "partition", ref.Name())
		errs = append(errs, p.destroyLocked(ctx, ref))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("make room: %w", err)
	}
	return p.platform.Instances(ctx, want.Ref().GPU)
}

// destroy takes a partition back, if this driver made it and no record has it but the claim's own. That
// its GPU or NVML is away, or the GPU needs a reset, is no error: the ledger keeps it, to be destroyed once they are back.
// A GPU that does not answer is waited for once, not for each of its partitions.
func (p *partitions) destroy(ctx context.Context, ref device.PartitionRef, unless func() bool) (done bool, err error) {
	if why := p.silent.of(ref.GPU); why != nil {
		klog.FromContext(ctx).V(2).Info("Left a MIG partition to be destroyed once its GPU answers", "partition", ref.Name(), "err", why)
		return false, nil
	}
	done, err = p.destroyNow(ctx, ref, unless)
	if errors.Is(err, nvml.ErrUnavailable) || errors.Is(err, nvml.ErrGPUGone) || errors.Is(err, nvml.ErrGPUFails) {
		klog.FromContext(ctx).Info("Left a MIG partition to be destroyed once its GPU can be reached", "partition", ref.Name(), "err", err)
		return false, nil
	}
	return done, err
}

// destroyNow is destroy, but that the GPU or NVML cannot do it now is an error.
func (p *partitions) destroyNow(ctx context.Context, ref device.PartitionRef, unless func() bool) (done bool, err error) {
	if p.platform == nil || !p.ledger.has(ref) {
		return false, nil
	}
	ctx, cancel := context.WithTimeout(ctx, partitionTimeout)
	defer cancel()
	unlock, err := p.gpus.Lock(ctx, ref.GPU)
	if err != nil {
		p.silent.note(ref.GPU, err)
		return false, newError(kindPartition, "destroy MIG partition %s: wait for another claim's partition on the GPU: %w", ref.Name(), err)
	}
	defer unlock()
	if unless() || !p.ledger.has(ref) {
		return false, nil
	}
	err = p.destroyLocked(ctx, ref)
	p.silent.note(ref.GPU, err)
	if err != nil {
		return false, newError(kindPartition, "%w", err)
	}
	return true, nil
}

func (p *partitions) destroyLocked(ctx context.Context, ref device.PartitionRef) error {
	crashAt(crashBeforePartitionRemoval)
	if err := p.platform.DestroyComputeInstances(ctx, ref); err != nil {
		return err
	}
	crashAt(crashAfterComputeInstanceRemoval)
	if err := p.platform.DestroyGPUInstance(ctx, ref); err != nil {
		return err
	}
	crashAt(crashAfterGPUInstanceRemoval)
	return p.ledger.remove(ref)
}

// describe says what is on a GPU, and whose it is.
func (p *partitions) describe(gpu string, instances []mig.Instance) string {
	var parts []string
	for _, instance := range instances {
		ref := device.PartitionRef{GPU: gpu, ProfileID: instance.ProfileID, Start: instance.Placement.Start}
		whose := "not made by this driver"
		if record, held := p.holder(ref); held {
			whose = "of claim " + record.Namespace + "/" + record.Name
		} else if p.ledger.has(ref) {
			whose = "of no claim any more"
		}
		parts = append(parts, fmt.Sprintf("GPU instance %d at memory slices %d to %d is %s",
			instance.ID, instance.Placement.Start, instance.Placement.Start+instance.Placement.Size-1, whose))
	}
	return strings.Join(parts, "; ")
}

// instanceOf finds the GPU instance of a partition.
func instanceOf(instances []mig.Instance, ref device.PartitionRef) (mig.Instance, bool) {
	i := slices.IndexFunc(instances, func(instance mig.Instance) bool {
		return instance.ProfileID == ref.ProfileID && instance.Placement.Start == ref.Start
	})
	if i < 0 {
		return mig.Instance{}, false
	}
	return instances[i], true
}

// partitionHolder returns the claim whose record on disk has a partition, on this boot.
func (d *Driver) partitionHolder(ref device.PartitionRef) (checkpoint.Record, bool) {
	name := ref.Name()
	for _, record := range d.store.List() {
		if record.BootID == d.bootID && slices.ContainsFunc(record.Devices, func(device checkpoint.Device) bool { return device.Name == name && !device.AdminAccess }) {
			return record, true
		}
	}
	return checkpoint.Record{}, false
}

// partitionsOf are the partitions among a record's devices, but for those with adminAccess: that neither
// makes nor keeps anything.
func partitionsOf(record checkpoint.Record) []device.PartitionRef {
	var refs []device.PartitionRef
	for _, d := range record.Devices {
		if ref, ok := device.ParsePartitionName(d.Name); ok && !d.AdminAccess {
			refs = append(refs, ref)
		}
	}
	return refs
}

// hasPartitions reports whether any device of a record is a partition.
func hasPartitions(record checkpoint.Record) bool {
	return slices.ContainsFunc(record.Devices, func(d checkpoint.Device) bool {
		_, ok := device.ParsePartitionName(d.Name)
		return ok
	})
}

// makePartitions makes sure that the partitions of a record exist. It returns the record with their UUIDs
// and the devices for its CDI spec.
func (d *Driver) makePartitions(ctx context.Context, record checkpoint.Record) (checkpoint.Record, []cdi.ClaimDevice, error) {
	specs := specDevices(record)
	if !hasPartitions(record) {
		return record, specs, nil
	}
	seen, _ := d.hardware.load()
	record.Devices = slices.Clone(record.Devices)
	for i := range record.Devices {
		if specs[i].Partition.GPU == "" {
			continue
		}
		known, ok := seen.find(record.Devices[i].Name)
		if !ok || known.partition == nil {
			return record, nil, newError(kindDeviceUnknown, "MIG partition %s does not exist on this node (any more)", record.Devices[i].Name)
		}
		ensure := d.partitions.ensure
		if record.Devices[i].AdminAccess {
			ensure = d.partitions.find
		}
		made, err := ensure(ctx, *known.partition)
		if err != nil {
			return record, nil, err
		}
		record.Devices[i].UUID = made.uuid
		specs[i].Partition.Made, specs[i].Partition.GPUInstance, specs[i].Partition.ComputeInstance = true, made.gpuInstance, made.computeInstance
	}
	return record, specs, nil
}

// errNothingToAdminister says that a partition that a claim has adminAccess to is not there.
var errNothingToAdminister = errors.New("does not exist now, and adminAccess makes none")

// find returns a partition that exists, or errNothingToAdminister.
func (p *partitions) find(ctx context.Context, want device.Partition) (madePartition, error) {
	if p.platform == nil {
		return madePartition{}, newError(kindPartition, "MIG partition %s: this plugin cannot look for partitions", want.Name())
	}
	ctx, cancel := context.WithTimeout(ctx, partitionTimeout)
	defer cancel()
	instances, err := p.platform.Instances(ctx, want.Ref().GPU)
	p.silent.note(want.Ref().GPU, err)
	if err != nil {
		return madePartition{}, newError(kindPartition, "MIG partition %s: %w", want.Name(), err)
	}
	there, _ := instanceOf(instances, want.Ref())
	whole, ok := there.Whole(want.Profile.Slices)
	if !ok {
		return madePartition{}, newError(kindPartition, "MIG partition %s %w", want.Name(), errNothingToAdminister)
	}
	return madePartition{there.ID, whole.ID, whole.UUID}, nil
}

// destroyPartitions takes back the partitions of a claim that is unprepared, or could not be prepared. Only that a process
// still uses one is an error: what cannot be destroyed now for another reason stays noted, for the reconciler and for
// who gets its place next, and the claim's pod can end.
func (d *Driver) destroyPartitions(ctx context.Context, record checkpoint.Record) error {
	var errs []error
	for _, ref := range partitionsOf(record) {
		heldByOther := func() bool {
			other, held := d.partitionHolder(ref)
			return held && other.ClaimUID != record.ClaimUID || d.damaged.pending()
		}
		_, err := d.partitions.destroy(ctx, ref, heldByOther)
		if err != nil && !errors.Is(err, nvml.ErrPartitionInUse) {
			klog.FromContext(ctx).Error(err, "Left a MIG partition to be destroyed later", "partition", ref.Name())
			d.requestReconcile(false)
			continue
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// partitionsNotPrepared are those of the partitions of a record that its claim did not have yet, going by the
// record as it was stored: what stands in their places is left of another claim, or of a Prepare that was
// not finished.
func partitionsNotPrepared(record, stored checkpoint.Record, bootID string) []device.PartitionRef {
	return slices.DeleteFunc(partitionsOf(record), func(ref device.PartitionRef) bool { return isPreparedWith(stored, ref, bootID) })
}

// isPreparedWith reports whether a record says that its claim is prepared on this boot, with a partition.
func isPreparedWith(record checkpoint.Record, ref device.PartitionRef, bootID string) bool {
	return record.State == checkpoint.Prepared && record.BootID == bootID && slices.Contains(partitionsOf(record), ref)
}

// clearPartitions destroys what this driver left in the places of partitions that a claim is about to get, and
// fails if it cannot: an earlier claim may have left data in it, or a process.
func (d *Driver) clearPartitions(ctx context.Context, record checkpoint.Record, refs []device.PartitionRef) error {
	for _, ref := range refs {
		finished := false // by another process, in a rolling update
		spare := func() bool {
			stored, _ := d.store.Get(record.ClaimUID)
			finished = isPreparedWith(stored, ref, d.bootID)
			return finished || d.damaged.pending()
		}
		if _, err := d.partitions.destroyNow(ctx, ref, spare); err != nil {
			return fmt.Errorf("a MIG partition of an earlier claim is in the place: %w", err)
		}
		if !finished && d.partitions.ledger.has(ref) {
			return newError(kindNotReady, "MIG partition %s is there already and may be another claim's, whose checkpoint record is damaged: try again", ref.Name())
		}
	}
	return nil
}
