// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// partitionOperations is how many random operations one test makes.
const partitionOperations = 200

// TestRandomPartitionOperations prepares and unprepares random partitions, those that overlap others
// included, restarts the plugin now and then, and compares after each operation what NVML has, what the
// checkpoint and the ledger say, which CDI specs there are, and what the published counters leave.
func TestRandomPartitionOperations(t *testing.T) {
	for _, seed := range []uint64{1} {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			m := newMIGMachine(t, "hgx-h100", 2)
			w := &randomPartitions{migMachine: m, t: t, random: rand.New(rand.NewPCG(seed, 0)), claims: map[types.UID]*resourceapi.ResourceClaim{}}
			w.p = m.boot()
			w.readPublished()
			for n := range partitionOperations {
				switch w.random.IntN(10) {
				case 0:
					w.p = m.boot()
				case 1, 2, 3:
					w.unprepareOne()
				default:
					w.prepareOne(n)
				}
				w.compare(n)
			}
			if w.prepared < partitionOperations/10 || w.refused < partitionOperations/10 {
				t.Errorf("%d prepared and %d refused: the operations show little", w.prepared, w.refused)
			}
		})
	}
}

type randomPartitions struct {
	*migMachine
	t      *testing.T
	p      *testPlugin
	random *rand.Rand
	// devices are the published partitions, total the counters of all GPUs.
	devices []resourceapi.Device
	total   map[string]int64
	// claims are those that are prepared.
	claims            map[types.UID]*resourceapi.ResourceClaim
	prepared, refused int
}

func (w *randomPartitions) readPublished() {
	w.total = map[string]int64{}
	for _, slice := range resourcemodel.DriverResources(testNode, w.p.discovery.known).Pools[testNode].Slices {
		for _, set := range slice.SharedCounters {
			for name, counter := range set.Counters {
				w.total[set.Name+"/"+name] = counter.Value.Value()
			}
		}
		for _, d := range slice.Devices {
			if *d.Attributes[resourcemodel.AttributeType].StringValue == resourcemodel.TypeMIG {
				w.devices = append(w.devices, d)
			}
		}
	}
}

// left is what the prepared claims leave of the counters.
func (w *randomPartitions) left() map[string]int64 {
	left := maps.Clone(w.total)
	for _, claim := range w.claims {
		for _, result := range claim.Status.Allocation.Devices.Results {
			i := slices.IndexFunc(w.devices, func(d resourceapi.Device) bool { return d.Name == result.Device })
			for _, consumption := range w.devices[i].ConsumesCounters {
				for name, counter := range consumption.Counters {
					left[consumption.CounterSet+"/"+name] -= counter.Value.Value()
				}
			}
		}
	}
	return left
}

func fitsCounters(left map[string]int64, d resourceapi.Device) bool {
	for _, consumption := range d.ConsumesCounters {
		for name, counter := range consumption.Counters {
			if left[consumption.CounterSet+"/"+name] < counter.Value.Value() {
				return false
			}
		}
	}
	return true
}

// prepareOne prepares a partition that may or may not fit: the counters say which.
func (w *randomPartitions) prepareOne(n int) {
	d := w.devices[w.random.IntN(len(w.devices))]
	fits := fitsCounters(w.left(), d)
	claim := w.claim(fmt.Sprintf("c%d", n), d.Name)
	_, err := w.p.prepare(claim)
	if (err == nil) != fits {
		w.t.Fatalf("operation %d: the counters allow %s: %v, preparing it: %v", n, d.Name, fits, err)
	}
	if err != nil {
		w.refused++
		w.deleteClaim(claim)
		return
	}
	w.prepared++
	w.claims[claim.UID] = claim
}

func (w *randomPartitions) unprepareOne() {
	uids := make([]types.UID, 0, len(w.claims))
	for uid := range w.claims {
		uids = append(uids, uid)
	}
	if len(uids) == 0 {
		return
	}
	slices.Sort(uids)
	uid := uids[w.random.IntN(len(uids))]
	w.p.mustUnprepare(w.claims[uid])
	w.deleteClaim(w.claims[uid])
	delete(w.claims, uid)
}

func (w *randomPartitions) compare(n int) {
	w.t.Helper()
	var wantInstances, wantDevices []string
	for _, claim := range w.claims {
		name := claim.Status.Allocation.Devices.Results[0].Device
		wantDevices = append(wantDevices, name)
		for _, gpu := range w.p.discovery.known.GPUs[:2] {
			for _, place := range gpu.Partitions() {
				if place.Name() == name {
					wantInstances = append(wantInstances, fmt.Sprintf("%d:%d@%d+", gpu.Index, place.Profile.ID, place.Placement.Start))
				}
			}
		}
	}
	slices.Sort(wantInstances)
	slices.Sort(wantDevices)
	instances := w.instances()
	slices.Sort(instances)
	if !slices.Equal(instances, wantInstances) {
		w.t.Fatalf("operation %d: NVML has %v, want %v", n, instances, wantInstances)
	}
	var recorded, noted []string
	for _, record := range w.p.store.List() {
		if record.State != checkpoint.Prepared || len(record.Devices) != 1 || record.Devices[0].UUID == "" {
			w.t.Fatalf("operation %d: record %+v", n, record)
		}
		recorded = append(recorded, record.Devices[0].Name)
	}
	refs, err := w.p.partitions.ledger.list()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, ref := range refs {
		noted = append(noted, ref.Name())
	}
	slices.Sort(recorded)
	slices.Sort(noted)
	if !slices.Equal(recorded, wantDevices) || !slices.Equal(noted, wantDevices) {
		w.t.Fatalf("operation %d: the checkpoint has %v, the ledger %v, want %v", n, recorded, noted, wantDevices)
	}
	specs, err := w.p.config.Specs.Claims()
	if err != nil {
		w.t.Fatal(err)
	}
	if len(specs) != len(w.claims) {
		w.t.Fatalf("operation %d: %d CDI specs of %d claims", n, len(specs), len(w.claims))
	}
	for name, left := range w.left() {
		if left < 0 {
			w.t.Fatalf("operation %d: counter %s is at %d", n, name, left)
		}
	}
	// What is ours makes no taint, so the slices stay as they are.
	w.p.discovery.look(w.p.ctx)
	for _, slice := range resourcemodel.DriverResources(testNode, w.p.discovery.known).Pools[testNode].Slices {
		for _, d := range slice.Devices {
			if len(d.ConsumesCounters) > 0 && *d.Attributes[resourcemodel.AttributeType].StringValue == resourcemodel.TypeMIG && len(d.Taints) > 0 {
				w.t.Fatalf("operation %d: %s has taints %v", n, d.Name, d.Taints)
			}
		}
	}
}
