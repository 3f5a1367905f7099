// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
)

// UnprepareResourceClaims implements [kubeletplugin.DRAPlugin]. It works from the checkpoint alone; a
// claim that is not prepared is done already.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := make(map[types.UID]error, len(claims))
	var mu sync.Mutex
	var group errgroup.Group
	group.SetLimit(maxParallelClaims)
	for _, claim := range claims {
		group.Go(func() error {
			err := d.unprepareClaim(ctx, claim.UID)
			d.countClaim(ctx, "unprepare", klog.KRef(claim.Namespace, claim.Name), claim.UID, err)
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = err
			return nil
		})
	}
	_ = group.Wait() // the functions return nil: their errors are results
	return results, nil
}

// unprepareClaim takes a claim's devices back: first the spec through which containers get them, then the
// MPS daemon, settings and partitions that were made for it, then the record that keeps them from others.
func (d *Driver) unprepareClaim(ctx context.Context, uid types.UID) error {
	unlock, err := d.lockClaim(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	return d.unprepareLocked(ctx, uid)
}

// unprepareLocked is unprepareClaim for a claim that is locked.
func (d *Driver) unprepareLocked(ctx context.Context, uid types.UID) error {
	record, _ := d.store.Get(uid)
	defer d.leave(uid)()
	crashAt(crashBeforeUnprepare)
	if err := d.config.Specs.RemoveClaim(uid); err != nil {
		return newError(kindCDI, "%w", err)
	}
	crashAt(crashAfterCDIRemoval)
	if err := d.unmake(ctx, record); err != nil {
		return err
	}
	// Deleting files and directories waits for the disk on some file systems: do both at once.
	directoryGone := d.removeMetadataDirectory(uid)
	err := d.deleteRecord(uid)
	<-directoryGone
	if err != nil {
		return err
	}
	crashAt(crashAfterRecordRemoval)
	return nil
}

// removeMetadataDirectory starts to remove the directory of a claim's device metadata, and closes the
// channel when it is done. It spares that of a claim with the same name. What it cannot remove is left
// to the helper, which removes the directory when Unprepare has succeeded, and tells of errors.
func (d *Driver) removeMetadataDirectory(uid types.UID) <-chan struct{} {
	done := make(chan struct{})
	claim, ok := d.names.only(uid)
	if !ok {
		close(done)
		return done
	}
	go func() {
		defer close(done)
		_ = os.RemoveAll(d.metadata.directory(claim.Namespace, claim.Name))
	}()
	return done
}
