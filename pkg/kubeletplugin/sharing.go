// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/sharing"
)

// MPSDaemons keeps the control daemons of MPS. *sharing.Daemons implements it; its documentation says with which errors.
type MPSDaemons interface {
	Ensure(ctx context.Context, spec sharing.Spec) (sharing.Endpoint, error)
	Ask(spec sharing.Spec) (sharing.Endpoint, error)
	Remove(ctx context.Context, id string) error
	List() ([]string, error)
	Status(id string) (sharing.Status, error)
}

const (
	// mpsReadyTimeout and mpsGoneTimeout bound what one claim waits for its MPS daemon. The kubelet gives up on a
	// call after 45 s.
	mpsReadyTimeout = 20 * time.Second
	mpsGoneTimeout  = 15 * time.Second

	// mpsPipeDir is where containers have CUDA_MPS_PIPE_DIRECTORY: where CUDA looks without the variable.
	mpsPipeDir = "/tmp/nvidia-mps"
	mpsPipeEnv = "CUDA_MPS_PIPE_DIRECTORY"
	// mpsThreadsEnv and mpsMemoryEnv are limits of a program on top of the daemon's own: percent of the multiprocessors,
	// and "<device>=<number>M" (CUDA Multi-Process Service, "Environment Variables").
	mpsThreadsEnv = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
	mpsMemoryEnv  = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
)

// needsMaking reports whether something has to be made or set for a record, beside its CDI spec.
func needsMaking(record checkpoint.Record) bool {
	return hasPartitions(record) || slices.ContainsFunc(record.Devices, func(d checkpoint.Device) bool {
		return d.MPSDaemon != "" || d.TimeSlice != ""
	})
}

// daemonsOf are the MPS daemons of a record.
func daemonsOf(record checkpoint.Record) []string {
	var ids []string
	for _, d := range record.Devices {
		if d.MPSDaemon != "" && !slices.Contains(ids, d.MPSDaemon) {
			ids = append(ids, d.MPSDaemon)
		}
	}
	return ids
}

// others are the records on this boot but for that of one claim.
func (d *Driver) others(record checkpoint.Record) []checkpoint.Record {
	return slices.DeleteFunc(d.store.List(), func(other checkpoint.Record) bool {
		return other.ClaimUID == record.ClaimUID || other.BootID != d.bootID
	})
}

// users are the records on this boot, but for that of one claim, for which things are to stay as they are: those of claims
// that are being unprepared are not among them. So of several claims that go at the same time the last one takes back
// what they had together.
func (d *Driver) users(record checkpoint.Record) []checkpoint.Record {
	return slices.DeleteFunc(d.others(record), func(other checkpoint.Record) bool {
		_, leaves := d.leaving.Load(other.ClaimUID)
		return leaves
	})
}

// leave says that a claim is being unprepared, until the function that it returns is called.
func (d *Driver) leave(uid types.UID) (done func()) {
	d.leaving.Store(uid, nil)
	return func() { d.leaving.Delete(uid) }
}

// startDaemons makes sure that the MPS daemons of a record run, and puts what containers need of them into the devices
// for its CDI spec. Unless it is to wait, they may come later: their places are known.
func (d *Driver) startDaemons(ctx context.Context, record checkpoint.Record, devices []cdi.ClaimDevice, wait bool) error {
	for _, id := range daemonsOf(record) {
		if d.config.MPS == nil {
			return newError(kindUnsupportedConfig, "sharing.strategy: this plugin has no MPS daemons")
		}
		crashAt(crashBeforeDaemon)
		endpoint, err := d.daemonEndpoint(ctx, id, record, wait)
		if err != nil {
			return newError(kindMPS, "%w", err)
		}
		crashAt(crashAfterDaemon)
		for i := range devices {
			if record.Devices[i].MPSDaemon == id {
				devices[i].Sharing = &cdi.Sharing{
					Env: append([]string{mpsPipeEnv + "=" + mpsPipeDir}, shareLimits(record.Devices[i])...),
					Mounts: []cdi.Mount{
						{HostPath: endpoint.PipeDir, ContainerPath: mpsPipeDir},
						{HostPath: endpoint.SharedMemoryDir, ContainerPath: "/dev/shm"},
					},
				}
			}
		}
	}
	return nil
}

func (d *Driver) daemonEndpoint(ctx context.Context, id string, record checkpoint.Record, wait bool) (sharing.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, mpsReadyTimeout)
	defer cancel()
	unlock, err := d.daemons.Lock(ctx, id)
	if err != nil {
		return sharing.Endpoint{}, fmt.Errorf("wait for another claim of MPS daemon %s: %w", id, err)
	}
	defer unlock()
	spec := d.daemonSpec(id, record)
	if !wait {
		return d.config.MPS.Ask(spec)
	}
	return d.config.MPS.Ensure(ctx, spec)
}

// daemonSpec is the daemon of an ID as the records want it, of which one may not be stored like this yet. The daemon of a
// shared GPU has no limits of its own, or each claim would be another daemon: containers have theirs.
func (d *Driver) daemonSpec(id string, record checkpoint.Record) sharing.Spec {
	spec := sharing.Spec{ID: id, BootID: d.bootID}
	for _, r := range append([]checkpoint.Record{record}, d.others(record)...) {
		for _, device := range r.Devices {
			if device.MPSDaemon != id || slices.ContainsFunc(spec.Devices, func(known sharing.Device) bool { return known.UUID == device.UUID }) {
				continue
			}
			if device.ShareID != "" {
				spec.Devices = append(spec.Devices, sharing.Device{UUID: device.UUID})
				continue
			}
			spec.ActiveThreadPercentage = device.MPSActiveThreadPercentage
			spec.Devices = append(spec.Devices, sharing.Device{UUID: device.UUID, PinnedMemoryMiB: device.MPSPinnedMemoryBytes >> 20})
		}
	}
	return spec
}

// stopDaemons ends the MPS daemons of a record, which is leaving, that no other record needs.
func (d *Driver) stopDaemons(ctx context.Context, record checkpoint.Record) error {
	if d.config.MPS == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, mpsGoneTimeout)
	defer cancel()
	for _, id := range daemonsOf(record) {
		if _, err := d.stopDaemon(ctx, id, record); err != nil {
			return newError(kindMPS, "%w", err)
		}
		crashAt(crashAfterDaemonRemoval)
	}
	return nil
}

// stopDaemon ends an MPS daemon, unless a record other than the given one needs it.
func (d *Driver) stopDaemon(ctx context.Context, id string, record checkpoint.Record) (done bool, err error) {
	unlock, err := d.daemons.Lock(ctx, id)
	if err != nil {
		return false, fmt.Errorf("wait for another claim of MPS daemon %s: %w", id, err)
	}
	defer unlock()
	if slices.ContainsFunc(d.users(record), func(other checkpoint.Record) bool { return slices.Contains(daemonsOf(other), id) }) {
		return false, nil
	}
	return true, d.config.MPS.Remove(ctx, id)
}

// checkNeighbours refuses a claim that cannot be used beside what is prepared: a device with other settings, or an MPS
// daemon that would meet another one in a container. The claim's record is written before: of two claims that come
// at the same time at least one sees the other.
func (d *Driver) checkNeighbours(ctx context.Context, claim *resourceapi.ResourceClaim, record checkpoint.Record) error {
	if !slices.ContainsFunc(record.Devices, func(d checkpoint.Device) bool { return d.MPSDaemon != "" || d.TimeSlice != "" || d.ShareID != "" }) {
		return nil
	}
	others := d.others(record)
	for _, mine := range record.Devices {
		for _, other := range others {
			for _, theirs := range other.Devices {
				if conflicting(mine, theirs) {
					return newError(kindInvalidConfig, "request %s: sharing: claim %s/%s is prepared with device %s and other settings (%s, and here %s): use the same, or another device",
						mine.Request, other.Namespace, other.Name, mine.Name, describeSharing(theirs), describeSharing(mine))
				}
			}
		}
	}
	if len(daemonsOf(record)) == 0 {
		return nil
	}
	return d.checkContainers(ctx, claim, record, others)
}

// conflicting reports whether two devices are one that cannot have the settings of both.
func conflicting(a, b checkpoint.Device) bool {
	return a.Name == b.Name && a.Pool == b.Pool && !a.AdminAccess && !b.AdminAccess && (a.TimeSlice != b.TimeSlice || a.MPSDaemon != b.MPSDaemon)
}

func describeSharing(device checkpoint.Device) string {
	switch {
	case device.MPSDaemon != "":
		return "MPS"
	case device.TimeSlice != "":
		return "time slice " + device.TimeSlice
	}
	return "none"
}

// checkContainers refuses a claim with MPS if a container has another one: CUDA uses one daemon, and a program has one set
// of limits.
func (d *Driver) checkContainers(ctx context.Context, claim *resourceapi.ResourceClaim, record checkpoint.Record, others []checkpoint.Record) error {
	others = slices.DeleteFunc(others, func(other checkpoint.Record) bool {
		return other.Namespace != record.Namespace || len(daemonsOf(other)) == 0
	})
	if len(others) == 0 {
		return nil
	}
	for _, user := range claim.Status.ReservedFor {
		if user.APIGroup != "" || user.Resource != "pods" {
			continue
		}
		pod, err := d.config.KubeClient.CoreV1().Pods(claim.Namespace).Get(ctx, user.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return newError(kindNotReady, "read pod %s/%s, to see whether a container has two claims with MPS: %w", claim.Namespace, user.Name, err)
		}
		if pod.UID != user.UID {
			continue
		}
		for _, container := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
			used := claimsOf(pod, container)
			if !slices.Contains(used, claim.Name) {
				continue
			}
			for _, other := range others {
				if slices.Contains(used, other.Name) {
					return newError(kindInvalidConfig, "sharing.strategy: container %s of pod %s/%s uses the claims %s and %s, which both have MPS, and a program uses one MPS daemon and has one set of limits: put the devices, or for shares of one GPU all that it needs, into one claim, or the claims into two containers",
						container.Name, pod.Namespace, pod.Name, claim.Name, other.Name)
				}
			}
		}
	}
	return nil
}

// claimsOf lists the names of the ResourceClaims that a container uses, also that which kube-scheduler made for extended
// resources (KEP-5004).
func claimsOf(pod *corev1.Pod, container corev1.Container) []string {
	var names []string
	for i := range pod.Spec.ResourceClaims {
		entry := &pod.Spec.ResourceClaims[i]
		if !slices.ContainsFunc(container.Resources.Claims, func(used corev1.ResourceClaim) bool { return used.Name == entry.Name }) {
			continue
		}
		if name, _, err := resourceclaim.Name(pod, entry); err == nil && name != nil {
			names = append(names, *name)
		}
	}
	if status := pod.Status.ExtendedResourceClaimStatus; status != nil && slices.ContainsFunc(status.RequestMappings, func(m corev1.ContainerExtendedResourceRequest) bool { return m.ContainerName == container.Name }) {
		names = append(names, status.ResourceClaimName)
	}
	return names
}

// removeOrphanSharing ends MPS daemons and takes back settings of GPUs that no record wants.
func (r *reconciler) removeOrphanSharing(ctx context.Context) error {
	return errors.Join(r.removeOrphanDaemons(ctx), r.removeOrphanSettings(ctx))
}

func (r *reconciler) removeOrphanDaemons(ctx context.Context) error {
	if r.config.MPS == nil {
		return nil
	}
	ids, err := r.config.MPS.List()
	errs := []error{err}
	wanted := r.others(checkpoint.Record{})
	for _, id := range ids {
		if r.damaged.pending() || slices.ContainsFunc(wanted, func(record checkpoint.Record) bool { return slices.Contains(daemonsOf(record), id) }) {
			continue
		}
		bounded, cancel := context.WithTimeout(ctx, mpsGoneTimeout)
		done, err := r.stopDaemon(bounded, id, checkpoint.Record{})
		cancel()
		errs = append(errs, err)
		if done && err == nil {
			r.metrics.reconciled.WithLabelValues(actionDaemonRemoved).Inc()
		}
	}
	return errors.Join(errs...)
}

func (r *reconciler) removeOrphanSettings(ctx context.Context) error {
	gpus, err := r.settings.list()
	errs := []error{err}
	seen, _ := r.hardware.load()
	for _, name := range gpus {
		known, ok := seen.find(name)
		if !ok || !known.gpu.Health.Healthy() || r.damaged.pending() {
			continue // it may come back
		}
		want := func() gpuSettings { return settingsOf(name, r.users(checkpoint.Record{})) }
		errs = append(errs, r.settings.settle(ctx, name, known.gpu.UUID, want, false))
	}
	return errors.Join(errs...)
}

// settingsOf are the settings of a GPU that records want.
func settingsOf(gpu string, records []checkpoint.Record) gpuSettings {
	var want gpuSettings
	for _, record := range records {
		for _, dev := range record.Devices {
			if dev.Name != gpu || dev.AdminAccess {
				continue
			}
			want.exclusive = want.exclusive || dev.MPSDaemon != ""
			if dev.TimeSlice != "" {
				want.timeSlice = dev.TimeSlice
			}
		}
	}
	return want
}

// applySettings makes the settings of a record's GPUs as they are wanted, also of those that want none: an earlier
// claim may have left some. Those that are there already are set again if always says so.
func (d *Driver) applySettings(ctx context.Context, record checkpoint.Record, always bool) error {
	for _, dev := range record.Devices {
		if _, partition := device.ParsePartitionName(dev.Name); partition || dev.AdminAccess {
			continue
		}
		if dev.MPSDaemon == "" && dev.TimeSlice == "" && !d.settings.has(dev.Name) {
			continue
		}
		want := func() gpuSettings { return settingsOf(dev.Name, append(d.users(record), record)) }
		if err := d.settings.settle(ctx, dev.Name, dev.UUID, want, always); err != nil {
			return newError(kindSettings, "device %s: %w", dev.Name, err)
		}
		crashAt(crashAfterSettings)
	}
	return nil
}

// restoreSettings takes the settings of the GPUs of a record, which is leaving, back that no other record wants; the
// reconciler may have done it already. What cannot be taken back now is by the reconciler, or when the GPU is handed
// out the next time.
func (d *Driver) restoreSettings(ctx context.Context, record checkpoint.Record) {
	for _, dev := range record.Devices {
		if dev.AdminAccess {
			continue
		}
		if d.settings.has(dev.Name) {
			want := func() gpuSettings { return settingsOf(dev.Name, d.users(record)) }
			if err := d.settings.settle(ctx, dev.Name, dev.UUID, want, false); err != nil {
				klog.FromContext(ctx).Error(err, "Left a setting of a GPU to be taken back later", "device", dev.Name)
				d.requestReconcile(false)
				continue
			}
		}
		crashAt(crashAfterSettingsRestored)
	}
}
