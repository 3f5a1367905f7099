// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// readyCluster is oracleCluster with nodes that take pods.
func readyCluster(nodes ...string) *Cluster {
	c := oracleCluster(nodes...)
	for _, name := range nodes {
		n := c.nodes[name].object.DeepCopy()
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
		n.Status.Allocatable = corev1.ResourceList{corev1.ResourcePods: resource.MustParse("100")}
		c.SetNode(n)
	}
	return c
}

// asking is a gang of single devices with a selector.
func asking(name string, members int32, selector string) Gang {
	g := Gang{Claim: &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID(name)},
		Spec: v1alpha1.GangClaimSpec{
			Members: members, DevicesPerMember: 1, DeviceClassName: "all",
			Topology: v1alpha1.GangTopology{Member: v1alpha1.MemberNode},
		},
	}}
	if selector != "" {
		g.Claim.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: selector}}}
	}
	return g
}

func reasons(decisions []Decision) map[Reason]int {
	count := map[Reason]int{}
	for _, d := range decisions {
		if d.Refusal != nil {
			count[d.Refusal.Reason]++
		} else {
			count[""]++
		}
	}
	return count
}

// evaluations makes a call of Plan on which selectors cost as much as said, and tells how much they did.
func evaluations(c *Cluster, gangs ...Gang) uint64 {
	p := planner{Cluster: c, cost: planCost}
	p.begin(len(gangs))
	defer p.end()
	for _, g := range gangs {
		p.evaluated(context.Background(), g.Claim)
	}
	return planCost - p.cost
}

func TestASelectorThatIsTooExpensiveIsRefusedAndNotEvaluatedAgain(t *testing.T) {
	c := readyCluster("a", "b", "c", "d")
	bad := asking("bad", 1, "")
	list := "[" + strings.Repeat("1, ", 149) + "1]"
	bad.Claim.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: fmt.Sprintf("%s.all(a, %s.all(b, a == b))", list, list)}}}
	v := c.view(c.classes["all"], bad.Claim.Spec.Selectors)
	v.cost = viewCost - 1000 // as after many other devices
	good := asking("good", 1, "")
	got := c.Plan(context.Background(), []Gang{bad, good})
	if got[0].Refusal == nil || got[0].Refusal.Reason != ReasonSelectorTooExpensive || got[1].Plan == nil {
		t.Fatalf("decisions %+v, want the selector refused and the other gang planned", got)
	}
	if cost := evaluations(c, bad, good); cost != 0 {
		t.Errorf("to say so again cost %d", cost)
	}
	other := c.classes["all"].DeepCopy()
	c.SetClass(other)
	if evaluations(c, bad) == 0 {
		t.Error("not evaluated anew although the class changed")
	}
}

func TestManySelectorsAreEvaluatedOnce(t *testing.T) {
	c := readyCluster("a", "b")
	var gangs []Gang
	for i := range 300 {
		gangs = append(gangs, asking(fmt.Sprintf("g%03d", i), 1, fmt.Sprintf("device.driver != %q", fmt.Sprint(i))))
	}
	c.Plan(context.Background(), gangs)
	if cost := evaluations(c, gangs...); cost != 0 {
		t.Errorf("a second look at %d selectors cost %d", len(gangs), cost)
	}
	c.Plan(context.Background(), gangs[:1])
	asking := asking("another", 1, "device.driver != 'x'")
	c.Plan(context.Background(), []Gang{asking})
	if len(c.views) > minViews {
		t.Errorf("%d views stay when one gang waits, at most %d should", len(c.views), minViews)
	}
}

func TestNewSelectorsAreEvaluatedBitByBit(t *testing.T) {
	c := readyCluster("a", "b")
	gangs := []Gang{asking("0", 1, "")}
	for i := range 8 {
		gangs = append(gangs, asking(fmt.Sprintf("g%d", i), 1, fmt.Sprintf("device.driver != %q", fmt.Sprint(i))))
	}
	for left, call := len(gangs), 0; left > 0; call++ {
		if call > 3*len(gangs) {
			t.Fatalf("%d gangs are not evaluated after %d calls", left, call)
		}
		p := planner{Cluster: c, cost: 1} // A slice of one gang passes that.
		p.begin(len(gangs))
		waiting := 0
		for _, g := range gangs {
			switch _, refusal := p.evaluated(context.Background(), g.Claim); {
			case refusal == nil:
			case refusal.Reason == ReasonInterrupted:
				waiting++
			default:
				t.Fatalf("refusal %+v", refusal)
			}
		}
		p.end()
		if call == 0 && waiting == 0 || waiting > left {
			t.Fatalf("call %d: %d gangs wait for an evaluation, %d did before", call, waiting, left)
		}
		left = waiting
	}
}

// A selector may take long to compile, and next to nothing to evaluate.
func TestSelectorsAreCompiledBitByBit(t *testing.T) {
	c := readyCluster("a")
	var gangs []Gang
	for i := range 40 {
		long := strings.Repeat("x", resourceapi.CELSelectorExpressionMaxLength-20)
		gangs = append(gangs, asking(fmt.Sprintf("g%02d", i), 1, fmt.Sprintf("%q != '%d'", long, i)))
	}
	left := len(gangs)
	for call := 0; left > 0; call++ {
		waiting := 0
		for _, d := range c.Plan(context.Background(), gangs) {
			if d.Refusal != nil && d.Refusal.Reason == ReasonInterrupted {
				waiting++
			}
		}
		if waiting == left || call == 0 && waiting == 0 {
			t.Fatalf("call %d: %d gangs wait until their selectors are compiled, %d did before", call, waiting, left)
		}
		left = waiting
	}
}

// watchedContext is asked for an error between evaluations.
type watchedContext struct {
	context.Context
	asked func()
}

func (c watchedContext) Err() error {
	c.asked()
	return c.Context.Err()
}

func TestSelectorsAreEvaluatedWithoutTheLock(t *testing.T) {
	c := readyCluster("a", "b", "c", "d")
	free := 0
	ctx := watchedContext{Context: context.Background(), asked: func() {
		if c.mutex.TryLock() {
			free++
			c.mutex.Unlock()
		}
	}}
	if got := c.Plan(ctx, []Gang{asking("g", 1, "device.driver != 'x'")}); got[0].Plan == nil {
		t.Fatalf("decision %+v, want a plan", got[0].Refusal)
	}
	if free < 2*4*2 { // class and selectors, on four slices with two devices each
		t.Errorf("the lock was free at %d looks at the context, want %d", free, 2*4*2)
	}
}

func TestManyGangsThatWaitForTheSameCostNoMoreThanOne(t *testing.T) {
	attempts := func(gangs int) int64 {
		c := readyCluster("a", "b")
		var list []Gang
		for i := range gangs {
			list = append(list, asking(fmt.Sprintf("g%03d", i), 5, ""))
		}
		decisions := c.Plan(context.Background(), list)
		for i, d := range decisions {
			if d.Refusal == nil || d.Refusal.Reason != ReasonNoFeasibleDomain || d.Refusal.Found != 4 {
				t.Fatalf("decision %+v", d)
			}
			if got := strings.Contains(d.Refusal.Message, "Gang ml/g000 waits for the same"); got != (i > 0) {
				t.Errorf("gang %d: %s", i, d.Refusal.Message)
			}
		}
		return c.attempts
	}
	if one, many := attempts(1), attempts(200); many != one {
		t.Errorf("200 gangs take %d searches, one takes %d", many, one)
	}
}

func TestAGangThatNeedsAlmostAllKeepsItForATimeOnly(t *testing.T) {
	tests := map[string]struct {
		members int32
		waited  time.Duration
		others  Reason
	}{
		"all that is needed, at first":       {8, time.Minute, ReasonBehindOthers},
		"nothing, when that was long ago":    {8, patience, ""},
		"half of the devices, for ever":      {4, 100 * patience, ReasonBehindOthers},
		"nothing, when it could never serve": {9, time.Minute, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			c := readyCluster("a", "b", "c", "d")
			for i, node := range []string{"a", "b", "c", "d"} { // y is free at each node
				c.SetClaim(&resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint(i)}, Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
					Results: []resourceapi.DeviceRequestAllocationResult{{Driver: v1alpha1.DriverName, Pool: node, Device: "x"}},
				}}}})
			}
			big := asking("0-big", test.members, "")
			if test.members == 4 { // On two nodes, so that it has to wait.
				big = asking("0-big", 2, "")
				big.Claim.Spec.DevicesPerMember = 2
			}
			since := metav1.NewMicroTime(c.clock.Now().Add(-test.waited))
			big.Claim.Status.WaitingSince = &since
			small := asking("1-small", 4, "")
			got := c.Plan(context.Background(), []Gang{big, small})
			if got[0].Refusal == nil || got[0].Refusal.Reason != ReasonNoFeasibleDomain {
				t.Fatalf("the large gang: %+v", got[0])
			}
			if reasons(got[1:])[test.others] != 1 {
				t.Errorf("the small gang: %+v, want %q", got[1].Refusal, test.others)
			}
		})
	}
}
