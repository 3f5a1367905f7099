// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// sharingNode is a machine whose GPUs are shared, with a plugin that is ready.
func sharingNode(t *testing.T, gpuCount int) (*testMachine, *testPlugin) {
	t.Helper()
	m := newSharingMachine(t, gpuCount)
	p := m.start(sharedBy(t, "all", 4))
	m.look(p)
	p.reconciler.reconcile(p.ctx)
	return m, p
}

func TestFieldCase13_SharesOfOneDeviceHaveNamesOfTheirOwn(t *testing.T) {
	m, p := sharingNode(t, 1)
	var results []resourceapi.DeviceRequestAllocationResult
	for _, share := range []types.UID{"share-1", "share-2"} {
		r := result("gpus", testNode, gpu(0))
		r.ShareID = &share
		results = append(results, r)
	}
	devices := p.mustPrepare(m.store("a", allocated(results)))
	if devices[0].CDIDeviceIDs[0] == devices[1].CDIDeviceIDs[0] {
		t.Errorf("both shares are called %s", devices[0].CDIDeviceIDs[0])
	}
	for i, want := range []types.UID{"share-1", "share-2"} {
		if got := ptr.Deref(devices[i].ShareID, ""); got != want {
			t.Errorf("share ID of result %d = %q, want %q", i, got, want)
		}
	}
}

func TestClaimsHaveSharesOfOneGPUAtTheSameTime(t *testing.T) {
	m, p := sharingNode(t, 1)
	for _, name := range []string{"a", "b", "c", "d"} {
		claim := m.share(name, 0)
		p.mustPrepare(claim)
		p.mustPrepare(claim) // again, as after a restart of the kubelet
	}
	p.mustRefuse(m.claim("whole", gpu(0)), "is prepared for claim")
	p = m.start(sharedBy(t, "all", 4))
	m.look(p)
	p.reconciler.reconcile(p.ctx)
	p.mustPrepare(m.share("e", 0))
	m.expectForms(p, "share 4")
}

func TestTheRecordOfAShareKeepsWhatItConsumes(t *testing.T) {
	m, p := sharingNode(t, 1)
	r := result("gpus", testNode, gpu(0))
	r.ShareID = ptr.To(types.UID("share"))
	r.ConsumedCapacity = map[resourceapi.QualifiedName]resource.Quantity{
		resourcemodel.CapacityMemory: resource.MustParse("10240Mi"), resourcemodel.CapacityMultiprocessors: resource.MustParse("33"),
	}
	claim := m.store("a", allocated([]resourceapi.DeviceRequestAllocationResult{r}))
	p.mustPrepare(claim)
	p = m.start(sharedBy(t, "all", 4)) // reads it from disk
	record, ok := p.store.Get(claim.UID)
	if !ok || len(record.Devices) != 1 {
		t.Fatalf("record %v, %t", record, ok)
	}
	got := record.Devices[0]
	if got.ShareID != "share" || got.ConsumedCapacity["memory"] != "10Gi" || got.ConsumedCapacity["multiprocessors"] != "33" {
		t.Errorf("the record says %+v", got)
	}
}

func TestAShareSaysNothingAboutHowTheGPUIsShared(t *testing.T) {
	m, p := sharingNode(t, 1)
	for name, parameters := range map[string]string{
		"mps":   `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"MPS"}}`,
		"slice": `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"TimeSlicing"}}`,
	} {
		r := result("gpus", testNode, gpu(0))
		r.ShareID = ptr.To(types.UID(name))
		claim := allocated([]resourceapi.DeviceRequestAllocationResult{r})
		claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: v1alpha1.DriverName, Parameters: runtime.RawExtension{Raw: []byte(parameters)},
			}},
		}}
		p.mustRefuse(m.store(name, claim), "ResourceClaim for request gpus", "sharing: must not be set", "node configuration")
	}
}

func TestAShareOfAGPUThatIsNotSharedIsRefused(t *testing.T) {
	m := newSharingMachine(t, 1)
	p := m.ready()
	p.mustRefuse(m.share("a", 0), "request gpus", gpu(0), "not shared on this node")
}

func TestTheNodesTimeSliceIsForClaimsWithoutOne(t *testing.T) {
	with := func(strategy v1alpha1.SharingStrategy, slicing *v1alpha1.TimeSlicingConfig) *v1alpha1.Sharing {
		return &v1alpha1.Sharing{Strategy: strategy, TimeSlicing: slicing}
	}
	for name, test := range map[string]struct {
		config v1alpha1.Config
		want   v1alpha1.TimeSliceInterval
	}{
		"no sharing":           {&v1alpha1.GPUConfig{}, ""},
		"MPS":                  {&v1alpha1.GPUConfig{Sharing: with(v1alpha1.MPSStrategy, nil)}, ""},
		"no settings":          {&v1alpha1.GPUConfig{Sharing: with(v1alpha1.TimeSlicingStrategy, nil)}, v1alpha1.LongTimeSlice},
		"no interval":          {&v1alpha1.GPUConfig{Sharing: with(v1alpha1.TimeSlicingStrategy, &v1alpha1.TimeSlicingConfig{})}, v1alpha1.LongTimeSlice},
		"an interval":          {&v1alpha1.GPUConfig{Sharing: with(v1alpha1.TimeSlicingStrategy, &v1alpha1.TimeSlicingConfig{Interval: v1alpha1.ShortTimeSlice})}, v1alpha1.ShortTimeSlice},
		"a partition has none": {&v1alpha1.MIGConfig{Sharing: with(v1alpha1.TimeSlicingStrategy, nil)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			d := &Driver{config: Config{DefaultTimeSlice: v1alpha1.LongTimeSlice}}
			d.setDefaultTimeSlice([]v1alpha1.Config{test.config})
			var got v1alpha1.TimeSliceInterval
			if sharing := test.config.SharingConfig(); sharing != nil && sharing.TimeSlicing != nil {
				got = sharing.TimeSlicing.Interval
			}
			if got != test.want {
				t.Errorf("interval %q, want %q", got, test.want)
			}
		})
	}
}
