// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	k8stesting "k8s.io/client-go/testing"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// sharedBy is a change of the configuration: the GPUs are shared.
func sharedBy(t *testing.T, gpus string, maxClaims int) func(*Config) {
	return func(c *Config) {
		c.Shares = []NodeShares{{
			Field: "shares[0]", GPUs: must[device.Selection](t)(device.ParseSelection(gpus)),
			Shares: device.Shares{Strategy: string(v1alpha1.TimeSlicingStrategy), MaxClaims: maxClaims, MemoryStep: 1 << 30},
		}}
	}
}

// forms says how each GPU is published: "whole" or "share" with the number of claims, and "waits" for one with the
// taint.
func (p *testPlugin) forms() []string {
	p.t.Helper()
	var forms []string
	for _, slice := range p.desired.Pools[testNode].Slices {
		for _, d := range slice.Devices {
			form := "whole"
			if shares, ok := d.Capacity[resourcemodel.CapacityShares]; ok {
				form = "share " + shares.Value.String()
			}
			if *d.Attributes[resourcemodel.AttributeType].StringValue == resourcemodel.TypeShare != (d.AllowMultipleAllocations != nil) {
				p.t.Errorf("device %s is of type %s, with multiple allocations %v", d.Name, *d.Attributes[resourcemodel.AttributeType].StringValue, d.AllowMultipleAllocations)
			}
			if slices.ContainsFunc(d.Taints, func(t resourceapi.DeviceTaint) bool { return t.Key == resourcemodel.TaintReconfiguring }) {
				form += " waits"
			}
			forms = append(forms, form)
		}
	}
	return forms
}

// look has the plugin look at the hardware, and the API server take what it publishes.
func (m *testMachine) look(p *testPlugin) {
	m.t.Helper()
	p.discovery.look(p.ctx)
	m.published(p)
}

// published makes the API server's slices what the plugin publishes.
func (m *testMachine) published(p *testPlugin) {
	m.t.Helper()
	client := m.client.ResourceV1().ResourceSlices()
	if err := client.DeleteCollection(p.ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		m.t.Fatal(err)
	}
	for _, slice := range p.desired.Pools[testNode].Slices {
		object := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{GenerateName: "slice-"}, Spec: resourceapi.ResourceSliceSpec{Driver: v1alpha1.DriverName, Pool: resourceapi.ResourcePool{Name: testNode}, Devices: slice.Devices}}
		must[*resourceapi.ResourceSlice](m.t)(client.Create(p.ctx, object, metav1.CreateOptions{}))
	}
}

// lookFor looks at the hardware every ten seconds, for a while.
func (m *testMachine) lookFor(p *testPlugin, while time.Duration) {
	m.t.Helper()
	for end := m.clock.Now().Add(while); m.clock.Now().Before(end); {
		m.clock.Step(10 * time.Second)
		m.look(p)
	}
}

func (m *testMachine) expectForms(p *testPlugin, want ...string) {
	m.t.Helper()
	if got := p.forms(); !slices.Equal(got, want) {
		m.t.Fatalf("the GPUs are published as %q, want %q", got, want)
	}
}

func newSharingMachine(t *testing.T, gpuCount int) *testMachine {
	m := newMachine(t, gpuCount)
	for i := range m.platform.inv.GPUs {
		m.platform.inv.GPUs[i].Multiprocessors = 132
	}
	return m
}

// share stores a claim with a share of the i-th GPU.
func (m *testMachine) share(name string, i int) *resourceapi.ResourceClaim {
	r := result("gpus", testNode, gpu(i))
	id := types.UID(name + "-share")
	r.ShareID = &id
	return m.store(name, allocated([]resourceapi.DeviceRequestAllocationResult{r}))
}

func TestANewNodeSharesItsGPUsAtOnce(t *testing.T) {
	m := newSharingMachine(t, 2)
	p := m.start(sharedBy(t, "0", 4))
	m.look(p)
	m.expectForms(p, "share 4", "whole")
}

func TestAGPUIsSharedOnceNobodyHasIt(t *testing.T) {
	m := newSharingMachine(t, 2)
	p := m.start()
	m.look(p)
	held := m.claim("held", gpu(0))
	p.reconciler.reconcile(p.ctx)
	p.mustPrepare(held)

	p = m.start(sharedBy(t, "all", 4))
	m.look(p)
	m.expectForms(p, "whole waits", "whole waits")
	m.clock.Step(time.Second)
	m.look(p) // sees the taint
	m.clock.Step(9 * time.Second)
	m.look(p)
	m.expectForms(p, "whole waits", "whole waits") // a scheduler may still write what it decided before
	m.clock.Step(time.Second)
	m.look(p)
	m.expectForms(p, "whole waits", "share 4")
	m.lookFor(p, time.Hour)
	m.expectForms(p, "whole waits", "share 4")

	p.mustUnprepare(held)
	m.lookFor(p, 10*time.Minute)
	m.expectForms(p, "whole waits", "share 4") // it is allocated all the same
	m.deleteClaim(held)
	m.lookFor(p, 10*time.Minute)
	m.expectForms(p, "share 4", "share 4")
}

// Only the API server can say whether what was prepared before a reboot will be again.
func TestARecordOfBeforeARebootDoesNotKeepTheForm(t *testing.T) {
	m := newSharingMachine(t, 1)
	p := m.ready()
	m.published(p)
	claim := m.claim("held", gpu(0))
	p.mustPrepare(claim)
	m.reboot()
	p = m.start(sharedBy(t, "all", 4))
	m.look(p)
	m.lookFor(p, time.Minute)
	m.expectForms(p, "whole waits")
	m.deleteClaim(claim)
	m.lookFor(p, 10*time.Minute)
	m.expectForms(p, "share 4")
	if !p.isPrepared(claim.UID) {
		t.Error("there is no record of before the reboot any more")
	}
}

func TestSharesAreTakenAwayOnceNobodyHasOne(t *testing.T) {
	for name, change := range map[string]struct {
		config func(*Config)
		waits  string
		after  string
	}{
		"the GPU is not to be shared any more": {func(*Config) {}, "share 4 waits", "whole"},
		"it is to be shared by more":           {sharedBy(t, "all", 8), "share 4 waits", "share 8"},
	} {
		t.Run(name, func(t *testing.T) {
			m := newSharingMachine(t, 1)
			p := m.start(sharedBy(t, "all", 4))
			m.look(p)
			allocated := m.share("a", 0)

			m.reboot() // allocations outlive it, and so must the form
			p = m.start(change.config)
			m.look(p)
			m.expectForms(p, change.waits)
			m.lookFor(p, time.Hour)
			m.expectForms(p, change.waits)
			m.deleteClaim(allocated)
			m.lookFor(p, 10*time.Minute)
			m.expectForms(p, change.after)
			p = m.start(change.config)
			m.look(p)
			m.expectForms(p, change.after)
		})
	}
}

func TestAChangeThatIsTakenBackLeavesTheFormAsItIs(t *testing.T) {
	m := newSharingMachine(t, 1)
	p := m.start(sharedBy(t, "all", 4))
	m.look(p)
	m.share("a", 0)
	p = m.start()
	m.look(p)
	m.expectForms(p, "share 4 waits")
	p = m.start(sharedBy(t, "all", 4))
	m.look(p)
	m.expectForms(p, "share 4")
}

func TestTheFormStaysWhileTheAPIServerDoesNotSayWhoHasTheGPU(t *testing.T) {
	m := newSharingMachine(t, 1)
	p := m.start()
	m.look(p)
	fail := true
	m.client.PrependReactor("list", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		return fail, nil, errors.New("the API server is away")
	})
	p = m.start(sharedBy(t, "all", 4))
	m.look(p)
	m.lookFor(p, time.Minute)
	m.expectForms(p, "whole waits")
	fail = false
	m.lookFor(p, 20*time.Second)
	m.expectForms(p, "share 4")
}

func TestTheFormStaysWhenItCannotBeSaved(t *testing.T) {
	m := newSharingMachine(t, 1)
	p := m.start(sharedBy(t, "all", 4))
	path := p.discovery.forms.path
	p.discovery.forms.path = filepath.Join(m.dir, "missing", "shares.json")
	m.look(p)
	m.expectForms(p, "whole waits")
	p.discovery.forms.path = path
	m.lookFor(p, 20*time.Second)
	m.expectForms(p, "share 4")
}

// Of a file that is lost nothing is taken for granted: the GPU is given to nobody until all have ended.
func TestALostFormIsAskedOfTheAPIServer(t *testing.T) {
	for name, content := range map[string]string{
		"no JSON": "{", "another version": `{"version": 2}`, "no shares": `{"version": 1, "gpus": {"gpu-0": {}}}`,
	} {
		t.Run(name, func(t *testing.T) {
			m := newSharingMachine(t, 1)
			p := m.start(sharedBy(t, "all", 4))
			m.look(p)
			claim := m.share("a", 0)
			if err := os.WriteFile(p.discovery.forms.path, []byte(content), 0o600); err != nil {
				t.Fatal(err)
			}
			p = m.start(sharedBy(t, "all", 4))
			m.look(p)
			m.expectForms(p, "whole waits")
			m.lookFor(p, time.Minute)
			m.expectForms(p, "whole waits")
			m.deleteClaim(claim)
			m.lookFor(p, 10*time.Minute)
			m.expectForms(p, "share 4")
		})
	}
}

func TestAGPUThatCannotBeSharedIsPublishedWholeAndToldOf(t *testing.T) {
	m := newSharingMachine(t, 2)
	m.platform.inv.GPUs[0].Multiprocessors = 0
	p := m.start(sharedBy(t, "all", 4))
	m.look(p)
	m.expectForms(p, "whole", "share 4")
	m.expectEvent("GPUNotShared", gpu(0), "shares[0]", "multiprocessors")
	m.look(p)
	for len(m.events.Events) > 0 {
		if event := <-m.events.Events; strings.Contains(event, "GPUNotShared") {
			t.Errorf("told again: %s", event)
		}
	}
}

func TestAGPUInMIGModeKeepsItsSharesUntilTheyEnd(t *testing.T) {
	m := newSharingMachine(t, 1)
	p := m.start(sharedBy(t, "all", 4))
	m.look(p)
	claim := m.share("a", 0)
	inv := gpus(1)
	inv.GPUs[0].Multiprocessors, inv.GPUs[0].MIGEnabled, inv.GPUs[0].MIG = 132, true, &device.MIG{Profiles: []mig.Profile{}}
	m.platform.set(inv, nil)
	m.lookFor(p, time.Minute)
	m.expectForms(p, "share 4 waits")
	m.deleteClaim(claim)
	m.lookFor(p, 10*time.Minute)
	m.expectForms(p, "whole")
}

// A claim that holds a GPU for days must not have every node list all claims every ten seconds.
func TestTheAPIServerIsAskedRarelyWhileAGPUIsHeld(t *testing.T) {
	m := newSharingMachine(t, 1)
	p := m.start()
	m.look(p)
	held := m.claim("held", gpu(0))
	asked := 0
	m.client.PrependReactor("list", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		asked++
		return false, nil, nil
	})
	p = m.start(sharedBy(t, "all", 4))
	m.look(p)
	m.lookFor(p, time.Hour)
	if asked > 20 {
		t.Errorf("the claims were listed %d times in an hour", asked)
	}
	p.reconciler.reconcile(p.ctx)
	p.mustPrepare(held)
	asked = 0
	m.lookFor(p, time.Hour)
	if asked > 1 {
		t.Errorf("the claims were listed %d times although the GPU is prepared here", asked)
	}
}
