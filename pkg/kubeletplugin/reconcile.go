// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc/metadata"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
)

const (
	// apiReconcileRounds is how many rounds pass between two that ask the API server about every
	// claim. A missed Unprepare is rare, and thousands of nodes ask.
	apiReconcileRounds = 10
	// reconcileParallelism bounds the questions to the API server at the same time.
	reconcileParallelism = 4
	// reconcileTimeout bounds one round: an API server may accept a request and never answer.
	reconcileTimeout = time.Minute
	// reconcileMinPause separates rounds that were asked for, and is the first wait after an error.
	reconcileMinPause = time.Second
)

// Actions of the reconciler: values of the label "action" of the reconciled metric.
const (
	actionUnprepared       = "unprepared"
	actionSpecRemoved      = "spec_removed"
	actionPartitionRemoved = "partition_removed"
	actionDaemonRemoved    = "mps_daemon_removed"
	actionMetadataEnsured  = "metadata_ensured"
	actionAdopted          = "adopted"
)

// reconciler makes what is on this node agree with itself and with the API server, at start and from
// time to time:
//
//   - records that were damaged are rebuilt from the claims of pods that run here (see adopt.go);
//   - records of claims that are gone, or no longer allocated here, are unprepared;
//   - CDI specs, metadata, MIG partitions, MPS daemons and settings of ours without a record are removed; records without a spec, or
//     whose partitions somebody destroyed, get them.
//
// Its fields belong to its goroutine.
type reconciler struct {
	*Driver
	// round counts the rounds since the API server was last asked about every claim.
	round int
	// rebuiltOnce says that the records of running pods were looked for since the start.
	rebuiltOnce bool
	// failures counts rounds in a row that could not do everything.
	failures int
	// suspects are the claims that were found gone, and since when.
	suspects map[types.UID]time.Time
	// daemonRestarts is how often the MPS daemons were started again, as was last told.
	daemonRestarts map[string]int
	// prepareAgain calls the plugin's own Prepare.
	prepareAgain func(context.Context, *drapb.Claim) error
}

func newReconciler(d *Driver) *reconciler {
	return &reconciler{Driver: d, suspects: make(map[types.UID]time.Time), prepareAgain: d.callPrepare}
}

// run reconciles until ctx ends.
func (r *reconciler) run(ctx context.Context) {
	for {
		wait := r.reconcile(ctx)
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(reconcileMinPause):
		}
		select {
		case <-ctx.Done():
			return
		case <-r.clock.After(wait):
		case <-r.reconcileNow:
		}
	}
}

// requestReconcile makes the reconciler start a round soon, and ask the API server about every claim
// in it when that may tell something new.
func (d *Driver) requestReconcile(askAPI bool) {
	if askAPI {
		d.askAPI.Store(true)
	}
	select {
	case d.reconcileNow <- struct{}{}:
	default:
	}
}

// reconcile does one round and returns how long to wait for the next.
func (r *reconciler) reconcile(ctx context.Context) time.Duration {
	logger := klog.FromContext(ctx)
	bounded, cancel := context.WithTimeout(ctx, reconcileTimeout)
	defer cancel()
	askAPI := r.askAPI.Swap(false) || r.round%apiReconcileRounds == 0 || len(r.suspects) > 0 || r.failures > 0
	r.round++
	r.partitions.silent.forget()

	var errs []error
	if !r.rebuiltOnce || r.damaged.pending() {
		errs = append(errs, r.rebuild(bounded))
	}
	if askAPI {
		errs = append(errs, r.unprepareOrphans(bounded))
	}
	if r.rebuiltOnce && !r.damaged.pending() {
		// Before, a spec without a record may be that of a running pod whose record is damaged.
		errs = append(errs, r.removeStray(bounded), r.removeOrphanSharing(bounded), r.removeOrphanPartitions(bounded))
	}
	errs = append(errs, r.ensureSpecs(bounded), r.reportDaemons())
	if ctx.Err() != nil {
		return 0 // shutting down: what failed because of that is no news
	}

	if err := errors.Join(errs...); err != nil {
		logger.Error(err, "Reconciling failed in part, trying again")
		r.metrics.errors.WithLabelValues("reconcile").Inc()
		r.failures++
		return min(r.config.ReconcileInterval, reconcileMinPause<<min(r.failures-1, 10))
	}
	r.failures = 0
	if len(r.suspects) > 0 {
		return min(r.config.ReconcileInterval, r.config.OrphanGrace)
	}
	return r.config.ReconcileInterval
}

// unprepareOrphans takes back the devices of claims that the API server has not known, or not known
// as allocated here, for the grace period.
func (r *reconciler) unprepareOrphans(ctx context.Context) error {
	var mu sync.Mutex
	answers := make(map[types.UID]string)
	var group errgroup.Group
	group.SetLimit(reconcileParallelism)
	records := r.records()
	for _, record := range records {
		group.Go(func() error {
			reason, err := r.whyGone(ctx, record)
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			answers[record.ClaimUID] = reason
			return nil
		})
	}
	errs := []error{group.Wait()}

	now := r.clock.Now()
	before := r.suspects
	r.suspects = make(map[types.UID]time.Time)
	for _, record := range records {
		since, suspected := before[record.ClaimUID]
		reason, answered := answers[record.ClaimUID]
		if !answered {
			if suspected {
				r.suspects[record.ClaimUID] = since // nothing new is known
			}
			continue
		}
		if reason == "" {
			continue
		}
		if !suspected {
			since = now
		}
		r.suspects[record.ClaimUID] = since
		if now.Sub(since) < r.config.OrphanGrace {
			continue
		}
		done, err := r.unprepareOrphan(ctx, record)
		if err != nil {
			errs = append(errs, fmt.Errorf("unprepare claim %s/%s: %w", record.Namespace, record.Name, err))
			continue
		}
		delete(r.suspects, record.ClaimUID)
		if !done {
			continue
		}
		r.metrics.reconciled.WithLabelValues(actionUnprepared).Inc()
		klog.FromContext(ctx).Info("Unprepared a claim that the kubelet did not", "claim", klog.KRef(record.Namespace, record.Name), "claimUID", record.ClaimUID, "reason", reason)
	}
	return errors.Join(errs...)
}

// unprepareOrphan takes the devices of a claim back, unless it is held again: another pod may have got
// it, and prepared it, since the API server was asked. So it is asked once more, with Prepare locked out.
func (r *reconciler) unprepareOrphan(ctx context.Context, record checkpoint.Record) (done bool, err error) {
	unlock, err := r.lockClaim(ctx, record.ClaimUID)
	if err != nil {
		return false, err
	}
	defer unlock()
	if reason, err := r.whyGone(ctx, record); err != nil || reason == "" {
		return false, err
	}
	if err := r.unprepareLocked(ctx, record.ClaimUID); err != nil {
		return false, err
	}
	return true, r.metadata.remove(record.Namespace, record.Name, record.ClaimUID)
}

// whyGone asks the API server about a record's claim and says why its devices are not its own any
// more; empty when they are.
func (r *reconciler) whyGone(ctx context.Context, record checkpoint.Record) (string, error) {
	claim, err := r.config.KubeClient.ResourceV1().ResourceClaims(record.Namespace).Get(ctx, record.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return "the claim is deleted", nil
	}
	if err != nil {
		return "", fmt.Errorf("read claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	return whyNotHeld(claim, record.ClaimUID, r.config.NodeName), nil
}

// whyNotHeld says why a claim as the API server has it does not hold devices of this pool for the
// claim that was prepared under uid; empty when it does.
func whyNotHeld(claim *resourceapi.ResourceClaim, uid types.UID, pool string) string {
	switch {
	case claim.UID != uid:
		return "the claim was deleted and another has its name"
	case claim.Status.Allocation == nil:
		return "the claim is not allocated any more"
	case len(claim.Status.ReservedFor) == 0:
		return "no pod uses the claim any more"
	}
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver == v1alpha1.DriverName && result.Pool == pool {
			return ""
		}
	}
	return "the claim is allocated elsewhere"
}

// removeStray removes CDI specs and device metadata of claims that have no record.
func (r *reconciler) removeStray(ctx context.Context) error {
	uids, err := r.config.Specs.Claims()
	errs := []error{err}
	for _, uid := range uids {
		removed, err := r.removeStraySpec(ctx, uid)
		errs = append(errs, err)
		if removed {
			r.metrics.reconciled.WithLabelValues(actionSpecRemoved).Inc()
		}
	}
	_ = r.records() // sweeping must know of the claims that another plugin process prepared
	return errors.Join(append(errs, r.metadata.sweep(r.mayBePrepared))...)
}

func (r *reconciler) removeStraySpec(ctx context.Context, uid types.UID) (removed bool, err error) {
	if r.mayBePrepared(uid) {
		return false, nil
	}
	unlock, err := r.lockClaim(ctx, uid)
	if err != nil {
		return false, err
	}
	defer unlock()
	if r.mayBePrepared(uid) {
		return false, nil
	}
	if err := r.config.Specs.RemoveClaim(uid); err != nil {
		return false, fmt.Errorf("remove the CDI spec of claim UID %s, which is not prepared: %w", uid, err)
	}
	// In a rolling update the other plugin may have prepared the claim meanwhile.
	record, ok := r.store.Get(uid)
	if ok {
		_, err = r.realizeStored(ctx, record)
	}
	return !ok, err
}

func (d *Driver) isPrepared(uid types.UID) bool {
	_, ok := d.store.Get(uid)
	return ok
}

// mayBePrepared reports whether the claim has a record, or may only lack it because the record was just
// found damaged, by this very look, and is not rebuilt yet.
func (r *reconciler) mayBePrepared(uid types.UID) bool {
	return r.isPrepared(uid) || r.damaged.pending()
}

// ensureSpecs makes sure that the CDI specs of every prepared claim are there: the kubelet prepares
// nothing when it restarts a container, and a spec that somebody deleted would be missed only then.
// Before the hardware is known there is nothing to write specs from. What a container
// needs for a GPU that has failed may not be known, after a restart: then the spec stays as it is.
func (r *reconciler) ensureSpecs(ctx context.Context) error {
	if !r.specsReady.Load() {
		return nil
	}
	seen, _ := r.hardware.load()
	var errs []error
	for _, record := range r.records() {
		broken := anyUnhealthy(record, seen)
		err := r.partitions.silent.ofRecord(record)
		if err == nil {
			err = r.ensureSpec(ctx, record.ClaimUID, broken)
		}
		if err == nil && !broken { // Prepare would refuse it
			err = r.ensureMetadata(ctx, record)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("ensure the CDI specs of claim %s/%s: %w", record.Namespace, record.Name, err))
		}
	}
	return errors.Join(errs...)
}

// anyUnhealthy reports whether a device of the record is known to have failed.
func anyUnhealthy(record checkpoint.Record, seen *snapshot) bool {
	return seen != nil && slices.ContainsFunc(record.Devices, func(d checkpoint.Device) bool {
		known, ok := seen.byName[d.Name]
		return ok && !known.gpu.Health.Healthy()
	})
}

// ensureSpec makes sure that the spec of a claim that is prepared is there and right. Of one with a
// broken device, whose spec may be impossible to make, it is enough that it is there and names no other GPU.
func (r *reconciler) ensureSpec(ctx context.Context, uid types.UID, broken bool) error {
	unlock, err := r.lockClaim(ctx, uid)
	if err != nil {
		return err
	}
	defer unlock()
	record, ok := r.store.Get(uid)
	if !ok {
		return nil // unprepared meanwhile
	}
	if needsMaking(record) && record.BootID != r.bootID {
		return nil // of before the reboot: made anew when the kubelet asks for it
	}
	if broken {
		if err := r.config.Specs.Check(specDevices(record)); errors.Is(err, cdi.ErrNodeTaken) {
			klog.FromContext(ctx).Info("Removing the CDI spec of a claim, which would give containers the GPU of others", "claim", klog.KRef(record.Namespace, record.Name), "claimUID", uid, "err", err)
			return r.config.Specs.RemoveClaim(uid)
		}
	}
	realized, err := r.realizeStored(ctx, record)
	if errors.Is(err, errNothingToAdminister) {
		klog.FromContext(ctx).V(2).Info("Left the CDI spec of a claim as it is: a partition that it has adminAccess to is gone", "claim", klog.KRef(record.Namespace, record.Name), "claimUID", uid, "err", err)
		return nil
	}
	if err != nil {
		written, listErr := r.config.Specs.Claims()
		if !broken || !slices.Contains(written, uid) {
			return errors.Join(err, listErr)
		}
		klog.FromContext(ctx).V(2).Info("Left the CDI spec of a claim with a failed GPU as it is", "claim", klog.KRef(record.Namespace, record.Name), "claimUID", uid, "err", err)
	}
	if _, ok := r.store.Get(uid); !ok {
		// In a rolling update the other plugin has unprepared the claim meanwhile.
		return errors.Join(r.config.Specs.RemoveClaim(uid), r.unmake(ctx, record))
	}
	if realized.State = checkpoint.Prepared; err == nil && !sameRecord(record, realized) {
		return r.putRecord(realized) // a killed process had not finished it, or the partition is a new one
	}
	return nil
}

// ensureMetadata makes sure that the device metadata of a prepared claim is there.
func (r *reconciler) ensureMetadata(ctx context.Context, record checkpoint.Record) error {
	requests := make([]string, len(record.Devices))
	for i, device := range record.Devices {
		requests[i] = device.Request
	}
	if _, suspect := r.suspects[record.ClaimUID]; suspect || !r.metadata.missing(record.Namespace, record.Name, record.ClaimUID, requests) {
		return nil
	}
	if err := r.prepareAgain(ctx, &drapb.Claim{Namespace: record.Namespace, Name: record.Name, Uid: string(record.ClaimUID)}); err != nil {
		if !r.isPrepared(record.ClaimUID) {
			return nil // there is nothing to write it for any more
		}
		return err
	}
	r.metrics.reconciled.WithLabelValues(actionMetadataEnsured).Inc()
	return nil
}

// askAgainKey marks a call of Prepare by the plugin itself. It must not prepare a claim that the kubelet has unprepared
// since: nobody would unprepare it again.
const askAgainKey = "switchyard-ask-again"

// asksAgain reports whether it is the plugin itself that calls.
func asksAgain(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, askAgainKey)) > 0
}

// callPrepare asks the plugin itself to prepare a claim, as the kubelet would: only the helper, on the
// way of such a call, writes device metadata.
func (d *Driver) callPrepare(ctx context.Context, claim *drapb.Claim) (finalErr error) {
	conn, err := dial(serviceSocket(d.config))
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, conn.Close()) }()
	ctx = metadata.AppendToOutgoingContext(ctx, askAgainKey, "true")
	resp, err := drapb.NewDRAPluginClient(conn).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{claim}})
	if err != nil {
		return err
	}
	if message := resp.GetClaims()[claim.GetUid()].GetError(); message != "" {
		return errors.New(message)
	}
	return nil
}
