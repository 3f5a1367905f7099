// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cgroup creates, searches and removes the cluster's part of the
// machine's control groups, on cgroup v1, on v2, and on hosts that mount both.
// A cluster's processes all live below one group of its own: that, and not a
// process's name, tells what a killed cluster left behind. It imports only the standard
// library and golang.org/x/sys/unix.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// base returns the group, in every hierarchy, that holds a whole cluster.
func base(cluster string) string { return "/switchyard-" + cluster }

// initGroup holds a sandbox's own services. On cgroup v2 processes may only
// live in leaves, and the kubelet makes the pods' groups beside it.
const initGroup = "init"

// Hierarchy is one mounted cgroup tree.
type Hierarchy struct {
	// Mountpoint is where it is mounted.
	Mountpoint string
	// V2 tells the unified hierarchy from those of v1.
	V2 bool
	// Companion is true for a v2 hierarchy that accompanies those of v1. It
	// has no controllers, so the cluster makes no groups there; container
	// runtimes do, however.
	Companion bool
	// Cpuset is true for the v1 hierarchy whose groups need CPUs and memory
	// nodes before they accept processes.
	Cpuset bool
}

// ParseHierarchies finds the cgroup mounts in the contents of
// /proc/self/mountinfo.
func ParseHierarchies(mountinfo io.Reader) ([]Hierarchy, error) {
	var v1, v2 []Hierarchy
	seen := map[string]bool{}
	lines := bufio.NewScanner(mountinfo)
	for lines.Scan() {
		left, right, ok := strings.Cut(lines.Text(), " - ")
		if !ok {
			continue
		}
		mount, super := strings.Fields(left), strings.Fields(right)
		if len(mount) < 5 || len(super) < 3 || seen[mount[4]] {
			continue
		}
		switch super[0] {
		case "cgroup":
			cpuset := slices.Contains(strings.Split(super[2], ","), "cpuset")
			v1 = append(v1, Hierarchy{Mountpoint: mount[4], Cpuset: cpuset})
		case "cgroup2":
			v2 = append(v2, Hierarchy{Mountpoint: mount[4], V2: true})
		default:
			continue
		}
		seen[mount[4]] = true
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read mount table: %w", err)
	}
	if len(v2) > 1 {
		v2 = v2[:1]
	}
	if len(v1) > 0 && len(v2) > 0 {
		v2[0].Companion = true
	}
	return slices.Concat(v1, v2), nil
}

// Tree is a cluster's part of all hierarchies.
type Tree struct {
	cluster     string
	hierarchies []Hierarchy
	// mkdir makes a group; the kernel fills it with its files.
	mkdir func(dir string) error
}

// Host returns a cluster's tree on this machine.
func Host(cluster string) (*Tree, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	defer f.Close()
	hierarchies, err := ParseHierarchies(f)
	if err != nil {
		return nil, fmt.Errorf("find control groups: %w", err)
	}
	if len(hierarchies) == 0 {
		return nil, errors.New("no control groups are mounted on this machine: mount cgroup2 on /sys/fs/cgroup")
	}
	return &Tree{cluster: cluster, hierarchies: hierarchies, mkdir: func(dir string) error { return os.Mkdir(dir, 0o755) }}, nil
}

// Group is the path, in every hierarchy, of one sandbox of a cluster. A kubelet
// uses it as its cgroupRoot.
func Group(cluster, sandbox string) string { return path.Join(base(cluster), sandbox) }

// Create makes the groups of a sandbox. Groups that exist are kept.
func (t *Tree) Create(sandbox string) error {
	for _, h := range t.hierarchies {
		if h.Companion {
			continue
		}
		dir := h.Mountpoint
		for part := range strings.SplitSeq(strings.TrimPrefix(Group(t.cluster, sandbox), "/"), "/") {
			if h.V2 {
				if err := delegate(dir); err != nil {
					return fmt.Errorf("control group for %s: %w", sandbox, err)
				}
			}
			parent := dir
			dir = filepath.Join(dir, part)
			if err := t.makeGroup(h, parent, dir); err != nil {
				return fmt.Errorf("control group for %s: %w", sandbox, err)
			}
		}
		if h.V2 {
			if err := delegate(dir); err != nil {
				return fmt.Errorf("control group for %s: %w", sandbox, err)
			}
		}
		if err := t.makeGroup(h, dir, filepath.Join(dir, initGroup)); err != nil {
			return fmt.Errorf("control group for %s: %w", sandbox, err)
		}
	}
	return nil
}

func (t *Tree) makeGroup(h Hierarchy, parent, dir string) error {
	if err := t.mkdir(dir); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	if !h.Cpuset {
		return nil
	}
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		own, err := os.ReadFile(filepath.Join(dir, name))
		if err == nil && strings.TrimSpace(string(own)) != "" {
			continue
		}
		inherited, err := os.ReadFile(filepath.Join(parent, name))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), inherited, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// delegate lets the children of a v2 group use all of its controllers.
func delegate(dir string) error {
	available, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	enabled, err := os.ReadFile(filepath.Join(dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	have := strings.Fields(string(enabled))
	for controller := range strings.FieldsSeq(string(available)) {
		if slices.Contains(have, controller) {
			continue
		}
		err := os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), []byte("+"+controller), 0o644)
		// A busy controller (cpu, while real-time tasks exist) is left out,
		// as the kernel's documentation has it; the kubelet names what it
		// misses.
		if err != nil && !errors.Is(err, unix.EBUSY) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

// Join moves a process, with all its threads, into the group of a sandbox's
// own services. PID 0 is the caller.
func (t *Tree) Join(sandbox string, pid int) error {
	for _, h := range t.hierarchies {
		if h.Companion {
			continue
		}
		procs := filepath.Join(h.Mountpoint, Group(t.cluster, sandbox), initGroup, "cgroup.procs")
		if err := os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0o644); err != nil {
			return fmt.Errorf("move process %d into the control group of %s: %w", pid, sandbox, err)
		}
	}
	return nil
}

// Sandboxes names the sandboxes that have groups.
func (t *Tree) Sandboxes() ([]string, error) {
	var names []string
	for _, h := range t.hierarchies {
		entries, err := os.ReadDir(filepath.Join(h.Mountpoint, base(t.cluster)))
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("list control groups: %w", err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(names, e.Name()) {
				names = append(names, e.Name())
			}
		}
	}
	slices.Sort(names)
	return names, nil
}

// Processes lists the processes of a sandbox in any hierarchy, pods included,
// or of the whole cluster when sandbox is empty.
func (t *Tree) Processes(sandbox string) ([]int, error) {
	var pids []int
	for _, h := range t.hierarchies {
		err := walk(filepath.Join(h.Mountpoint, base(t.cluster), sandbox), func(dir string) error {
			data, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
			if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV) {
				return nil
			}
			if err != nil {
				return err
			}
			for field := range strings.FieldsSeq(string(data)) {
				// 0 stands for a process that this PID namespace cannot see.
				if pid, err := strconv.Atoi(field); err == nil && pid > 0 && !slices.Contains(pids, pid) {
					pids = append(pids, pid)
				}
			}
			return nil
		})
		if err != nil {
			return nil, fmt.Errorf("list processes of control group %s: %w", Group(t.cluster, sandbox), err)
		}
	}
	slices.Sort(pids)
	return pids, nil
}

// Remove deletes the groups of a sandbox, or of the whole cluster when sandbox
// is empty. Their processes must have ended; the kernel may need a moment to
// notice, which is what the timeout is for.
func (t *Tree) Remove(sandbox string, timeout time.Duration) error {
	deadline := time.Now().Add(timeout)
	for _, h := range t.hierarchies {
		root := filepath.Join(h.Mountpoint, base(t.cluster), sandbox)
		for {
			err := walk(root, func(dir string) error {
				err := os.Remove(dir)
				if errors.Is(err, fs.ErrNotExist) {
					return nil
				}
				return err
			})
			if err == nil {
				break
			}
			if !errors.Is(err, unix.EBUSY) || time.Now().After(deadline) {
				return fmt.Errorf("remove control group: %w", err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
	return nil
}

// walk visits the groups below root, children first.
func walk(root string, visit func(dir string) error) error {
	entries, err := os.ReadDir(root)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	for _, e := range entries {
		if e.IsDir() {
			if err := walk(filepath.Join(root, e.Name()), visit); err != nil {
				return err
			}
		}
	}
	return visit(root)
}
