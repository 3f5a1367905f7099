// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
)

// readyTimeout bounds how long a Prepare waits for what a start needs: the first look at the
// hardware and the repair of damaged records. The kubelet repeats a call that fails.
const readyTimeout = 20 * time.Second

// PrepareResourceClaims implements [kubeletplugin.DRAPlugin]. Claims are prepared in parallel and
// fail one by one.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := make(map[types.UID]kubeletplugin.PrepareResult, len(claims))
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxParallelClaims)
	for _, claim := range claims {
		group.Go(func() error {
			devices, err := d.prepareClaim(ctx, claim)
			d.countClaim(ctx, "prepare", klog.KObj(claim), claim.UID, err)
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
			return nil
		})
	}
	_ = group.Wait() // the functions return nil: their errors are results
	return results, nil
}

// prepareClaim prepares one claim. It makes no difference between a first call and a repeated one
// but for what is on disk already: everything is checked, and the spec is ensured, every time.
func (d *Driver) prepareClaim(ctx context.Context, claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	seen, err := d.waitUntilReady(ctx)
	if err != nil {
		return nil, err
	}
	if claim.Labels[v1alpha1.GangLabel] != "" {
		if claim, seen, err = d.passGate(ctx, claim, seen); err != nil {
			return nil, err
		}
	}
	unlock, err := d.lockClaim(ctx, claim.UID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if asksAgain(ctx) && !d.isPrepared(claim.UID) {
		return nil, newError(kindNotReady, "it was unprepared meanwhile")
	}

	results, err := allocatedHere(claim, d.config.NodeName)
	if err != nil || len(results) == 0 {
		return nil, err
	}
	configs, err := configsOf(claim, results)
	if err != nil {
		return nil, err
	}
	for _, result := range results {
		if err := checkShare(claim, result, seen); err != nil {
			return nil, err
		}
		if err := checkDevice(result, seen); err != nil {
			return nil, err
		}
	}

	record, err := d.recordOf(claim, results, configs, seen)
	if err != nil {
		return nil, err
	}
	names, err := d.commit(ctx, claim, record)
	if err != nil {
		return nil, err
	}
	devices := make([]kubeletplugin.Device, len(results))
	for i, result := range results {
		devices[i] = kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CDIDeviceIDs: []string{names[i]},
			ShareID:      result.ShareID,
			Metadata:     &kubeletplugin.DeviceMetadata{Attributes: seen.attributes(result.Device)},
		}
	}
	return devices, nil
}

// commit makes a claim's record, partitions, settings, MPS daemon and CDI spec what they should be and returns the
// qualified CDI name of each of its devices. The claim is locked. The order of the writes is the package's promise.
func (d *Driver) commit(ctx context.Context, claim *resourceapi.ResourceClaim, record checkpoint.Record) ([]string, error) {
	if err := d.config.Specs.Check(specDevices(record)); err != nil {
		return nil, newError(kindCDI, "%w", err)
	}
	stored, found := d.store.Get(record.ClaimUID)
	if !found && hasPartitions(record) && d.damaged.pending() {
		// The record may be the one, and a pod may run in the partition.
		return nil, newError(kindNotReady, "damaged checkpoint records are not rebuilt from the API server yet, try again")
	}
	leftovers := partitionsNotPrepared(record, stored, d.bootID)
	// What exists is to be found by looking, not in the record.
	prepared := found && stored.State == checkpoint.Prepared && sameAllocation(stored, record)
	reserved := record
	if needsMaking(record) {
		reserved.State = checkpoint.Preparing
	}
	if prepared || found && sameRecord(stored, reserved) {
		d.names.add(stored) // another process may have written it
	} else {
		crashAt(crashBeforeCheckpoint)
		if err := d.putRecordWhenFree(ctx, reserved); err != nil {
			return nil, err
		}
		stored = reserved
		crashAt(crashAfterCheckpoint)
	}
	var names []string
	err := d.checkNeighbours(ctx, claim, record)
	if err == nil {
		err = d.clearPartitions(ctx, record, leftovers)
	}
	if err == nil {
		names, record, err = d.realize(ctx, record, true)
	}
	if err == nil {
		crashAt(crashAfterCDI)
		if !sameRecord(stored, record) {
			err = d.putRecord(record)
		}
	}
	if err != nil {
		if found && (prepared || !needsMaking(record)) {
			return nil, err // what was prepared before stays reserved
		}
		// If this fails, the devices stay reserved until the reconciler finds the claim gone.
		return nil, errors.Join(err, d.takeBack(ctx, record))
	}
	crashAt(crashAfterPrepared)
	return names, nil
}

// realizeStored is realize for a record as it is on disk. What stands in the places of one that was not prepared
// to the end is destroyed before, as commit does.
func (d *Driver) realizeStored(ctx context.Context, record checkpoint.Record) (checkpoint.Record, error) {
	if err := d.clearPartitions(ctx, record, partitionsNotPrepared(record, record, d.bootID)); err != nil {
		return record, err
	}
	_, record, err := d.realize(ctx, record, false)
	return record, err
}

// realize makes the partitions of a record, the settings of its GPUs, its MPS daemon and its CDI spec. It returns the
// record with what it is then known to have. For a claim that a container is about to use, what is set already is set
// again, and the daemon waited for.
func (d *Driver) realize(ctx context.Context, record checkpoint.Record, forUse bool) ([]string, checkpoint.Record, error) {
	record, devices, err := d.makePartitions(ctx, record)
	if err == nil {
		err = d.applySettings(ctx, record, forUse)
	}
	if err == nil {
		err = d.startDaemons(ctx, record, devices, forUse)
	}
	if err != nil {
		return nil, record, err
	}
	names, err := d.config.Specs.WriteClaim(record.ClaimUID, devices)
	if err != nil {
		return nil, record, newError(kindCDI, "%w", err)
	}
	return names, record, nil
}

// takeBack undoes what was done for a claim that could not be prepared.
func (d *Driver) takeBack(ctx context.Context, record checkpoint.Record) error {
	// Also when the kubelet does not wait any more.
	ctx = context.WithoutCancel(ctx)
	defer d.leave(record.ClaimUID)()
	if err := d.config.Specs.RemoveClaim(record.ClaimUID); err != nil {
		return err
	}
	if err := d.unmake(ctx, record); err != nil {
		return err
	}
	return d.deleteRecord(record.ClaimUID)
}

// unmake takes back what was made and set for a claim, which no container uses any more.
func (d *Driver) unmake(ctx context.Context, record checkpoint.Record) error {
	if err := d.stopDaemons(ctx, record); err != nil {
		return err // it holds the devices
	}
	d.restoreSettings(ctx, record)
	return d.destroyPartitions(ctx, record)
}

// deviceWaitPoll is how often Prepare looks whether a device has become free. The claim that has it may
// be unprepared by another process.
const deviceWaitPoll = 100 * time.Millisecond

// putRecordWhenFree writes a record, and waits a little for devices that another claim still has. The
// scheduler gives a device away as soon as a pod is gone from the API server; of a pod deleted by force
// the containers may still be ending. The kubelet repeats a failed Prepare only after a minute or more.
func (d *Driver) putRecordWhenFree(ctx context.Context, record checkpoint.Record) error {
	err := d.putRecord(record)
	if kindOf(err) != kindDeviceInUse {
		return err
	}
	d.requestReconcile(true) // the other claim may be gone
	for deadline := d.config.Clock.Now().Add(d.config.DeviceWait); d.config.Clock.Now().Before(deadline); {
		select {
		case <-ctx.Done():
			return err
		case <-d.config.Clock.After(deviceWaitPoll):
		}
		if err = d.putRecord(record); kindOf(err) != kindDeviceInUse {
			return err
		}
	}
	return err
}

// putRecord writes a record. From then on its devices are the claim's.
func (d *Driver) putRecord(record checkpoint.Record) error {
	err := d.store.Put(record)
	var conflict *checkpoint.DeviceInUseError
	switch {
	case errors.As(err, &conflict):
		return newError(kindDeviceInUse, "device %s is prepared for claim %s/%s (UID %s), and a device serves one claim at a time: "+
			"it becomes free when the pods of that claim have ended, or about %v after that claim is found gone",
			conflict.Device.Name, conflict.ByNamespace, conflict.ByName, conflict.By, d.config.OrphanGrace)
	case err != nil:
		return newError(kindCheckpoint, "write the checkpoint record: %w", err)
	}
	d.names.add(record)
	d.steering.wake()
	return nil
}

// deleteRecord deletes a record. From then on its devices are anybody's.
func (d *Driver) deleteRecord(uid types.UID) error {
	if err := d.store.Delete(uid); err != nil {
		return newError(kindCheckpoint, "delete the checkpoint record: %w", err)
	}
	d.names.remove(uid)
	d.steering.wake()
	return nil
}

// waitUntilReady waits until claims can be prepared at all.
func (d *Driver) waitUntilReady(ctx context.Context) (*snapshot, error) {
	if problem := d.runtimeErr.Load(); problem != nil {
		return nil, newError(kindRuntimeWithoutCDI, "%w", *problem)
	}
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	seen, err := d.hardware.wait(ctx)
	if err != nil {
		return nil, newError(kindNotReady, "the GPUs of this node are not known yet, try again: %w", err)
	}
	select {
	case <-d.rebuilt:
		return seen, nil
	case <-ctx.Done():
		return nil, newError(kindNotReady, "damaged checkpoint records are not rebuilt from the API server yet, try again: %w", context.Cause(ctx))
	}
}

// lockClaim keeps other calls for the same claim out.
func (d *Driver) lockClaim(ctx context.Context, uid types.UID) (func(), error) {
	unlock, err := d.claims.Lock(ctx, uid)
	if err != nil {
		return nil, newError(kindNotReady, "wait for another call for this claim: %w", err)
	}
	return unlock, nil
}

// checkDevice refuses a device that a container could not use.
func checkDevice(result resourceapi.DeviceRequestAllocationResult, seen *snapshot) error {
	known, ok := seen.byName[result.Device]
	switch {
	case !ok && seen.err != nil:
		return newError(kindDeviceUnknown, "device %s is unknown: %w", result.Device, seen.err)
	case !ok:
		return newError(kindDeviceUnknown, "device %s does not exist on this node (any more); it has %d GPUs", result.Device, len(seen.inventory.GPUs))
	case !known.gpu.Health.Healthy() && !toleratesHealth(result, known.gpu.Health):
		return newError(kindDeviceUnhealthy, "%s; the pod starts here if the GPU recovers: delete the pod to have it start on another", describeUnhealthy(known.gpu))
	case known.partition != nil && !known.gpu.OffersPartitions():
		return newError(kindDeviceInMIGMode, "MIG partition %s cannot be made: MIG mode of GPU PCI %s is off, or --mig-gpus does not name it", result.Device, known.gpu.PCIBusID)
	case known.partition == nil && known.gpu.MIGEnabled && !ptr.Deref(result.AdminAccess, false):
		return newError(kindDeviceInMIGMode, "GPU %s is in MIG mode and cannot be used as a whole: claim a MIG partition, or switch MIG mode off (nvidia-smi -i %s -mig 0)", result.Device, known.gpu.PCIBusID)
	}
	return nil
}

// countClaim notes how a claim's operation ended. This is where its error leaves the process, in a
// response that the helper does not look into, so it is logged here.
func (d *Driver) countClaim(ctx context.Context, operation string, claim klog.ObjectRef, uid types.UID, err error) {
	logger := klog.FromContext(ctx)
	d.metrics.claims.WithLabelValues(operation, resultLabel(err)).Inc()
	if err != nil {
		kind := kindOf(err)
		d.metrics.errors.WithLabelValues(string(kind)).Inc()
		logger.Error(err, "Claim failed", "operation", operation, "claim", claim, "claimUID", uid, "kind", kind)
		return
	}
	logger.V(2).Info("Claim done", "operation", operation, "claim", claim, "claimUID", uid)
}
