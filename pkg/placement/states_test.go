// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"testing"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/placement"
)

func TestDevicesThatAreNotSelectedAnyMore(t *testing.T) {
	with := func(selectors ...resourceapi.DeviceSelector) placement.Gang {
		return gangOf("g", 1, 1, func(g *placement.Gang) { g.Claim.Spec.Selectors = selectors })
	}
	one := placement.DeviceID{Driver: driver, Pool: "n", Device: "gpu-1"}
	tests := map[string]struct {
		gang   placement.Gang
		change func(*placement.Cluster)
		want   bool
	}{
		"class and selectors select it":    {gang: with(cel(`device.attributes["gpu.switchyard.dev"].?id.orValue("") == "n-1"`))},
		"no selectors, the class does":     {gang: with()},
		"the selectors do not":             {gang: with(cel(`device.attributes["gpu.switchyard.dev"].?id.orValue("") == "n-2"`)), want: true},
		"a selector errs on it":            {gang: with(cel(`device.attributes["x"].y == "z"`)), want: true},
		"the class is gone":                {gang: with(), change: func(c *placement.Cluster) { c.DeleteClass(driver) }, want: true},
		"one that is too expensive to ask": {gang: with(expensive("false"))},
		"the class does not any more": {gang: with(), want: true, change: func(c *placement.Cluster) {
			class := gpuClass()
			class.Spec.Selectors = []resourceapi.DeviceSelector{cel("false")}
			c.SetClass(class)
		}},
		"the slice changed": {
			gang: with(cel(`device.attributes["gpu.switchyard.dev"].?productName.orValue("new") == "new"`)), want: true,
			change: func(c *placement.Cluster) {
				list := gpus(8, "n.0", 0)
				list[1].product = "old"
				c.SetSlice(sliceOf("n", list...))
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, readyNode("n"))
			for _, node := range []string{"n", "m", "o", "p"} {
				c.SetSlice(hgx(node))
			}
			all := []placement.DeviceID{one}
			for _, pool := range []string{"n", "m", "o", "p"} {
				for _, d := range hgx(pool).Spec.Devices {
					all = append(all, placement.DeviceID{Driver: driver, Pool: pool, Device: d.Name})
				}
			}
			c.DeviceStates(test.gang.Claim, all) // What was evaluated once must not stay.
			if test.change != nil {
				test.change(c)
			}
			state := c.DeviceStates(test.gang.Claim, all)[one]
			if state.NotSelected != test.want || state.Gone || state.Unknown {
				t.Errorf("state %+v, want not selected: %v", state, test.want)
			}
		})
	}
}

// A pool is updated slice by slice: between the first and the last its devices are not gone.
func TestDevicesOfAPoolThatIsBeingUpdatedAreUnknown(t *testing.T) {
	part := func(name string, generation int64, first, count int) *resourceapi.ResourceSlice {
		s := sliceOf("n", gpus(8, "n.0", 0)...)
		s.Name = name
		s.Spec.Devices = s.Spec.Devices[first : first+count]
		s.Spec.Pool.Generation, s.Spec.Pool.ResourceSliceCount = generation, 2
		return s
	}
	gang := gangOf("g", 1, 1)
	state := func(c *placement.Cluster, name string) string {
		id := placement.DeviceID{Driver: driver, Pool: "n", Device: name}
		switch s := c.DeviceStates(gang.Claim, []placement.DeviceID{id})[id]; {
		case s.Gone && s.Unknown:
			return "both"
		case s.Gone:
			return "gone"
		case s.Unknown:
			return "unknown"
		default:
			return s.Domain
		}
	}
	c := clusterOf(t, readyNode("n"))
	expect := func(when, name, want string) {
		t.Helper()
		if got := state(c, name); got != want {
			t.Errorf("%s: %s is %q, want %q", when, name, got, want)
		}
	}
	expect("before there are slices", "gpu-0", "gone")
	c.SetSlice(part("a", 1, 0, 4))
	expect("one of two slices, none complete before", "gpu-7", "unknown")
	c.SetSlice(part("b", 1, 4, 4))
	expect("both slices", "gpu-7", "n.0")
	if got := planOf(t, c, gang); got != "n n.0 ×1: 0" {
		t.Errorf("plan on a complete pool: %q", got)
	}
	c.SetSlice(part("a", 2, 0, 4))
	for _, name := range []string{"gpu-0", "gpu-7"} {
		expect("the first slice of the next generation", name, "unknown")
	}
	expect("a device that was never there", "gpu-9", "gone")
	if got := planOf(t, c, gang); got != "NoFeasibleDomain" {
		t.Errorf("plan on an incomplete pool: %q", got)
	}
	c.SetSlice(part("b", 2, 4, 3))
	expect("the next generation is complete", "gpu-0", "n.0")
	expect("and does not have it", "gpu-7", "gone")
	c.DeleteSlice("a")
	expect("a slice was deleted", "gpu-0", "unknown")
	c.DeleteSlice("b")
	expect("all slices were deleted", "gpu-0", "gone")
}
