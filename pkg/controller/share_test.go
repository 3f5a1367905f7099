// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"maps"
	"slices"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func sliceOfTwo(name string) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: name}}
	for i := range int64(2) {
		slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
			Name: "gpu",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
				"product": {StringValue: ptr.To("H100")}, "driver": {VersionValue: ptr.To("580.0.0")}, "mig": {BoolValue: ptr.To(true)},
				"index": {IntValue: &i}, "id": {StringValue: ptr.To(name + string(rune('0'+i)))}, "memory": {StringValue: ptr.To("H100")},
				"numa": {IntValues: []int64{i}},
			},
			Capacity: map[resourceapi.QualifiedName]resourceapi.DeviceCapacity{"memory": {Value: resource.MustParse("80Gi")}},
		})
	}
	slice.Spec.Devices = append(slice.Spec.Devices, resourceapi.Device{
		Name: "nic", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"product": {BoolValue: ptr.To(false)}, "port": {IntValue: ptr.To[int64](1)}},
	}, resourceapi.Device{Name: "bare"})
	return slice
}

// names are the addresses of the names in the maps.
func names(slices ...*resourceapi.ResourceSlice) map[*byte]bool {
	at := map[*byte]bool{}
	for _, slice := range slices {
		for _, d := range slice.Spec.Devices[:2] {
			for name := range d.Attributes {
				at[unsafe.StringData(string(name))] = true
			}
			for name := range d.Capacity {
				at[unsafe.StringData(string(name))] = true
			}
		}
	}
	return at
}

func TestDevicesShareWhatIsEqual(t *testing.T) {
	var shared sharer
	a, b := decoded(t, sliceOfTwo("a")), decoded(t, sliceOfTwo("a"))
	// The last device of a slice has no part in it: the next begins with the one before.
	a.Spec.Devices, b.Spec.Devices = a.Spec.Devices[:2], b.Spec.Devices[:2]
	want := b.DeepCopy()
	shared.share(a)
	shared.share(b)
	if diff := cmp.Diff(want, b); diff != "" {
		t.Errorf("the slice has changed (-want +got):\n%s", diff)
	}
	for _, d := range []resourceapi.Device{a.Spec.Devices[1], b.Spec.Devices[0], b.Spec.Devices[1]} {
		first := a.Spec.Devices[0].Attributes
		if d.Attributes["product"].StringValue != first["product"].StringValue || d.Attributes["driver"].VersionValue != first["driver"].VersionValue ||
			d.Attributes["mig"].BoolValue != first["mig"].BoolValue {
			t.Errorf("a device has a copy of values that are equal: %+v", d.Attributes)
		}
	}
	if got := len(names(a, b)); got != 8 {
		t.Errorf("four devices have %d names, want 8, shared", got)
	}
}

// Whatever comes one after the other.
func TestSharingChangesNothing(t *testing.T) {
	var shared sharer
	for range 2 {
		for _, devices := range [][]int{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0}, {3}, {}, {1, 3, 0}} {
			slice := sliceOfTwo("a")
			all := slices.Clone(slice.Spec.Devices)
			slice.Spec.Devices = nil
			for _, i := range devices {
				slice.Spec.Devices = append(slice.Spec.Devices, all[i])
			}
			slice = decoded(t, slice)
			want := slice.DeepCopy()
			shared.share(slice)
			if diff := cmp.Diff(want, slice); diff != "" {
				t.Fatalf("%v have changed (-want +got):\n%s", devices, diff)
			}
			for _, d := range slice.Spec.Devices {
				for name := range maps.Keys(d.Attributes) {
					if _, ok := d.Attributes[name]; !ok {
						t.Fatalf("%s is not found", name)
					}
				}
			}
		}
	}
}
