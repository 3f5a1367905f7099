// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cgroup"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/config"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/kubeapi"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
)

// Options are the wishes of `up`. Zero values take what the running cluster
// has, or the defaults.
type Options struct {
	// Nodes are the nodes' names.
	Nodes []string
	// NativeGangs asks for Kubernetes' own gang scheduling.
	NativeGangs *bool
	// CIDR is the cluster's network, a /16.
	CIDR string
	// Timeout limits how long the cluster may take to become ready, building
	// excluded.
	Timeout time.Duration
}

// DefaultNodes returns the names of n nodes: node-a, node-b, ...
func DefaultNodes(n int) []string {
	var names []string
	for i := range n {
		name := "node-" + string(rune('a'+i%26))
		if i >= 26 {
			name += fmt.Sprint(i / 26)
		}
		names = append(names, name)
	}
	return names
}

// Up brings the cluster up, or completes what an earlier, interrupted Up left,
// or does nothing to a cluster that is whole.
func (c *Cluster) Up(ctx context.Context, o Options) error {
	if err := checkHost(); err != nil {
		return err
	}
	unlock, err := c.lock("up")
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.checkState(); err != nil {
		return err
	}
	shape, err := c.shape(o)
	if err != nil {
		return err
	}
	if err := c.Build(ctx); err != nil {
		return err
	}
	start := time.Now()
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	if err := c.sweepStrangers(shape); err != nil {
		return err
	}
	r, started, err := c.startMachines(ctx, shape)
	if err != nil {
		return err
	}
	if err := c.awaitReady(ctx, r, started); err != nil {
		return fmt.Errorf("%w\nWhat has started is left running to be looked at (logs: %s). Try `localcluster up` again, or remove it with `localcluster down`", err, c.layout.Logs(""))
	}
	c.say("Cluster is ready after %.1f s.", time.Since(start).Seconds())
	return nil
}

func checkHost() error {
	if os.Geteuid() != 0 {
		return errors.New("a local cluster needs root, for namespaces, mounts and control groups: run this command with sudo")
	}
	return nil
}

// shape decides the cluster's shape from the wishes and what runs already. The
// shape of a new cluster may still lack its network.
func (c *Cluster) shape(o Options) (config.Cluster, error) {
	if o.CIDR != "" {
		if _, err := network.NewPlan(o.CIDR); err != nil {
			return config.Cluster{}, err
		}
	}
	old, err := c.load()
	if errors.Is(err, errNoCluster) {
		shape := config.Cluster{
			Version: config.ClusterVersion, BinKey: c.versions.Key(), Bin: c.Bin(),
			CIDR: o.CIDR, Nodes: o.Nodes, NativeGangs: o.NativeGangs != nil && *o.NativeGangs,
		}
		if len(shape.Nodes) == 0 {
			shape.Nodes = DefaultNodes(2)
		}
		return shape, checkNames(shape.Nodes)
	}
	if err != nil {
		return config.Cluster{}, err
	}
	shape := old.Cluster
	if differs := difference(shape, o, c.versions.Key()); differs != "" {
		return config.Cluster{}, fmt.Errorf("there is another cluster in %s: %s: remove it first with `localcluster down`", c.layout.State, differs)
	}
	if len(o.Nodes) > len(shape.Nodes) {
		shape.Nodes = o.Nodes
	}
	return shape, checkNames(shape.Nodes)
}

// difference says in what a cluster differs from what is wished for, or "".
func difference(shape config.Cluster, o Options, binKey string) string {
	switch {
	case shape.BinKey != binKey:
		return fmt.Sprintf("it runs the programs %s, this program brings %s", shape.BinKey, binKey)
	case o.CIDR != "" && o.CIDR != shape.CIDR:
		return fmt.Sprintf("its network is %s, not %s", shape.CIDR, o.CIDR)
	case o.NativeGangs != nil && *o.NativeGangs != shape.NativeGangs:
		return fmt.Sprintf("its --native-gangs is %t, not %t", shape.NativeGangs, *o.NativeGangs)
	case len(o.Nodes) > 0 && (len(o.Nodes) < len(shape.Nodes) || !slices.Equal(o.Nodes[:len(shape.Nodes)], shape.Nodes)):
		return fmt.Sprintf("its nodes are %s, not %s (nodes can only be added)", strings.Join(shape.Nodes, ","), strings.Join(o.Nodes, ","))
	}
	return ""
}

// checkState refuses a state directory that cannot hold nodes.
func (c *Cluster) checkState() error {
	if err := c.checkOwned(); err != nil {
		return fmt.Errorf("%w; if a cluster was here, end what may still run of it with `localcluster down` first", err)
	}
	if err := os.MkdirAll(c.layout.State, 0o755); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(c.layout.State, &fs); err != nil {
		return fmt.Errorf("look at state directory %s: %w", c.layout.State, err)
	}
	if fs.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return fmt.Errorf("state directory %s is on an overlay file system, on which containerd cannot make another: choose a folder on a disk, a volume or a tmpfs with --state or SWITCHYARD_STATE", c.layout.State)
	}
	return nil
}

// sweepStrangers ends what runs in the cluster's control groups and belongs to
// none of its machines: leftovers of a cluster whose state was deleted.
func (c *Cluster) sweepStrangers(shape config.Cluster) error {
	tree, err := cgroup.Host(c.layout.ID())
	if err != nil {
		return err
	}
	names, err := tree.Sandboxes()
	if err != nil {
		return err
	}
	for _, name := range names {
		if c.init(name).Alive() && (name == layout.ControlPlane || slices.Contains(shape.Nodes, name)) {
			continue
		}
		if err := sweep(tree, name); err != nil {
			return fmt.Errorf("end what is left of %s: %w", name, err)
		}
	}
	return nil
}

// startMachines starts the machines that do not run, and returns their names.
func (c *Cluster) startMachines(ctx context.Context, shape config.Cluster) (r config.Renderer, started []string, err error) {
	if c.healthy(shape, layout.ControlPlane) {
		if r, err = c.renderer(shape); err == nil {
			err = c.save(shape)
		}
	} else {
		started = append(started, layout.ControlPlane)
		r, err = c.startNetwork(ctx, shape)
	}
	if err != nil {
		return r, nil, err
	}
	for i, name := range r.Cluster.Nodes {
		if c.healthy(r.Cluster, name) {
			continue
		}
		c.say("Starting %s", name)
		if err := c.startNode(r, i); err != nil {
			return r, nil, err
		}
		started = append(started, name)
	}
	return r, started, c.connectNodes(r)
}

// startNetwork gives the cluster a network, unless it has one, and starts the
// control plane, which holds it.
func (c *Cluster) startNetwork(ctx context.Context, shape config.Cluster) (config.Renderer, error) {
	unlock, err := lockNetworks(ctx)
	if err != nil {
		return config.Renderer{}, err
	}
	defer unlock()
	if err := network.Disconnect(c.layout.ID()); err != nil {
		return config.Renderer{}, err
	}
	candidates := network.Candidates()
	if shape.CIDR != "" {
		candidates = []string{shape.CIDR}
	}
	var r config.Renderer
	for _, shape.CIDR = range candidates {
		if r, err = c.renderer(shape); err != nil {
			return r, err
		}
		if err = network.CheckFree(r.Plan, c.layout.ID()); err == nil {
			break
		}
	}
	if err != nil {
		return r, err
	}
	if err := c.save(r.Cluster); err != nil {
		return r, err
	}
	c.say("Starting the control plane on %s", r.Cluster.CIDR)
	return r, c.startControlPlane(r)
}

// awaitReady waits until every machine works, and fails at once when a service
// dies meanwhile.
func (c *Cluster) awaitReady(ctx context.Context, r config.Renderer, started []string) error {
	watch, cancel := context.WithCancel(ctx)
	defer cancel()
	var watchers, waiters errgroup.Group
	failed := make(chan error, len(r.Cluster.Nodes)+1)
	for _, machine := range append([]string{layout.ControlPlane}, r.Cluster.Nodes...) {
		watchers.Go(func() error {
			if err := c.watchServices(watch, r.Cluster, machine); err != nil && watch.Err() == nil {
				failed <- err
				cancel()
			}
			return nil
		})
	}
	api, err := kubeapi.New(c.layout.Kubeconfig())
	if err != nil {
		return err
	}
	waiters.Go(func() error {
		if err := poll(watch, "the API server", api.Ready); err != nil {
			return err
		}
		if slices.Contains(started, layout.ControlPlane) {
			c.say("API server is ready")
		}
		return poll(watch, "the controller-manager to make the default service account", api.DefaultServiceAccount)
	})
	for _, name := range r.Cluster.Nodes {
		waiters.Go(func() error { return c.awaitNode(watch, r, api, name, slices.Contains(started, name)) })
	}
	err = waiters.Wait()
	cancel()
	_ = watchers.Wait() // their errors are in failed
	select {
	case cause := <-failed:
		return cause
	default:
		return err
	}
}

// awaitNode loads the images into a node and waits until it is ready.
func (c *Cluster) awaitNode(ctx context.Context, r config.Renderer, api *kubeapi.Client, name string, started bool) error {
	if err := c.awaitContainerd(ctx, name); err != nil {
		return err
	}
	loaded := false
	if !started {
		var err error
		if loaded, err = c.hasImages(r.Cluster, name); err != nil {
			return err
		}
	}
	if !loaded {
		for _, archive := range c.baseImages() {
			if err := c.importImage(r.Cluster, name, archive); err != nil {
				return err
			}
		}
	}
	boot, err := os.ReadFile(c.layout.BootID(name))
	if err != nil {
		return fmt.Errorf("read boot ID of %s: %w", name, err)
	}
	err = poll(ctx, name+" to be Ready", func(ctx context.Context) error {
		node, err := api.Node(ctx, name)
		if err != nil {
			return err
		}
		if !node.Ready {
			return errors.New(node.Message)
		}
		if node.BootID != strings.TrimSpace(string(boot)) {
			return errors.New("its kubelet has not reported since the node was started")
		}
		return nil
	})
	if err == nil && started {
		c.say("%s is Ready", name)
	}
	return err
}
