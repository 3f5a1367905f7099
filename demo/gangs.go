// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/cluster"
)

// stockGang shows what two pods that need each other do without a GangClaim when there is room for one.
func (d *demo) stockGang(ctx context.Context) (string, []string, error) {
	if err := d.delete(ctx, "named-domain", "named-domain"); err != nil {
		return "", nil, err
	}
	if _, err := d.start(ctx, "neighbour", "neighbour"); err != nil {
		return "", nil, err
	}
	if err := d.deleteSingle(ctx, "single-0"); err != nil {
		return "", nil, err
	}
	if err := d.cluster.Apply(ctx, "demo/manifests/stock-job.yaml"); err != nil {
		return "", nil, err
	}
	var running, refused int
	err := d.cluster.Until(ctx, patience, "one pod of the job to run and one to be refused", func(ctx context.Context) (bool, error) {
		pods, err := d.cluster.Pods(ctx, "demo", "app=stock")
		running, refused = 0, 0
		for i := range pods {
			if cluster.Running(&pods[i]) {
				running++
			}
			if unschedulable(&pods[i]) {
				refused++
			}
		}
		return running == 1 && refused == 1, err
	})
	if err != nil {
		return "", nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := d.check(len(p.of("stock-")) == 4, "one pod holds four GPUs and waits for the other, holds %s", p.of("stock-").indexes()); err != nil {
		return "", nil, err
	}
	details := append(p.draw("stock-"), "▣ = the one pod that started. It holds four GPUs and waits for the other, which has no place.")
	return "two pods of four GPUs each, without a GangClaim", details, d.delete(ctx, "stock-job", "stock")
}

// gang shows the same pods with a GangClaim: both wait and hold nothing, then both start.
func (d *demo) gang(ctx context.Context) (string, []string, error) {
	if err := d.cluster.Apply(ctx, "demo/manifests/gang-job.yaml"); err != nil {
		return "", nil, err
	}
	claim, err := d.waitGang(ctx, "train", "say what it waits for", func(c *v1alpha1.GangClaim) bool {
		planned := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.ConditionPlanned)
		return planned != nil && planned.Reason == "NoFeasibleDomain"
	})
	if err != nil {
		return "", nil, err
	}
	reason := meta.FindStatusCondition(claim.Status.Conditions, v1alpha1.ConditionPlanned).Message
	if err := d.check(strings.Contains(reason, "found 1 (node-a.0)") && strings.Contains(reason, "demo/single-2"), "the reason says what there is and what stands in the way: %s", reason); err != nil {
		return "", nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	claims, err := d.cluster.ResourceClaims(ctx, "demo")
	if err != nil {
		return "", nil, err
	}
	made := slices.ContainsFunc(claims, func(c resourceapi.ResourceClaim) bool { return strings.HasPrefix(c.Name, "train-") })
	if err := d.check(len(p.of("train-")) == 0 && !made, "the waiting gang holds no GPU, and not even a claim"); err != nil {
		return "", nil, err
	}
	table, err := d.gangTable(ctx)
	if err != nil {
		return "", nil, err
	}
	details := append(p.draw("train-"), table...)
	details = append(details, faint.Render(reason), "single-2 ends:")

	if err := d.deleteSingle(ctx, "single-2"); err != nil {
		return "", nil, err
	}
	started, err := d.gangRuns(ctx, "train", 2, 4)
	if err != nil {
		return "", nil, err
	}
	if p, err = d.picture(ctx); err != nil {
		return "", nil, err
	}
	if table, err = d.gangTable(ctx); err != nil {
		return "", nil, err
	}
	details = append(details, p.draw("train-")...)
	details = append(details, table...)
	return "the same pods with a GangClaim: none, then " + started, details, d.delete(ctx, "gang-job", "train")
}

// owners shows that it does not matter who makes the pods.
func (d *demo) owners(ctx context.Context) (string, []string, error) {
	for _, name := range []string{"gang-jobset", "gang-deployment"} {
		if err := d.cluster.Apply(ctx, "demo/manifests/"+name+".yaml"); err != nil {
			return "", nil, err
		}
	}
	if _, err := d.gangRuns(ctx, "pretrain", 3, 2); err != nil {
		return "", nil, err
	}
	if _, err := d.gangRuns(ctx, "serve", 2, 2); err != nil {
		return "", nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	table, err := d.gangTable(ctx)
	return "gangs of two Jobs (leader and workers) and of a Deployment", append(p.draw("serve-"), table...), err
}

// gangRuns waits until the members of a gang run and checks what each has: a whole number of GPUs of one NVSwitch
// domain, and that its container sees them. It returns how far apart they started.
func (d *demo) gangRuns(ctx context.Context, name string, members, devices int) (string, error) {
	if _, err := d.waitGang(ctx, name, "run", func(c *v1alpha1.GangClaim) bool {
		return meta.IsStatusConditionTrue(c.Status.Conditions, v1alpha1.ConditionRunning)
	}); err != nil {
		return "", err
	}
	pods, err := d.cluster.Pods(ctx, "demo", "app="+name)
	if err != nil {
		return "", err
	}
	if err := d.check(len(pods) == members, "%d members of %s, have %d", members, name, len(pods)); err != nil {
		return "", err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", err
	}
	var first, last time.Time
	for i := range pods {
		held := p.of(claimName(&pods[i]))
		if err := d.check(len(held) == devices && len(held.domains()) == 1, "member %s has %d GPUs of one domain, has %s of %v", pods[i].Name, devices, held.indexes(), held.domains()); err != nil {
			return "", err
		}
		seen, err := d.look(ctx, pods[i].Name, "devices")
		if err != nil {
			return "", err
		}
		if err := d.check(seen.shows(held), "the container of %s sees the GPUs of its claim: it sees %s, the claim holds %s", pods[i].Name, seen, held.indexes()); err != nil {
			return "", err
		}
		start := pods[i].Status.ContainerStatuses[0].State.Running.StartedAt.Time
		if first.IsZero() || start.Before(first) {
			first = start
		}
		if start.After(last) {
			last = start
		}
	}
	return fmt.Sprintf("%d within %s", members, max(last.Sub(first), time.Second)), nil
}

func (d *demo) waitGang(ctx context.Context, name, what string, ok func(*v1alpha1.GangClaim) bool) (*v1alpha1.GangClaim, error) {
	var claim *v1alpha1.GangClaim
	err := d.cluster.Until(ctx, patience, "gang "+name+" to "+what, func(ctx context.Context) (bool, error) {
		var err error
		if claim, err = d.cluster.GangClaim(ctx, "demo", name); err != nil {
			return false, err
		}
		if ok(claim) {
			return true, nil
		}
		return false, fmt.Errorf("its conditions are %s", conditions(claim.Status.Conditions))
	})
	return claim, err
}

// gangTable is what kubectl get gangclaims prints.
func (d *demo) gangTable(ctx context.Context) ([]string, error) {
	out, err := d.cluster.Kubectl(ctx, "get", "gangclaims", "-n", "demo")
	return append([]string{"kubectl get gangclaims"}, strings.Split(strings.TrimSpace(out), "\n")...), err
}

func (d *demo) deleteSingle(ctx context.Context, name string) error {
	if err := d.cluster.Client.CoreV1().Pods("demo").Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
		return err
	}
	_, err := d.wait(ctx, "the GPU of "+name+" to be free", func(p picture) bool { return len(p.of(name+"-")) == 0 })
	return err
}

func conditions(list []metav1.Condition) string {
	words := make([]string, 0, len(list))
	for _, c := range list {
		words = append(words, fmt.Sprintf("%s=%s (%s: %s)", c.Type, c.Status, c.Reason, c.Message))
	}
	return strings.Join(words, "; ")
}

func unschedulable(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	})
}

// claimName is the name of the claim that was made for the pod.
func claimName(pod *corev1.Pod) string {
	for _, s := range pod.Status.ResourceClaimStatuses {
		if s.ResourceClaimName != nil {
			return *s.ResourceClaimName
		}
	}
	return "none"
}
