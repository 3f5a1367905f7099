// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestParseHierarchies(t *testing.T) {
	tests := []struct {
		name, mountinfo string
		want            []Hierarchy
	}{
		{
			"a v2 host", "30 1 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n25 1 0:5 / /proc rw - proc proc rw\n",
			[]Hierarchy{{Mountpoint: "/sys/fs/cgroup", V2: true}},
		},
		{
			"on a hybrid host v2 is a companion", "30 1 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n" +
				"31 1 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n" +
				"32 1 0:28 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n" +
				"33 1 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,name=systemd\n",
			[]Hierarchy{{Mountpoint: "/sys/fs/cgroup/memory"}, {Mountpoint: "/sys/fs/cgroup/cpuset", Cpuset: true}, {Mountpoint: "/sys/fs/cgroup/systemd"}, {Mountpoint: "/sys/fs/cgroup/unified", V2: true, Companion: true}},
		},
		{
			"a hierarchy mounted twice at one place counts once", "31 1 0:27 / /c rw - cgroup cgroup rw,memory\n32 1 0:27 / /c rw - cgroup cgroup rw,memory\n",
			[]Hierarchy{{Mountpoint: "/c"}},
		},
		{"a host without control groups", "25 1 0:5 / /proc rw - proc proc rw\n", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseHierarchies(strings.NewReader(tt.mountinfo))
			if err != nil || !slices.Equal(got, tt.want) {
				t.Errorf("got %+v, %v; want %+v", got, err, tt.want)
			}
		})
	}
}

// fake returns hierarchies on a plain file system, where mkdir does what the
// kernel would: it gives a new group its files.
func fake(t *testing.T) (tree *Tree, v1, v2 string) {
	t.Helper()
	v1, v2 = t.TempDir(), t.TempDir()
	put := func(path, content string) {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put(filepath.Join(v1, "cpuset.cpus"), "0-1\n")
	put(filepath.Join(v1, "cpuset.mems"), "0\n")
	put(filepath.Join(v2, "cgroup.controllers"), "cpu memory\n")
	put(filepath.Join(v2, "cgroup.subtree_control"), "cpu memory\n")
	mkdir := func(dir string) error {
		if err := os.Mkdir(dir, 0o755); err != nil {
			return err
		}
		put(filepath.Join(dir, "cgroup.procs"), "")
		if strings.HasPrefix(dir, v2) {
			put(filepath.Join(dir, "cgroup.controllers"), "memory\n")
			put(filepath.Join(dir, "cgroup.subtree_control"), "")
		}
		return nil
	}
	return &Tree{cluster: "x", hierarchies: []Hierarchy{{Mountpoint: v1, Cpuset: true}, {Mountpoint: v2, V2: true}}, mkdir: mkdir}, v1, v2
}

func TestCreateMakesGroupsThatTakeProcesses(t *testing.T) {
	tree, v1, v2 := fake(t)
	for range 2 { // the second time everything is there
		if err := tree.Create("node-a"); err != nil {
			t.Fatal(err)
		}
	}
	if cpus, err := os.ReadFile(filepath.Join(v1, "switchyard-x/node-a/init/cpuset.cpus")); err != nil || string(cpus) != "0-1\n" {
		t.Errorf("v1: the leaf has the CPUs %q, %v", cpus, err)
	}
	if control, err := os.ReadFile(filepath.Join(v2, "switchyard-x/node-a/cgroup.subtree_control")); err != nil || string(control) != "+memory" {
		t.Errorf("v2: the kubelet's root delegates %q, %v", control, err)
	}
	if control, err := os.ReadFile(filepath.Join(v2, "switchyard-x/node-a/init/cgroup.subtree_control")); err != nil || string(control) != "" {
		t.Errorf("v2: the leaf with processes delegates %q, %v", control, err)
	}
}

func TestCompanionIsLeftToContainerRuntimes(t *testing.T) {
	tree, _, v2 := fake(t)
	tree.hierarchies[1].Companion = true
	if err := tree.Create("node-a"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(v2, "switchyard-x")); err == nil {
		t.Error("a group was made there")
	}
}

func TestProcessesAreFoundInEveryGroupOfASandbox(t *testing.T) {
	tree, v1, v2 := fake(t)
	for _, name := range []string{"node-a", "node-b"} {
		if err := tree.Create(name); err != nil {
			t.Fatal(err)
		}
	}
	if err := tree.mkdir(filepath.Join(v2, "switchyard-x/node-a/kubepods")); err != nil {
		t.Fatal(err)
	}
	for path, pids := range map[string]string{
		filepath.Join(v1, "switchyard-x/node-a/init/cgroup.procs"):     "7\n8\n",
		filepath.Join(v2, "switchyard-x/node-a/init/cgroup.procs"):     "7\n0\n",
		filepath.Join(v2, "switchyard-x/node-a/kubepods/cgroup.procs"): "9\n",
		filepath.Join(v2, "switchyard-x/node-b/init/cgroup.procs"):     "10\n",
	} {
		if err := os.WriteFile(path, []byte(pids), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for sandbox, want := range map[string][]int{"node-a": {7, 8, 9}, "": {7, 8, 9, 10}, "node-c": nil} {
		if got, err := tree.Processes(sandbox); err != nil || !slices.Equal(got, want) {
			t.Errorf("of %q: got %v, %v; want %v", sandbox, got, err, want)
		}
	}
	if got, err := tree.Sandboxes(); err != nil || !slices.Equal(got, []string{"node-a", "node-b"}) {
		t.Errorf("sandboxes: %v, %v", got, err)
	}
}

func TestRemoveTakesChildrenFirst(t *testing.T) {
	root := t.TempDir()
	tree := &Tree{cluster: "x", hierarchies: []Hierarchy{{Mountpoint: root}}}
	if err := os.MkdirAll(filepath.Join(root, "switchyard-x/node-a/kubepods/pod1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(root, "switchyard-x/node-b"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := tree.Remove("node-a", time.Second); err != nil {
		t.Fatal(err)
	}
	if got, err := tree.Sandboxes(); err != nil || !slices.Equal(got, []string{"node-b"}) {
		t.Errorf("left: %v, %v", got, err)
	}
	for range 2 { // the second time nothing is there
		if err := tree.Remove("", time.Second); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "switchyard-x")); err == nil {
		t.Error("the cluster's group is still there")
	}
}
