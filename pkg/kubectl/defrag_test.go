// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func budget(allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: "web", Name: "infer"},
		Spec:       policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{}},
		Status:     policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed},
	}
}

func TestDefragPlanOutput(t *testing.T) {
	c := journey(t)
	for file, tc := range map[string]struct {
		cluster testCluster
		args    []string
	}{
		"defrag-plan.txt":         {c.with(budget(1)), nil},
		"defrag-plan-wide.txt":    {c, []string{"-o", "wide"}},
		"defrag-plan.json":        {c.with(budget(1)), []string{"-o", "json"}},
		"defrag-plan-budget.txt":  {c.with(budget(0)), []string{"-o", "wide"}},
		"defrag-plan-nothing.txt": {c.without("web", "infer-7").without("web", "infer-7-gpus"), nil},
		"defrag-plan-members.txt": {c.without("ml", "llama-tp4-0"), nil},
	} {
		t.Run(file, func(t *testing.T) {
			tc.cluster.golden(t, file, append([]string{"defrag", "plan", "--gang", "ml/llama-tp4"}, tc.args...)...)
		})
	}
}

func planned(t *testing.T, c testCluster, args ...string) defragView {
	t.Helper()
	out, _, err := c.run(t, append([]string{"defrag", "plan", "--gang", "llama-tp4", "-o", "json"}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	var v defragView
	if err := json.Unmarshal([]byte(out), &v); err != nil {
		t.Fatal(err)
	}
	return v
}

func TestDefragPlanFollowsTheClusterAndTheFlags(t *testing.T) {
	c := journey(t)
	change := func(namespace, name string, do func(*corev1.Pod)) testCluster {
		for _, o := range c {
			if pod, is := o.(*corev1.Pod); is && pod.Namespace == namespace && pod.Name == name {
				pod = pod.DeepCopy()
				do(pod)
				return c.with(pod)
			}
		}
		t.Fatalf("no pod %s", name)
		return nil
	}
	slow := int64(600)
	evictions := func(list ...v1alpha1.GangEviction) testCluster {
		return c.with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) { g.Status.Evictions = list })[0])
	}
	tenMinutesAgo := metav1.NewMicroTime(testTime.Add(-10 * time.Minute))
	made := make([]v1alpha1.GangEviction, 20)
	for i := range made {
		made[i] = v1alpha1.GangEviction{Time: tenMinutesAgo, Namespace: "web", Pod: fmt.Sprint("gone-", i), OwnerUID: "elsewhere", Outcome: v1alpha1.EvictionSucceeded}
	}
	many := evictions(made...)
	refused := evictions(v1alpha1.GangEviction{Time: tenMinutesAgo, Namespace: "web", Pod: "infer-7", OwnerUID: "elsewhere", Outcome: v1alpha1.EvictionRefused})
	for name, tc := range map[string]struct {
		cluster  testCluster
		args     []string
		possible bool
		reason   string
		message  string
	}{
		"a move is found, as for the controller": {c, nil, true, "MovesFound", "evict 1 pod: web/infer-7"},
		"a gang that timed out is planned still": {c.with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) { g.Status.TimedOut = "x" })[0]), nil, true, "MovesFound", ""},
		"the gang's class bounds its priority": {
			c.with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) { g.Spec.PriorityClassName = "low" })[0], &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: -5}),
			nil, false, "NoMoves", "HigherPriority",
		},
		"a pod that takes long to end stays":                {change("web", "infer-7", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &slow }), nil, true, "MovesFound", "evict 2 pods: web/infer-1"},
		"a pod that takes long to end may be moved":         {change("web", "infer-7", func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &slow }), []string{"--max-grace-period", "1h"}, true, "MovesFound", "evict 1 pod: web/infer-7"},
		"a namespace of which many were evicted stays":      {many, nil, false, "NoMoves", ""},
		"a namespace of which more may be evicted":          {many, []string{"--namespace-evictions-per-hour", "21"}, true, "MovesFound", "evict 1 pod: web/infer-7"},
		"a pod that could not be evicted stays":             {refused, nil, true, "MovesFound", "evict 2 pods: web/infer-1"},
		"a pod that is not left alone so long may be moved": {refused, []string{"--cooldown", "5m"}, true, "MovesFound", "evict 1 pod: web/infer-7"},
		"a gang with a plan waits for no moves": {c.with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) {
			g.Status.Plan = &v1alpha1.GangPlan{Step: v1alpha1.StepStarting, Placements: []v1alpha1.GangPlacement{{Node: "node-a"}}}
		})[0]), nil, false, "HasPlan", "has a plan: node-a"},
		"moves that are being made": {c.with(waitingGang("llama-tp4", 2, 4, func(g *v1alpha1.GangClaim) {
			g.Status.Plan = &v1alpha1.GangPlan{
				Step: v1alpha1.StepEvicting, Placements: []v1alpha1.GangPlacement{{Node: "node-b", Domain: "node-b.1"}},
				Moves: []v1alpha1.GangMove{{Namespace: "web", Pod: "infer-7", From: v1alpha1.GangMovePlace{Node: "node-b", Pool: "node-b", Device: "gone"}}},
			}
		})[0]), nil, true, "Moving", ""},
		"a gang before it gets the place": {
			c.with(waitingGang("before", 1, 4, func(g *v1alpha1.GangClaim) {
				g.CreationTimestamp = metav1.NewTime(testTime.Add(-1e12))
			})...), nil, false, "NoMoves", "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := planned(t, tc.cluster, tc.args...)
			if got.Possible != tc.possible || got.Reason != tc.reason || !strings.Contains(got.Message, tc.message) || (len(got.Moves) > 0) != tc.possible {
				t.Errorf("got %+v", got)
			}
		})
	}
}

func TestDefragPlanErrors(t *testing.T) {
	c := journey(t).connection(t, interceptor.Funcs{})
	for want, args := range map[string][]string{
		"there are ml/llama-tp4":                {"defrag", "plan", "--gang", "ml/llama"},
		"use NAME or NAMESPACE/NAME":            {"defrag", "plan", "--gang", "a/b/c"},
		"--max-moves 65 is not between":         {"defrag", "plan", "--gang", "a", "--max-moves", "65"},
		"--max-grace-period -1s is negative":    {"defrag", "plan", "--gang", "a", "--max-grace-period", "-1s"},
		"--cooldown -1s is negative":            {"defrag", "plan", "--gang", "a", "--cooldown", "-1s"},
		"evictions-per-hour -1 is negative":     {"defrag", "plan", "--gang", "a", "--namespace-evictions-per-hour", "-1"},
		"name a subcommand: plan":               {"defrag"},
		`unknown command "make"`:                {"defrag", "make"},
		"does not exist, and no other does":     nil,
		`--output "svg" is unknown: use one of`: {"defrag", "plan", "--gang", "a", "-o", "svg"},
	} {
		if args == nil {
			mustFail(t, gpuNode(t, "node-b", "a100-2x4").connection(t, interceptor.Funcs{}), want, "defrag", "plan", "--gang", "a")
			continue
		}
		mustFail(t, c, want, args...)
	}
}

func TestNamesAreCompleted(t *testing.T) {
	c := journey(t)
	for want, args := range map[string][]string{
		"node-a\nnode-b\n:4\n":            {"topology", ""},
		"ml/llama-tp4\n:4\n":              {"defrag", "plan", "--gang", ""},
		"gang\npod\nclaim\n:4\n":          {"explain", ""},
		"llama-tp4\n:4\n":                 {"explain", "gang", ""},
		"llama-tp4-0\nllama-tp4-1\ntrain": {"explain", "pod", ""},
		"train-gpus\n:4\n":                {"explain", "claim", ""},
		":4\n":                            {"explain", "claim", "a", ""},
		"table\nwide\njson\nyaml\n":       {"gangs", "-o", ""},
	} {
		got, _, err := c.run(t, append([]string{"__complete"}, args...)...)
		if err != nil || !strings.HasPrefix(got, want) && !strings.Contains(got, want) {
			t.Errorf("%v: got %q, %v, want %q", args, got, err, want)
		}
	}
	got, _, err := runOn(t, c.connection(t, failing[*resourceapi.ResourceSliceList](errTest)), "__complete", "topology", "")
	if err != nil || got != ":4\n" {
		t.Errorf("without an answer: got %q, %v", got, err)
	}
}
