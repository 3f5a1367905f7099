// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
)

// discover looks at the hardware, and tells the partitions that this driver made from static ones, which
// somebody else did.
//
// What was noted before the look, or after it, is ours: an entry is there before its partition is, and
// may be gone when the look at an instance that is just destroyed has ended.
func (d *Driver) discover(ctx context.Context) (device.Inventory, error) {
	before, beforeErr := d.partitions.ledger.list()
	seen, err := d.config.Platform.Discover(ctx)
	after, afterErr := d.partitions.ledger.list()
	if err != nil {
		return seen, err
	}
	ledgerErr := errors.Join(beforeErr, afterErr)
	if ledgerErr != nil {
		// Nobody is told to be in the way then: a partition that is fails to be made, with the reason.
		klog.FromContext(ctx).Error(ledgerErr, "Cannot tell whose the MIG partitions are")
		d.metrics.errors.WithLabelValues("partition_ledger").Inc()
	}
	ours := make(map[device.PartitionRef]bool)
	for _, ref := range append(before, after...) {
		ours[ref] = true
	}
	there := make(map[device.PartitionRef]bool)
	for i, gpu := range seen.GPUs {
		if gpu.MIG == nil {
			continue
		}
		partitioning := *gpu.MIG
		partitioning.Static, partitioning.Instances = nil, nil
		for _, instance := range gpu.MIG.Instances {
			ref := device.PartitionRef{GPU: gpu.Name(), ProfileID: instance.ProfileID, Start: instance.Placement.Start}
			there[ref] = true
			if !ours[ref] && ledgerErr == nil {
				partitioning.Static = append(partitioning.Static, instance)
			}
		}
		seen.GPUs[i].MIG = &partitioning
	}
	if ledgerErr == nil {
		d.reportStatic(ctx, seen)
	}
	if slices.ContainsFunc(before, func(ref device.PartitionRef) bool { return !there[ref] && d.partitions.ledger.has(ref) }) {
		d.requestReconcile(false) // somebody destroyed a partition of ours, or it is being made
	}
	return seen, nil
}

// reportStatic tells when somebody else has changed the partitions of a GPU.
func (d *Driver) reportStatic(ctx context.Context, inv device.Inventory) {
	if d.staticPartitions == nil {
		d.staticPartitions = make(map[string]string)
	}
	for _, gpu := range inv.GPUs {
		now := ""
		if gpu.MIG != nil {
			now = describeStatic(gpu.MIG.Static)
		}
		if before := d.staticPartitions[gpu.Name()]; now == before {
			continue
		}
		d.staticPartitions[gpu.Name()] = now
		if now == "" {
			now = "none any more"
		}
		klog.FromContext(ctx).Info("The MIG partitions of a GPU that this driver did not make have changed", "device", gpu.Name(), "pciBusID", gpu.PCIBusID, "partitions", now)
		d.events.normal(reasonMIGChanged, "MIG partitions of GPU %s (PCI %s) that this driver did not make: %s", gpu.Name(), gpu.PCIBusID, now)
	}
}

func describeStatic(instances []mig.Instance) string {
	parts := make([]string, 0, len(instances))
	for _, instance := range instances {
		parts = append(parts, fmt.Sprintf("GPU instance %d (profile %d at memory slice %d, %d compute instances)",
			instance.ID, instance.ProfileID, instance.Placement.Start, len(instance.Compute)))
	}
	return strings.Join(parts, ", ")
}

// removeOrphanPartitions destroys the partitions that this driver made and no claim has any more: their
// record was lost, or NVML was away when they were to be destroyed. A GPU that hangs does not hold up the others.
func (r *reconciler) removeOrphanPartitions(ctx context.Context) error {
	refs, err := r.partitions.ledger.list()
	byGPU := make(map[string][]device.PartitionRef)
	for _, ref := range refs {
		byGPU[ref.GPU] = append(byGPU[ref.GPU], ref)
	}
	results := make(chan error, len(byGPU))
	for _, ofGPU := range byGPU {
		go func() { results <- r.removeOrphanPartitionsOf(ctx, ofGPU) }()
	}
	errs := []error{err}
	for range byGPU {
		errs = append(errs, <-results)
	}
	return errors.Join(errs...)
}

// removeOrphanPartitionsOf does it for the partitions of one GPU.
func (r *reconciler) removeOrphanPartitionsOf(ctx context.Context, refs []device.PartitionRef) error {
	var errs []error
	for _, ref := range refs {
		held := func() bool {
			_, held := r.partitionHolder(ref)
			return held || r.damaged.pending()
		}
		if held() {
			continue
		}
		destroyed, err := r.partitions.destroy(ctx, ref, held)
		errs = append(errs, err)
		if destroyed {
			r.metrics.reconciled.WithLabelValues(actionPartitionRemoved).Inc()
			klog.FromContext(ctx).Info("Destroyed a MIG partition that no claim has", "partition", ref.Name())
		}
	}
	return errors.Join(errs...)
}
