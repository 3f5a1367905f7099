// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/test/cluster"
)

// sharingSteps show how GPUs are partitioned, shared and drained.
func (d *demo) sharingSteps() []step {
	return []step{
		{"tools", d.tools},
		{"cluster", d.up},
		{"Switchyard", d.install},
		{"one file", d.configure},
		{"MIG", d.sevenPartitions},
		{"beside", d.partitionBeside},
		{"MPS", d.mpsPair},
		{"a sick GPU", d.drain},
	}
}

// configure gives node-a its configuration, through the ConfigMap that the plugin reads, and switches MIG mode of two
// of its GPUs on, as an administrator does.
func (d *demo) configure(ctx context.Context) (string, []string, error) {
	kubectl := func(args ...string) error {
		_, err := d.cluster.Kubectl(ctx, append([]string{"-n", cluster.Namespace}, args...)...)
		return err
	}
	if err := d.cluster.Apply(ctx, "demo/manifests/node-config.yaml"); err != nil {
		return "", nil, err
	}
	if err := kubectl("patch", "daemonset", "switchyard-kubelet-plugin", "-p",
		`{"spec":{"template":{"spec":{"volumes":[{"name":"config","configMap":{"name":"demo-node-config"}}]}}}}`); err != nil {
		return "", nil, err
	}
	if err := d.cluster.WaitPlugins(ctx, patience); err != nil {
		return "", nil, err
	}
	for _, gpu := range []string{"0", "1"} {
		if _, err := d.simulator(ctx, "mig", gpu, "on"); err != nil {
			return "", nil, err
		}
	}
	p, err := d.wait(ctx, "two partitioned GPUs and one for shares", func(p picture) bool {
		return len(p.where(func(g gpu) bool { return g.profile != "" })) == 2*25 &&
			len(p.where(func(g gpu) bool { return g.sharing == "MPS" && len(g.taints) == 0 })) == 1
	})
	if err != nil {
		return "", nil, err
	}
	parents := p.where(func(g gpu) bool { return g.profile != "" }).parents()
	details := []string{"node-a: GPUs 0 and 1 are in MIG mode, with 25 partitions each to choose from, GPU 7 has shares by MPS, the other five are whole."}
	return "a NodeConfig for node-a", details, d.check(len(parents) == 2, "partitions of two GPUs, have %v", parents)
}

// sevenPartitions has seven pods with the smallest partition each: they are made for them, on one GPU.
func (d *demo) sevenPartitions(ctx context.Context) (string, []string, error) {
	held, err := d.runPartitions(ctx, "slices")
	if err != nil {
		return "", nil, err
	}
	if err := d.check(len(held) == 7 && len(held.parents()) == 1, "seven partitions of one GPU, have %d of %v", len(held), held.parents()); err != nil {
		return "", nil, err
	}
	details, err := d.lookAtPartitions(ctx, "app=slices", "1g.10gb", 7)
	if err != nil {
		return "", nil, err
	}
	made, err := d.simulator(ctx, "mig", "list")
	if err != nil {
		return "", nil, err
	}
	if err := d.check(strings.Count(made, " 1g.10gb ") == 7, "NVML has seven partitions 1g.10gb, says\n%s", made); err != nil {
		return "", nil, err
	}
	return "seven pods, each with a 1g.10gb of one GPU", details, nil
}

func (d *demo) partitionBeside(ctx context.Context) (string, []string, error) {
	held, err := d.runPartitions(ctx, "three-slices")
	if err != nil {
		return "", nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	full := p.of("slices-").parents()
	if err := d.check(len(held) == 1 && held[0].profile == "3g.40gb" && !slices.Contains(full, held[0].parent), "a 3g.40gb of the other GPU, have %v", held); err != nil {
		return "", nil, err
	}
	details, err := d.lookAtPartitions(ctx, "app=three-slices", "3g.40gb", 1)
	if err != nil {
		return "", nil, err
	}
	for _, name := range []string{"three-slices", "slices"} {
		if err := d.delete(ctx, name, name); err != nil {
			return "", nil, err
		}
	}
	err = d.cluster.Until(ctx, patience, "the partitions to be gone", func(ctx context.Context) (bool, error) {
		left, err := d.simulator(ctx, "mig", "list")
		if err != nil || !strings.Contains(left, "g.") {
			return err == nil, err
		}
		return false, fmt.Errorf("there are\n%s", left)
	})
	if err != nil {
		return "", nil, err
	}
	return "a 3g.40gb has no room there: it is made on the other GPU", append(details, "The pods are deleted, and their partitions with them."), nil
}

// runPartitions applies demo/manifests/<name>.yaml, waits until its pods run, and returns what their claims hold.
func (d *demo) runPartitions(ctx context.Context, name string) (picture, error) {
	if err := d.cluster.Apply(ctx, "demo/manifests/"+name+".yaml"); err != nil {
		return nil, err
	}
	if err := d.cluster.WaitRunning(ctx, "demo", "app="+name, patience); err != nil {
		return nil, err
	}
	p, err := d.picture(ctx)
	return p.of(name + "-"), err
}

// lookAtPartitions checks that each of so many pods sees one partition, of a profile and of its own.
func (d *demo) lookAtPartitions(ctx context.Context, selector, profile string, want int) ([]string, error) {
	pods, err := d.cluster.Pods(ctx, "demo", selector)
	if err != nil {
		return nil, err
	}
	details := []string{"inside the containers, nvidia-smi -L:"}
	seen := map[string]bool{}
	for i := range pods {
		listing, err := d.cluster.Exec(ctx, "demo", pods[i].Name, "nvidia-smi", "-L")
		if err != nil {
			return nil, err
		}
		var devices []string
		for line := range strings.Lines(listing) {
			if line = strings.TrimSpace(line); strings.HasPrefix(line, "MIG ") {
				devices = append(devices, line)
			}
		}
		if err := d.check(len(devices) == 1 && strings.HasPrefix(devices[0], "MIG "+profile+" ") && !seen[devices[0]], "pod %s sees a %s of its own, sees %q", pods[i].Name, profile, devices); err != nil {
			return nil, err
		}
		seen[devices[0]] = true
		details = append(details, "  "+subject.Render(devices[0]))
	}
	return details, d.check(len(pods) == want, "%d pods, have %d", want, len(pods))
}

// mpsPair has two pods with shares of different sizes of one GPU, by one MPS daemon.
func (d *demo) mpsPair(ctx context.Context) (string, []string, error) {
	if err := d.cluster.Apply(ctx, "demo/manifests/shares.yaml"); err != nil {
		return "", nil, err
	}
	var details []string
	var gpus []string
	for _, pod := range []struct{ name, limits string }{{"share-small", "25 % 0=10240M"}, {"share-large", "33 % 0=20480M"}} {
		if err := d.cluster.WaitPodRunning(ctx, "demo", pod.name, patience); err != nil {
			return "", nil, err
		}
		limits, err := d.cluster.Exec(ctx, "demo", pod.name, "sh", "-c", "echo $CUDA_MPS_ACTIVE_THREAD_PERCENTAGE % $CUDA_MPS_PINNED_DEVICE_MEM_LIMIT")
		if err != nil {
			return "", nil, err
		}
		if err := d.check(strings.TrimSpace(limits) == pod.limits, "pod %s is held to %s, has %s", pod.name, pod.limits, limits); err != nil {
			return "", nil, err
		}
		answer, err := d.cluster.Exec(ctx, "demo", pod.name, "sh", "-c", "echo get_default_active_thread_percentage | nvidia-cuda-mps-control")
		if err != nil {
			return "", nil, err
		}
		if err := d.check(strings.TrimSpace(answer) == "100.0", "pod %s reaches the MPS daemon, which says %q", pod.name, answer); err != nil {
			return "", nil, err
		}
		listing, err := d.cluster.Exec(ctx, "demo", pod.name, "nvidia-smi", "-L")
		if err != nil {
			return "", nil, err
		}
		gpus = append(gpus, strings.TrimSpace(listing))
		details = append(details, fmt.Sprintf("%s: multiprocessors and memory %s of %s", pod.name, subject.Render(pod.limits), gpus[len(gpus)-1]))
	}
	if err := d.check(gpus[0] == gpus[1], "both pods see one GPU, see %q", gpus); err != nil {
		return "", nil, err
	}
	daemons, err := d.mpsDaemons(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := d.check(daemons == 1, "they have one MPS daemon, have %d", daemons); err != nil {
		return "", nil, err
	}
	if err := d.delete(ctx, "shares", "share-"); err != nil {
		return "", nil, err
	}
	err = d.cluster.Until(ctx, patience, "the MPS daemon to end", func(ctx context.Context) (bool, error) {
		daemons, err := d.mpsDaemons(ctx)
		return daemons == 0, err
	})
	if err != nil {
		return "", nil, err
	}
	return "two pods with a quarter and a third of one GPU, at the same time", append(details, "One MPS daemon served both. It ended with the second."), nil
}

// drain has a GPU report an error with which nothing can go on: its pod is deleted, and its replacement gets another GPU.
func (d *demo) drain(ctx context.Context) (string, []string, error) {
	if err := d.cluster.Apply(ctx, "demo/manifests/service.yaml"); err != nil {
		return "", nil, err
	}
	if err := d.cluster.WaitRunning(ctx, "demo", "app=service", patience); err != nil {
		return "", nil, err
	}
	pods, err := d.cluster.Pods(ctx, "demo", "app=service")
	if err != nil || len(pods) != 1 {
		return "", nil, errors.Join(err, fmt.Errorf("%d pods of the service", len(pods)))
	}
	first := pods[0].Name
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	sick := p.of("service-")
	if err := d.check(len(sick) == 1, "the service holds one GPU, holds %s", sick.indexes()); err != nil {
		return "", nil, err
	}
	if _, err := d.simulator(ctx, "xid", sick.indexes(), "95"); err != nil {
		return "", nil, err
	}
	isSick := func(g gpu) bool { return g.uuid == sick[0].uuid && slices.Contains(g.taints, "XID95:NoExecute") }
	if _, err := d.wait(ctx, "the taint of the sick GPU", func(p picture) bool { return len(p.where(isSick)) == 1 }); err != nil {
		return "", nil, err
	}
	second, well, err := d.replacement(ctx, first, sick[0])
	if err != nil {
		return "", nil, err
	}
	if _, err := d.simulator(ctx, "recover", sick.indexes()); err != nil {
		return "", nil, err
	}
	if _, err := d.wait(ctx, "the taint to go", func(p picture) bool { return len(p.where(isSick)) == 0 }); err != nil {
		return "", nil, err
	}
	details := []string{
		fmt.Sprintf("GPU %s of %s reported XID 95 and got the taint %s.", sick.indexes(), sick[0].node, taken.Render("XID95:NoExecute")),
		fmt.Sprintf("Kubernetes deleted %s; its Deployment made %s, on GPU %s.", first, second, subject.Render(well.indexes())),
		fmt.Sprintf("GPU %s has recovered, and its taint is gone.", sick.indexes()),
	}
	return "a GPU fails: its pod goes on elsewhere", details, nil
}

// replacement waits for another pod of the service, and checks that it has a GPU that is well.
func (d *demo) replacement(ctx context.Context, first string, sick gpu) (pod string, well picture, err error) {
	if err := d.cluster.Until(ctx, patience, "another pod of the service to run", func(ctx context.Context) (bool, error) {
		pods, err := d.cluster.Pods(ctx, "demo", "app=service")
		if err != nil || len(pods) != 1 || pods[0].Name == first || !cluster.Running(&pods[0]) {
			return false, err
		}
		pod = pods[0].Name
		return true, nil
	}); err != nil {
		return "", nil, err
	}
	// The claim of the first pod goes a little after it.
	p, err := d.wait(ctx, "the claim of the deleted pod to go", func(p picture) bool { return len(p.of("service-")) == 1 })
	if err != nil {
		return "", nil, err
	}
	well = p.of("service-")
	if err := d.check(len(well) == 1 && well[0].uuid != sick.uuid && len(well[0].taints) == 0, "the replacement has another GPU, has %s", well.indexes()); err != nil {
		return "", nil, err
	}
	listing, err := d.cluster.Exec(ctx, "demo", pod, "nvidia-smi", "-L")
	if err != nil {
		return "", nil, err
	}
	return pod, well, d.check(strings.Contains(listing, well[0].uuid), "the container sees GPU %s, sees %s", well[0].uuid, listing)
}

// simulator runs switchyard-sim ctl on node-a.
func (d *demo) simulator(ctx context.Context, args ...string) (string, error) {
	pods, err := d.cluster.Pods(ctx, cluster.Namespace, cluster.PluginLabel)
	if err != nil {
		return "", err
	}
	for i := range pods {
		if pods[i].Spec.NodeName == "node-a" && pods[i].DeletionTimestamp == nil {
			return d.cluster.Kubectl(ctx, append([]string{"exec", "-n", cluster.Namespace, pods[i].Name, "-c", "plugin", "--", "switchyard-sim", "ctl"}, args...)...)
		}
	}
	return "", errors.New("no plugin pod on node-a")
}

// mpsDaemons counts the MPS daemons of node-a.
func (d *demo) mpsDaemons(ctx context.Context) (int, error) {
	says, err := d.simulator(ctx, "sharing", "show")
	if err != nil {
		return 0, err
	}
	_, daemons, ok := strings.Cut(says, "MPS DAEMON")
	if !ok {
		return 0, fmt.Errorf("cannot read %q", says)
	}
	return strings.Count(daemons, "GPU-"), nil
}
