// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/cdi"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// recordOf is the record of a claim as it is prepared. With an error it is what could be made of it.
func (d *Driver) recordOf(claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult, configs []v1alpha1.Config, seen *snapshot) (checkpoint.Record, error) {
	d.setDefaultTimeSlice(configs)
	record := newRecord(claim, results, d.bootID, seen.uuid)
	if err := applySharing(&record, configs, seen); err != nil {
		return record, err
	}
	return record, limitShares(&record, seen)
}

// newRecord describes an allocation for the checkpoint. uuid returns the hardware behind a device.
func newRecord(claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult, bootID string, uuid func(device string) string) checkpoint.Record {
	record := checkpoint.Record{
		ClaimUID:  claim.UID,
		Namespace: claim.Namespace,
		Name:      claim.Name,
		BootID:    bootID,
		State:     checkpoint.Prepared,
		Devices:   make([]checkpoint.Device, len(results)),
	}
	for i, result := range results {
		record.Devices[i] = checkpoint.Device{
			Request:          result.Request,
			Pool:             result.Pool,
			Name:             result.Device,
			UUID:             uuid(result.Device),
			ShareID:          ptr.Deref(result.ShareID, ""),
			ConsumedCapacity: quantities(result.ConsumedCapacity),
			AdminAccess:      ptr.Deref(result.AdminAccess, false),
		}
	}
	return record
}

// quantities are what a share consumes, in the one spelling that a quantity has.
func quantities(consumed map[resourceapi.QualifiedName]resource.Quantity) map[string]string {
	if len(consumed) == 0 {
		return nil
	}
	texts := make(map[string]string, len(consumed))
	for name, quantity := range consumed {
		texts[string(name)] = quantity.String()
	}
	return texts
}

// sameRecord reports whether writing b over a would change nothing. Fields of a newer release are
// carried along and do not count.
func sameRecord(a, b checkpoint.Record) bool {
	return a.ClaimUID == b.ClaimUID && a.Namespace == b.Namespace && a.Name == b.Name && a.BootID == b.BootID && a.State == b.State &&
		slices.EqualFunc(a.Devices, b.Devices, func(x, y checkpoint.Device) bool {
			return x.Request == y.Request && x.Pool == y.Pool && x.Name == y.Name && x.UUID == y.UUID && x.ShareID == y.ShareID && x.AdminAccess == y.AdminAccess &&
				x.TimeSlice == y.TimeSlice && x.MPSDaemon == y.MPSDaemon &&
				x.MPSActiveThreadPercentage == y.MPSActiveThreadPercentage && x.MPSPinnedMemoryBytes == y.MPSPinnedMemoryBytes &&
				maps.Equal(x.ConsumedCapacity, y.ConsumedCapacity)
		})
}

// sameAllocation is sameRecord but for how far the preparation went, and for the UUIDs of partitions, which
// they get when they are made.
func sameAllocation(stored, record checkpoint.Record) bool {
	record.State = stored.State
	record.Devices = slices.Clone(record.Devices)
	for i, d := range record.Devices {
		if _, ok := device.ParsePartitionName(d.Name); ok && i < len(stored.Devices) {
			record.Devices[i].UUID = stored.Devices[i].UUID
		}
	}
	return sameRecord(stored, record)
}

// specDevices lists a record's devices as they appear in its CDI spec. Which instances its partitions
// are only makePartitions knows.
func specDevices(record checkpoint.Record) []cdi.ClaimDevice {
	devices := make([]cdi.ClaimDevice, len(record.Devices))
	for i, d := range record.Devices {
		devices[i] = cdi.ClaimDevice{Name: d.Name, ShareID: d.ShareID}
		if ref, ok := device.ParsePartitionName(d.Name); ok {
			devices[i].Partition.GPU = ref.GPU
		}
	}
	return devices
}

// records lists the records as they are on disk, and makes names agree with them: in a rolling update
// another plugin process prepares and unprepares claims too.
func (d *Driver) records() []checkpoint.Record {
	stale := d.names.copy()
	records := d.store.List()
	for _, record := range records {
		d.names.add(record)
		delete(stale, record.ClaimUID)
	}
	for uid := range stale {
		d.names.remove(uid)
	}
	return records
}

// devicesInUse are the devices that are prepared for claims on this boot; those that only look (KEP-5018) use none.
func (d *Driver) devicesInUse() map[string]bool {
	names := map[string]bool{}
	for _, record := range d.others(checkpoint.Record{}) {
		for _, held := range record.Devices {
			if !held.AdminAccess {
				names[held.Name] = true
			}
		}
	}
	return names
}

// claimNames remembers the namespaces and names of the prepared claims, which the checkpoint does not
// look up quickly. What another process does in a rolling update it learns from Driver.records.
type claimNames struct {
	mu     sync.Mutex
	claims map[types.UID]types.NamespacedName
}

func (n *claimNames) add(record checkpoint.Record) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.claims == nil {
		n.claims = make(map[types.UID]types.NamespacedName)
	}
	n.claims[record.ClaimUID] = types.NamespacedName{Namespace: record.Namespace, Name: record.Name}
}

func (n *claimNames) remove(uid types.UID) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.claims, uid)
}

func (n *claimNames) copy() map[types.UID]types.NamespacedName {
	n.mu.Lock()
	defer n.mu.Unlock()
	return maps.Clone(n.claims)
}

// has reports whether a claim of that namespace and name is prepared, under whatever UID.
func (n *claimNames) has(namespace, name string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.count(types.NamespacedName{Namespace: namespace, Name: name}) > 0
}

// only returns the name of a prepared claim, unless a claim of another UID has the same.
func (n *claimNames) only(uid types.UID) (types.NamespacedName, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	name, ok := n.claims[uid]
	return name, ok && n.count(name) == 1
}

// count tells how many claims have the name. The caller holds mu.
func (n *claimNames) count(name types.NamespacedName) int {
	count := 0
	for _, other := range n.claims {
		if other == name {
			count++
		}
	}
	return count
}

// preparedCollector counts the checkpoint's records when it is asked to, so that preparing a claim
// does not have to.
type preparedCollector struct {
	store                        *checkpoint.Store
	claims, devices, quarantined *prometheus.Desc
}

func newPreparedCollector(store *checkpoint.Store) prometheus.Collector {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc(prometheus.BuildFQName(metricNamespace, metricSubsystem, name), help, nil, nil)
	}
	return &preparedCollector{
		store:       store,
		claims:      desc("prepared_claims", "Claims that are prepared on this node."),
		devices:     desc("prepared_devices", "Devices that are prepared for claims, those with adminAccess not counted."),
		quarantined: desc("quarantined_records", "Checkpoint records that were damaged and moved aside."),
	}
}

// Describe implements [prometheus.Collector].
func (c *preparedCollector) Describe(ch chan<- *prometheus.Desc) {
	ch <- c.claims
	ch <- c.devices
	ch <- c.quarantined
}

// Collect implements [prometheus.Collector].
func (c *preparedCollector) Collect(ch chan<- prometheus.Metric) {
	records := c.store.List()
	devices := 0
	for _, record := range records {
		for _, device := range record.Devices {
			if !device.AdminAccess {
				devices++
			}
		}
	}
	ch <- prometheus.MustNewConstMetric(c.claims, prometheus.GaugeValue, float64(len(records)))
	ch <- prometheus.MustNewConstMetric(c.devices, prometheus.GaugeValue, float64(devices))
	ch <- prometheus.MustNewConstMetric(c.quarantined, prometheus.GaugeValue, float64(len(c.store.Quarantined())))
}
