// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cluster brings a local cluster up and down, and its nodes. It puts
// the other packages together: config says what a machine runs, sandbox runs
// it, network wires it, cgroup finds what is left of it.
package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/renameio/v2"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/build"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cgroup"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/config"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/procid"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

// Cluster is a local cluster of one state directory.
type Cluster struct {
	layout   layout.Layout
	versions build.Versions
	binRoot  string
	out      io.Writer
}

// New returns the cluster of a state directory, running or not. goMod is the
// go.mod that pins the programs' versions; progress goes to out.
func New(state string, goMod []byte, out io.Writer) (*Cluster, error) {
	l, err := layout.New(state)
	if err == nil {
		// One directory is one cluster, whatever it is called; and what nodes hide, they hide below links too.
		l, err = layout.New(resolve(l.State))
	}
	if err != nil {
		return nil, err
	}
	versions, err := build.ParseVersions(goMod)
	if err != nil {
		return nil, err
	}
	binRoot, err := build.CacheDir()
	if err != nil {
		return nil, err
	}
	binRoot = resolve(binRoot)
	if h := layout.HiddenBy(binRoot); h != "" {
		return nil, fmt.Errorf("folder for binaries %s lies below %s, which every node replaces by its own folder: set XDG_CACHE_HOME to another one", binRoot, h)
	}
	return &Cluster{layout: l, versions: versions, binRoot: binRoot, out: out}, nil
}

// resolve returns an absolute path without the symbolic links in it. Its end need not exist.
func resolve(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil || path == "/" {
		return real
	}
	return filepath.Join(resolve(filepath.Dir(path)), filepath.Base(path))
}

// Layout is where the cluster's files are.
func (c *Cluster) Layout() layout.Layout { return c.layout }

// Bin is the folder with the binaries of this version.
func (c *Cluster) Bin() string { return filepath.Join(c.binRoot, c.versions.Key()) }

func (c *Cluster) builder() *build.Builder {
	return &build.Builder{Versions: c.versions, Dir: c.Bin(), Out: c.out}
}

func (c *Cluster) say(format string, args ...any) { fmt.Fprintf(c.out, format+"\n", args...) }

// errNoCluster says that the state directory has no cluster.
var errNoCluster = errors.New("there is no cluster")

// load reads the cluster's shape.
func (c *Cluster) load() (config.Renderer, error) {
	data, err := os.ReadFile(c.layout.Config())
	if errors.Is(err, fs.ErrNotExist) {
		return config.Renderer{}, fmt.Errorf("%w in %s: start one with `localcluster up`", errNoCluster, c.layout.State)
	}
	if err != nil {
		return config.Renderer{}, fmt.Errorf("read the cluster's shape: %w", err)
	}
	var shape config.Cluster
	if err := json.Unmarshal(data, &shape); err != nil {
		return config.Renderer{}, fmt.Errorf("parse %s: %w: remove the cluster with `localcluster down`", c.layout.Config(), err)
	}
	if shape.Version != config.ClusterVersion {
		return config.Renderer{}, fmt.Errorf("the cluster in %s was made by another version of localcluster (format %d, this one has %d): remove it with `localcluster down`", c.layout.State, shape.Version, config.ClusterVersion)
	}
	return c.renderer(shape)
}

func (c *Cluster) renderer(shape config.Cluster) (config.Renderer, error) {
	plan, err := network.NewPlan(shape.CIDR)
	if err != nil {
		return config.Renderer{}, err
	}
	return config.Renderer{Layout: c.layout, Plan: plan, Cluster: shape}, nil
}

func (c *Cluster) save(shape config.Cluster) error {
	data, err := json.MarshalIndent(shape, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the cluster's shape: %w", err)
	}
	if err := os.MkdirAll(c.layout.State, 0o755); err != nil {
		return fmt.Errorf("create state directory: %w", err)
	}
	if err := renameio.WriteFile(c.layout.Config(), append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("save the cluster's shape: %w", err)
	}
	return nil
}

// index returns a node's place.
func index(shape config.Cluster, node string) (int, error) {
	i := slices.Index(shape.Nodes, node)
	if i < 0 {
		return 0, fmt.Errorf("there is no node %q: nodes are %s", node, strings.Join(shape.Nodes, ", "))
	}
	return i, nil
}

// init returns the identity of a machine's init; it may be long dead.
func (c *Cluster) init(machine string) procid.ID { return procid.Load(c.layout.PIDFile(machine)) }

const removeTimeout = 15 * time.Second

// kill ends a machine whatever its state is: its init, whatever else is in its
// control group, and the group itself.
func (c *Cluster) kill(machine string) error {
	if err := sandbox.Kill(c.init(machine)); err != nil {
		return fmt.Errorf("stop %s: %w", machine, err)
	}
	tree, err := cgroup.Host(c.layout.ID())
	if err != nil {
		return fmt.Errorf("stop %s: %w", machine, err)
	}
	if err := sweep(tree, machine); err != nil {
		return fmt.Errorf("stop %s: %w", machine, err)
	}
	if err := os.Remove(c.layout.PIDFile(machine)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("stop %s: %w", machine, err)
	}
	return nil
}

// sweep kills every process in a machine's control group, or in the whole
// cluster's when machine is empty, and removes the group. Killing an init ends
// its PID namespace, so a second look finds nothing; the loop covers machines
// that were starting processes meanwhile.
func sweep(tree *cgroup.Tree, machine string) error {
	deadline := time.Now().Add(removeTimeout)
	for {
		pids, err := tree.Processes(machine)
		if err != nil {
			return err
		}
		alive := 0
		for _, pid := range pids {
			id, err := procid.Of(pid)
			if errors.Is(err, fs.ErrNotExist) || !id.Alive() {
				continue // gone since
			}
			if err != nil {
				return err
			}
			// The group is ours alone, so whatever is in it is, too.
			alive++
			if err := id.Kill(removeTimeout); err != nil {
				return err
			}
		}
		if alive == 0 {
			return tree.Remove(machine, time.Until(deadline))
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%d processes of %q refuse to end", alive, machine)
		}
	}
}

// Watchable is the control socket of a machine.
func (c *Cluster) socket(shape config.Cluster, machine string) string {
	if machine == layout.ControlPlane {
		return c.layout.ControlSocket("cp")
	}
	return c.layout.ControlSocket(config.ShortID(slices.Index(shape.Nodes, machine)))
}

// healthy reports whether a machine's init runs and answers.
func (c *Cluster) healthy(shape config.Cluster, machine string) bool {
	if !c.init(machine).Alive() {
		return false
	}
	_, err := sandbox.Services(c.socket(shape, machine))
	return err == nil
}

// Build compiles the cluster's programs and packs its images.
func (c *Cluster) Build(ctx context.Context) error {
	b := c.builder()
	if err := build.EnsurePackages(ctx, len(b.Missing()) > 0, c.out); err != nil {
		return err
	}
	if err := b.Build(ctx); err != nil {
		return err
	}
	return c.buildImages()
}
