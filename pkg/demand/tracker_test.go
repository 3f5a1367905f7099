// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/demand"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const day = 24 * time.Hour

// nodes have the products of pools.
var nodes = map[string]string{"node-a": "H100", "node-b": "A100"}

// user makes objects and tells a tracker of them.
type user struct {
	*demand.Tracker
	clock *clocktesting.FakePassiveClock
}

func newUser() *user {
	clk := clocktesting.NewFakePassiveClock(now)
	return &user{demand.NewTracker(day, clk), clk}
}

func (u *user) wait(d time.Duration) { u.clock.SetTime(u.clock.Now().Add(d)) }

// requests says how many there are, by product and size.
func (u *user) requests() map[string]float64 {
	got := map[string]float64{}
	for _, r := range u.Mix(nodes).Requests {
		got[fmt.Sprintf("%s%d", r.Product, r.Size)] = math.Round(r.Requests*100) / 100
	}
	return got
}

func (u *user) want(t *testing.T, what string, want map[string]float64) {
	t.Helper()
	if diff := cmp.Diff(want, u.requests()); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func pod(name, owner string) *corev1.Pod {
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID("pod-" + name), Name: name},
		Spec:       corev1.PodSpec{ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus"}}},
	}
	if owner != "" {
		p.OwnerReferences = []metav1.OwnerReference{{UID: types.UID(owner), Controller: ptr.To(true), Kind: "ReplicaSet", APIVersion: "apps/v1"}}
	}
	return p
}

func request(count int64) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: count,
	}}
}

// claim is one made now for a pod, where it has a name.
func (u *user) claim(name, pod string, requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID("claim-" + name), Name: name, CreationTimestamp: metav1.NewTime(u.clock.Now())},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
	if pod != "" {
		c.OwnerReferences = []metav1.OwnerReference{{UID: types.UID("pod-" + pod), Controller: ptr.To(true), Kind: "Pod", APIVersion: "v1"}}
	}
	return c
}

// allocated has got the devices.
func allocated(c *resourceapi.ResourceClaim, pool string, devices ...string) *resourceapi.ResourceClaim {
	c = c.DeepCopy()
	c.Status.Allocation = &resourceapi.AllocationResult{}
	for _, d := range devices {
		c.Status.Allocation.Devices.Results = append(c.Status.Allocation.Devices.Results, resourceapi.DeviceRequestAllocationResult{
			Driver: v1alpha1.DriverName, Pool: pool, Device: d,
		})
	}
	return c
}

// runs is a pod that has its GPUs on node-a.
func (u *user) runs(name, owner string, gpus int64) (*corev1.Pod, *resourceapi.ResourceClaim) {
	p, c := pod(name, owner), allocated(u.claim(name, name, request(gpus)), "node-a", "gpu-0")
	u.SetPod(p)
	u.SetClaim(c)
	return p, c
}

func (u *user) ends(p *corev1.Pod, c *resourceapi.ResourceClaim) {
	u.DeletePod(p)
	u.DeleteClaim(c)
}

func (u *user) gang(name string, members, each int32) *v1alpha1.GangClaim {
	return &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{UID: types.UID("gang-" + name), Name: name, CreationTimestamp: metav1.NewTime(u.clock.Now())},
		Spec:       v1alpha1.GangClaimSpec{Members: members, DevicesPerMember: each, DeviceClassName: v1alpha1.DriverName},
	}
}

func TestWhatAClaimAsksFor(t *testing.T) {
	with := func(change func(*resourceapi.ExactDeviceRequest)) resourceapi.DeviceRequest {
		r := request(4)
		change(r.Exactly)
		return r
	}
	class := func(name string) resourceapi.DeviceRequest {
		return with(func(r *resourceapi.ExactDeviceRequest) { r.DeviceClassName = name })
	}
	all := with(func(r *resourceapi.ExactDeviceRequest) {
		r.AllocationMode, r.Count = resourceapi.DeviceAllocationModeAll, 0
	})
	list := resourceapi.DeviceRequest{FirstAvailable: []resourceapi.DeviceSubRequest{
		{DeviceClassName: v1alpha1.DriverName, Count: 8}, {DeviceClassName: v1alpha1.DriverName, Count: 2},
	}}
	for rule, tc := range map[string]struct {
		requests []resourceapi.DeviceRequest
		got      []string
		want     map[string]float64
	}{
		"so many GPUs":                                 {[]resourceapi.DeviceRequest{request(4)}, nil, map[string]float64{"4": 1}},
		"of several requests all, on one node":         {[]resourceapi.DeviceRequest{request(2), request(1)}, nil, map[string]float64{"3": 1}},
		"of alternatives the first":                    {[]resourceapi.DeviceRequest{list}, []string{"a", "b"}, map[string]float64{"H1008": 1}},
		"a class of the driver for certain GPUs":       {[]resourceapi.DeviceRequest{class("80gb.gpu.switchyard.dev")}, nil, map[string]float64{"4": 1}},
		"not of parts of GPUs":                         {[]resourceapi.DeviceRequest{class("mig.gpu.switchyard.dev"), class("share.gpu.switchyard.dev")}, nil, map[string]float64{}},
		"another class is not known to be of GPUs":     {[]resourceapi.DeviceRequest{class("ours")}, nil, map[string]float64{}},
		"before GPUs are got":                          {[]resourceapi.DeviceRequest{class("ours")}, []string{"a", "b", "c", "d"}, map[string]float64{"H1004": 1}},
		"partitions are not":                           {[]resourceapi.DeviceRequest{class("ours")}, []string{"gpu-0-mig-19-0"}, map[string]float64{}},
		"all devices of a node are as many as are got": {[]resourceapi.DeviceRequest{all}, []string{"a", "b", "c"}, map[string]float64{"H1003": 1}},
		"more than a claim can have is none":           {[]resourceapi.DeviceRequest{request(resourceapi.AllocationResultsMaxSize), request(1)}, nil, map[string]float64{}},
		"nor is more than can be counted":              {[]resourceapi.DeviceRequest{request(math.MaxInt64), request(math.MaxInt64), request(4)}, nil, map[string]float64{}},
		"who watches takes none":                       {[]resourceapi.DeviceRequest{with(func(r *resourceapi.ExactDeviceRequest) { r.AdminAccess = ptr.To(true) })}, nil, map[string]float64{}},
	} {
		t.Run(rule, func(t *testing.T) {
			u := newUser()
			c := u.claim("c", "", tc.requests...)
			u.SetClaim(c)
			if tc.got != nil {
				u.SetClaim(allocated(c, "node-a", tc.got...))
			}
			u.want(t, "asked for", tc.want)
			u.DeleteClaim(c)
		})
	}
}

// planOf is a plan that begins with a device on node-b.
func planOf(name string) *v1alpha1.GangPlan {
	return &v1alpha1.GangPlan{Placements: []v1alpha1.GangPlacement{{Pool: "node-b", Devices: []v1alpha1.GangDevice{{Name: name}}}}}
}

func TestWhatAGangAsksFor(t *testing.T) {
	for rule, tc := range map[string]struct {
		change func(*v1alpha1.GangClaim)
		want   map[string]float64
	}{
		"a room for each member":          {func(*v1alpha1.GangClaim) {}, map[string]float64{"4": 3}},
		"one for all that share a domain": {func(g *v1alpha1.GangClaim) { g.Spec.Topology.Gang = v1alpha1.GangNVSwitchDomain }, map[string]float64{"12": 1}},
		"one for all that share a node":   {func(g *v1alpha1.GangClaim) { g.Spec.Topology.Gang = v1alpha1.GangNode }, map[string]float64{"12": 1}},
		"of partitions none":              {func(g *v1alpha1.GangClaim) { g.Spec.DeviceClassName = "mig.gpu.switchyard.dev" }, map[string]float64{}},
		"its plan says of which product": {func(g *v1alpha1.GangClaim) {
			g.Status.Plan = &v1alpha1.GangPlan{Placements: []v1alpha1.GangPlacement{{Pool: "node-b"}}}
		}, map[string]float64{"A1004": 3}},
		"another class is not known to be of GPUs": {func(g *v1alpha1.GangClaim) { g.Spec.DeviceClassName = "ours" }, map[string]float64{}},
		"before GPUs are planned":                  {func(g *v1alpha1.GangClaim) { g.Spec.DeviceClassName, g.Status.Plan = "ours", planOf("gpu-0") }, map[string]float64{"A1004": 3}},
		"partitions are not":                       {func(g *v1alpha1.GangClaim) { g.Spec.DeviceClassName, g.Status.Plan = "ours", planOf("gpu-0-mig-19-0") }, map[string]float64{}},
		"no more than 32 of one owner":             {func(g *v1alpha1.GangClaim) { g.Spec.Members = 200 }, map[string]float64{"4": 32}},
		"one that asks for nothing is no one":      {func(g *v1alpha1.GangClaim) { g.Spec.Members = 0 }, map[string]float64{}},
	} {
		t.Run(rule, func(t *testing.T) {
			u := newUser()
			g := u.gang("g", 3, 4)
			tc.change(g)
			u.SetGang(g)
			u.want(t, "asked for", tc.want)
		})
	}
}

func TestTheClaimsOfAGangCountAsTheGang(t *testing.T) {
	for name, order := range map[string][]int{"the gang first": {0, 1}, "a claim first": {1, 0}} {
		t.Run(name, func(t *testing.T) {
			u := newUser()
			g := u.gang("g", 2, 4)
			c := allocated(u.claim("c", "g-0", request(4)), "node-a", "a", "b", "c", "d")
			c.Labels = map[string]string{v1alpha1.GangLabel: string(g.UID)}
			for _, i := range order {
				[]func(){func() { u.SetGang(g) }, func() { u.SetClaim(c) }}[i]()
			}
			u.want(t, "with its product", map[string]float64{"H1004": 2})
			u.DeleteClaim(c)
			u.SetGang(g)
			u.want(t, "without claims", map[string]float64{"H1004": 2})
		})
	}
}

func TestAGangThatAsksForAnotherSizeAsksForThat(t *testing.T) {
	u := newUser()
	g := u.gang("g", 2, 4)
	u.SetGang(g)
	g = g.DeepCopy()
	g.Spec.DevicesPerMember = 8
	u.SetGang(g)
	u.want(t, "asked for", map[string]float64{"8": 2})
}

func TestRequestsDecay(t *testing.T) {
	u := newUser()
	u.runs("a", "job", 4)
	u.wait(day)
	u.want(t, "after a half-life", map[string]float64{"H1004": 0.5})
	u.wait(day)
	u.want(t, "after two", map[string]float64{"H1004": 0.25})
	u.wait(30 * day)
	u.want(t, "after a month nothing is left", map[string]float64{})
}

func TestWhatIsGoneCountsUntilItDecays(t *testing.T) {
	u := newUser()
	p, c := u.runs("a", "job", 4)
	u.wait(time.Hour)
	u.ends(p, c)
	u.wait(day - time.Hour)
	u.want(t, "after a half-life", map[string]float64{"H1004": 0.5})
	// Its node has gone, too.
	if got := u.Mix(nil).Requests; len(got) != 1 || got[0].Product != "H100" {
		t.Errorf("without the node: %+v", got)
	}
}

func TestWhatWasThereForAMomentHardlyCounts(t *testing.T) {
	u := newUser()
	for i := range 100 { // jobs of a minute each, one after the other
		p, c := u.runs(fmt.Sprint(i), fmt.Sprint("job-", i), 4)
		u.wait(time.Minute)
		u.ends(p, c)
	}
	if got := u.requests()["H1004"]; got < 1.5 || got > 100.0/60 {
		t.Errorf("%v requests, want one for each hour", got)
	}
	if owners := u.Mix(nodes).Owners; owners < 1.5 || owners > 100.0/60 {
		t.Errorf("%v owners, want one for each hour", owners)
	}
}

func TestWhatWaitsCountsAsAskedForNow(t *testing.T) {
	u := newUser()
	p := pod("a", "job")
	c := u.claim("a", "a", request(8))
	u.SetPod(p)
	u.SetClaim(c)
	g := u.gang("g", 2, 4)
	g.Status.WaitingSince = ptr.To(metav1.NewMicroTime(now))
	u.SetGang(g)
	u.wait(3 * day)
	u.want(t, "while it waits", map[string]float64{"8": 1, "4": 2})
	u.SetClaim(allocated(c, "node-a", "a"))
	g = g.DeepCopy()
	g.Status.TimedOut = "yes"
	u.SetGang(g)
	u.want(t, "since it has its GPUs, or waits no more", map[string]float64{"H1008": 0.13, "4": 0.25})

	// A claim of which no pod was made may be meant for later.
	u.SetClaim(u.claim("later", "", request(2)))
	u.wait(day)
	if got := u.requests()["2"]; got != 0.5 {
		t.Errorf("got %v", got)
	}
}

func TestAnOwnerCountsWithTheMostThatItWantedAtOneTime(t *testing.T) {
	u := newUser()
	// Three replicas that are replaced a thousand times.
	for i := range 1000 {
		p, c := u.runs(fmt.Sprint("service-", i), "service", 2)
		if i >= 2 {
			q, d := pod(fmt.Sprint("service-", i-2), "service"), u.claim(fmt.Sprint("service-", i-2), fmt.Sprint("service-", i-2), request(2))
			u.ends(q, d)
		}
		_, _ = p, c
		u.wait(time.Minute)
	}
	u.want(t, "replaced", map[string]float64{"H1002": 3})
	if owners := u.Mix(nodes).Owners; owners > 1 {
		t.Errorf("%v owners", owners)
	}
	// What was most decays when less is asked for.
	for i := range 2 {
		name := fmt.Sprint("service-", 998+i)
		u.ends(pod(name, "service"), u.claim(name, name, request(2)))
	}
	u.wait(2 * day)
	u.runs("last", "service", 2)
	u.want(t, "with one replica", map[string]float64{"H1002": 1})
}

// A pod's owner may be heard of later than its claim.
func TestOwnersAreFoundOut(t *testing.T) {
	u := newUser()
	for i := range 40 {
		name := fmt.Sprint("r-", i)
		u.SetClaim(allocated(u.claim(name, name, request(4)), "node-a", "a"))
	}
	u.want(t, "each its own", map[string]float64{"H1004": 40})
	u.DeleteClaim(u.claim("r-39", "r-39"))
	for i := range 39 {
		u.SetPod(pod(fmt.Sprint("r-", i), "service"))
	}
	if got := u.requests()["H1004"]; got != 32 {
		t.Errorf("%v of one owner, want 32 at most", got)
	}
	// Bare pods are owners themselves, those without claims nobody.
	bare := pod("bare", "")
	u.SetPod(bare)
	u.SetPod(&corev1.Pod{})
	u.SetClaim(u.claim("bare", "bare", request(8)))
	if got := u.Mix(nodes).Owners; got < 1.99 || got > 2 {
		t.Errorf("%v owners, want 2", got)
	}
}

// So may that of several claims, which were never the pod's own.
func TestOwnersAreFoundOutOfSeveralClaims(t *testing.T) {
	u := newUser()
	for _, name := range []string{"a", "b", "c"} {
		u.SetClaim(u.claim(name, "several", request(4)))
	}
	u.wait(time.Hour)
	u.SetPod(pod("several", "service"))
	u.want(t, "asked for", map[string]float64{"4": 3})
	if owners := u.Mix(nodes).Owners; owners != 1 {
		t.Errorf("%v owners, want 1", owners)
	}
}

func TestThoseWhoAreGoneAreForgottenNotWhatTheyAskedFor(t *testing.T) {
	u := newUser()
	const jobs = 10000
	for i := range jobs {
		u.runs(fmt.Sprint(i), fmt.Sprint("job-", i), int64(1+i%2))
	}
	u.want(t, "while they run", map[string]float64{"H1001": jobs / 2, "H1002": jobs / 2})
	u.wait(time.Hour)
	for i := range jobs {
		name := fmt.Sprint(i)
		u.ends(pod(name, fmt.Sprint("job-", i)), u.claim(name, name, request(1)))
	}
	u.wait(day - time.Hour)
	u.want(t, "later", map[string]float64{"H1001": jobs / 4, "H1002": jobs / 4})
	if got := u.Mix(nodes).Owners; math.Abs(got-jobs/4) > 1 {
		t.Errorf("%v owners", got)
	}
}

// A restart knows what there is, with its age, and nothing else.
func TestARestartForgetsWhatIsGone(t *testing.T) {
	u := newUser()
	gone, claim := u.runs("gone", "job", 8)
	_, stays := u.runs("stays", "service", 4)
	u.wait(time.Hour)
	u.ends(gone, claim)
	u.wait(day - time.Hour)
	u.want(t, "before", map[string]float64{"H1008": 0.5, "H1004": 0.5})
	anew := &user{demand.NewTracker(day, u.clock), u.clock}
	anew.SetClaim(stays)
	anew.SetPod(pod("stays", "service"))
	anew.want(t, "after", map[string]float64{"H1004": 0.5})
}

// The same objects, heard of in another order, are the same mix, to the last bit.
func TestTheOrderOfEventsDoesNotMatter(t *testing.T) {
	for seed := range uint64(50) {
		r := rand.New(rand.NewPCG(seed, 3))
		u := newUser()
		type object struct{ set, remove func(*demand.Tracker) }
		var objects []object
		for i := range 60 {
			u.wait(time.Duration(r.IntN(3600)) * time.Second)
			name := fmt.Sprint(i)
			if r.IntN(4) == 0 {
				g := u.gang(name, 1+r.Int32N(40), 1<<r.IntN(4))
				objects = append(objects, object{func(t *demand.Tracker) { t.SetGang(g) }, func(t *demand.Tracker) { t.DeleteGang(g) }})
				continue
			}
			p := pod(name, []string{"", "a", "b", "c"}[r.IntN(4)])
			c := u.claim(name, name, request(1<<r.IntN(4)))
			if r.IntN(2) == 0 {
				c = allocated(c, []string{"node-a", "node-b", "gone"}[r.IntN(3)], "gpu")
			}
			objects = append(objects, object{func(t *demand.Tracker) { t.SetPod(p) }, func(t *demand.Tracker) { t.DeletePod(p) }})
			objects = append(objects, object{func(t *demand.Tracker) { t.SetClaim(c) }, func(t *demand.Tracker) { t.DeleteClaim(c) }})
			if r.IntN(3) == 0 {
				second := u.claim(name+"-second", name, request(1<<r.IntN(4)))
				objects = append(objects, object{func(t *demand.Tracker) { t.SetClaim(second) }, func(t *demand.Tracker) { t.DeleteClaim(second) }})
			}
		}
		u.wait(time.Hour)
		gone := len(objects) / 2
		mixes := func() (list []demand.Mix) {
			clk := clocktesting.NewFakePassiveClock(u.clock.Now())
			tracker := demand.NewTracker(day, clk)
			for _, i := range r.Perm(len(objects)) {
				objects[i].set(tracker)
				if r.IntN(5) == 0 {
					objects[i].set(tracker) // an update that changes nothing
				}
			}
			list = append(list, tracker.Mix(nodes))
			for _, i := range r.Perm(gone) {
				objects[i].remove(tracker)
			}
			clk.SetTime(clk.Now().Add(day))
			return append(list, tracker.Mix(nodes))
		}
		if diff := cmp.Diff(mixes(), mixes()); diff != "" {
			t.Fatalf("seed %d: (-one order +another):\n%s", seed, diff)
		}
	}
}

// The parts of the mix come to be those that are asked for.
func TestTheMixConvergesToWhatIsAskedFor(t *testing.T) {
	u := newUser()
	r := rand.New(rand.NewPCG(1, 2))
	ask := func(days int, sizes ...int64) {
		for hour := range days * 24 {
			name := fmt.Sprint(u.clock.Now(), hour)
			p, c := u.runs(name, name, sizes[r.IntN(len(sizes))])
			u.wait(time.Hour)
			u.ends(p, c)
		}
	}
	part := func(size int) float64 {
		for _, s := range u.Mix(nodes).Shares() {
			if s.Size == size {
				return s.Part
			}
		}
		return 0
	}
	ask(20, 8, 4, 4, 2, 2, 2, 2)
	for _, size := range []int{2, 4, 8} {
		if got := part(size); math.Abs(got-1.0/3) > 0.15 {
			t.Errorf("%.2f of the GPUs are asked for %d together, want a third", got, size)
		}
	}
	ask(10, 8)
	if got := part(8); got < 0.99 {
		t.Errorf("%.2f of the GPUs are asked for 8 together, after ten days in which all were", got)
	}
	if got := u.Mix(nodes).History(); got < 0.85 {
		t.Errorf("the weight of 34 requests is %.2f", got)
	}
}

func BenchmarkTracker(b *testing.B) {
	u := newUser()
	for i := range 10000 {
		u.runs(fmt.Sprint(i), fmt.Sprint("job-", i/4), 1+int64(i%8))
	}
	b.Run("a claim comes and goes", func(b *testing.B) {
		p, c := pod("x", "x"), u.claim("x", "x", request(4))
		for b.Loop() {
			u.SetPod(p)
			u.SetClaim(c)
			u.SetClaim(c)
			u.ends(p, c)
		}
	})
	b.Run("mix", func(b *testing.B) {
		for b.Loop() {
			u.Mix(nodes)
		}
	})
}
