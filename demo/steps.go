// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"
)

// patience bounds every wait for the cluster; nothing in the demo takes nearly as long.
const patience = 2 * time.Minute

func (d *demo) tools(ctx context.Context) (string, []string, error) {
	summary, err := d.cluster.Build(ctx)
	return summary, nil, err
}

func (d *demo) up(ctx context.Context) (string, []string, error) {
	if err := d.cluster.Up(ctx); err != nil {
		return "", nil, err
	}
	nodes, err := d.cluster.ReadyNodes(ctx)
	if err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("%d nodes Ready: %s", len(nodes), strings.Join(nodes, ", ")), nil, d.check(len(nodes) == 2, "two nodes Ready, have %v", nodes)
}

func (d *demo) install(ctx context.Context) (string, []string, error) {
	if err := d.cluster.Install(ctx); err != nil {
		return "", nil, err
	}
	p, err := d.wait(ctx, "16 published GPUs", func(p picture) bool { return len(p) == 16 })
	if err != nil {
		return "", nil, err
	}
	if err := d.check(slices.Equal(p.domains(), []string{"node-a.0", "node-b.0", "node-b.1"}), "three domains published, have %v", p.domains()); err != nil {
		return "", nil, err
	}
	return fmt.Sprintf("%d GPUs in %d NVSwitch domains published", len(p), len(p.domains())), p.draw(""), nil
}

func (d *demo) trap(ctx context.Context) (string, []string, error) {
	if err := d.cluster.Apply(ctx, "demo/manifests/singles.yaml"); err != nil {
		return "", nil, err
	}
	if err := d.cluster.WaitRunning(ctx, "demo", "app=single", patience); err != nil {
		return "", nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := d.check(p.of("single-").indexes() == "0,2,4,6", "the singles hold GPUs 0,2,4,6, have %s", p.of("single-").indexes()); err != nil {
		return "", nil, err
	}

	seen, err := d.start(ctx, "plain", "plain")
	if err != nil {
		return "", nil, err
	}
	if p, err = d.picture(ctx); err != nil {
		return "", nil, err
	}
	held := p.of("plain-")
	if err := d.check(len(held) == 4 && len(held.domains()) == 2, "count: 4 lands across two domains, has GPUs %s of %v", held.indexes(), held.domains()); err != nil {
		return "", nil, err
	}
	details := append(p.onNode("node-b").draw("plain-"),
		"▣ = the pod that asked for count: 4. Kubernetes says Running.")
	details = append(details, seen.draw()...)
	if err := d.check(!seen.allLinked(), "the container's GPUs are not all connected by NVLink"); err != nil {
		return "", nil, err
	}
	return "four singles on node-b, then a job that asks for count: 4", details, d.delete(ctx, "plain", "plain")
}

func (d *demo) sameDomain(ctx context.Context) (string, []string, error) {
	if err := d.cluster.Apply(ctx, "demo/manifests/same-domain.yaml"); err != nil {
		return "", nil, err
	}
	reason, err := d.cluster.WaitUnschedulable(ctx, "demo", "same-domain", patience)
	if err != nil {
		return "", nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	if err := d.check(len(p.of("same-domain-")) == 0, "the waiting pod holds no GPU"); err != nil {
		return "", nil, err
	}
	details := []string{"pinned to node-b it waits and holds nothing:", "  " + faint.Render(reason)}
	if err := d.delete(ctx, "same-domain", "same-domain"); err != nil {
		return "", nil, err
	}

	seen, err := d.start(ctx, "anywhere", "anywhere")
	if err != nil {
		return "", nil, err
	}
	if p, err = d.picture(ctx); err != nil {
		return "", nil, err
	}
	held := p.of("anywhere-")
	if err := d.check(len(held) == 4 && slices.Equal(held.domains(), []string{"node-a.0"}), "four GPUs of node-a.0, has GPUs %s of %v", held.indexes(), held.domains()); err != nil {
		return "", nil, err
	}
	details = append(details, "without the pin it runs on a whole domain:")
	details = append(details, p.draw("anywhere-")...)
	details = append(details, seen.draw()...)
	if err := d.check(seen.allLinked(), "every pair of the container's GPUs is connected by NVLink"); err != nil {
		return "", nil, err
	}
	return "the same job with matchAttribute nvswitchDomain", details, d.delete(ctx, "anywhere", "anywhere")
}

func (d *demo) namedDomain(ctx context.Context) (string, []string, error) {
	seen, err := d.start(ctx, "named-domain", "named-domain")
	if err != nil {
		return "", nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return "", nil, err
	}
	held := p.of("named-domain-")
	if err := d.check(len(held) == 2 && slices.Equal(held.domains(), []string{"node-b.1"}), "two GPUs of node-b.1, has GPUs %s of %v", held.indexes(), held.domains()); err != nil {
		return "", nil, err
	}
	details := append(p.onNode("node-b").draw("named-domain-"), seen.draw()...)
	return `a CEL selector: two GPUs of nvswitchDomain "node-b.1"`, details, nil
}

// start applies demo/manifests/<name>.yaml, waits until its pod runs and checks that the container sees exactly
// the GPUs of its claim.
func (d *demo) start(ctx context.Context, name, claimPrefix string) (*sight, error) {
	if err := d.cluster.Apply(ctx, "demo/manifests/"+name+".yaml"); err != nil {
		return nil, err
	}
	if err := d.cluster.WaitPodRunning(ctx, "demo", name, patience); err != nil {
		return nil, err
	}
	p, err := d.picture(ctx)
	if err != nil {
		return nil, err
	}
	seen, err := d.look(ctx, name, "gpus")
	if err != nil {
		return nil, err
	}
	held := p.of(claimPrefix + "-")
	return seen, d.check(seen.shows(held), "the container of %s sees the GPUs of its claim: it sees %s, the claim holds %s", name, seen, held.indexes())
}

// delete deletes demo/manifests/<name>.yaml and waits until the claims are gone, so that the next picture is clean.
func (d *demo) delete(ctx context.Context, name, claimPrefix string) error {
	if err := d.cluster.DeleteManifest(ctx, "demo/manifests/"+name+".yaml", patience); err != nil {
		return err
	}
	_, err := d.wait(ctx, "the GPUs of "+name+" to be free", func(p picture) bool { return len(p.of(claimPrefix+"-")) == 0 })
	return err
}

func (d *demo) picture(ctx context.Context) (picture, error) {
	published, err := d.cluster.ResourceSlices(ctx)
	if err != nil {
		return nil, err
	}
	claims, err := d.cluster.ResourceClaims(ctx, "demo")
	if err != nil {
		return nil, err
	}
	return newPicture(published, claims), nil
}

// wait takes pictures until one satisfies the condition.
func (d *demo) wait(ctx context.Context, what string, ok func(picture) bool) (picture, error) {
	var p picture
	err := d.cluster.Until(ctx, patience, what, func(ctx context.Context) (bool, error) {
		var err error
		p, err = d.picture(ctx)
		return err == nil && ok(p), err
	})
	return p, err
}
