// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/config"
)

const goModFile = "module m\n\ngo 1.26\n\nrequire k8s.io/kubernetes v1.37.2\n"

func newCluster(t *testing.T) *Cluster {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", "/tmp/cache")
	c, err := New(filepath.Join(t.TempDir(), "s"), []byte(goModFile), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestALinkToAStateDirectoryIsTheSameCluster(t *testing.T) {
	c := newCluster(t)
	link := filepath.Join(t.TempDir(), "link")
	if err := os.Symlink(filepath.Dir(c.layout.State), link); err != nil {
		t.Fatal(err)
	}
	other, err := New(filepath.Join(link, filepath.Base(c.layout.State)), []byte(goModFile), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if other.layout.ID() != c.layout.ID() {
		t.Errorf("%s and %s are two clusters", c.layout.State, other.layout.State)
	}
	if err := os.Symlink("/var/lib", link+"2"); err != nil {
		t.Fatal(err)
	}
	if _, err := New(filepath.Join(link+"2", "s"), []byte(goModFile), io.Discard); err == nil || !strings.Contains(err.Error(), "below /var/lib") {
		t.Errorf("a link to what nodes hide: %v", err)
	}
}

func TestNothingCanBeRemovedByAnybody(t *testing.T) {
	c := newCluster(t)
	if !c.absent() {
		t.Error("a cluster that never was is there")
	}
	if err := os.MkdirAll(c.layout.State, 0o755); err != nil {
		t.Fatal(err)
	}
	if c.absent() {
		t.Error("a cluster with a state directory is not there")
	}
}

func TestDefaultNodes(t *testing.T) {
	if got := DefaultNodes(2); !slices.Equal(got, []string{"node-a", "node-b"}) {
		t.Errorf("got %v", got)
	}
	all := DefaultNodes(64)
	if err := checkNames(all); err != nil {
		t.Error(err)
	}
	if all[25] != "node-z" || all[26] != "node-a1" {
		t.Errorf("got %v", all)
	}
}

func TestCheckNames(t *testing.T) {
	longest := strings.Repeat("x", 30) + "." + strings.Repeat("y", 32)
	for _, tt := range []struct {
		name    string
		nodes   []string
		wantErr string
	}{
		{"a name of 63 characters is fine", []string{longest}, ""},
		{"one more is not", []string{longest + "z"}, "at most 63"},
		{"upper case is refused", []string{"Node"}, "lower-case"},
		{"an empty name is refused", []string{""}, "DNS subdomain"},
		{"a name that would leave its folder is refused", []string{"../x"}, "DNS subdomain"},
		{"a name given twice is refused", []string{"a", "a"}, "twice"},
		{"the control plane's name is refused", []string{"control-plane"}, "taken"},
		{"too many are refused", DefaultNodes(65), "at most 64"},
	} {
		err := checkNames(tt.nodes)
		if (tt.wantErr == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.wantErr) {
			t.Errorf("%s: got %v", tt.name, err)
		}
	}
}

func TestShapeOfARunningClusterChangesOnlyByAddedNodes(t *testing.T) {
	yes, no := true, false
	for _, tt := range []struct {
		name    string
		wish    Options
		want    []string
		wantErr string
	}{
		{"no wish takes what is there", Options{}, []string{"a", "b"}, ""},
		{"the same wish is fine", Options{Nodes: []string{"a", "b"}, NativeGangs: &no}, []string{"a", "b"}, ""},
		{"a node is added", Options{Nodes: []string{"a", "b", "c"}}, []string{"a", "b", "c"}, ""},
		{"a node cannot go", Options{Nodes: []string{"a"}}, nil, "only be added"},
		{"a node cannot change its name", Options{Nodes: []string{"a", "c"}}, nil, "only be added"},
		{"the profile cannot change", Options{NativeGangs: &yes}, nil, "--native-gangs"},
		{"the network cannot change", Options{CIDR: "10.99.0.0/16"}, nil, "network"},
		{"a bad name is refused", Options{Nodes: []string{"a", "b", "C"}}, nil, "DNS subdomain"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			c := newCluster(t)
			err := c.save(config.Cluster{Version: config.ClusterVersion, BinKey: c.versions.Key(), CIDR: "10.77.0.0/16", Nodes: []string{"a", "b"}})
			if err != nil {
				t.Fatal(err)
			}
			got, err := c.shape(tt.wish)
			if tt.wantErr != "" {
				if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
					t.Errorf("got error %v, want one with %q", err, tt.wantErr)
				}
			} else if err != nil || !slices.Equal(got.Nodes, tt.want) {
				t.Errorf("got %v, %v; want %v", got.Nodes, err, tt.want)
			}
		})
	}
}

func TestShapeOfOtherPrograms(t *testing.T) {
	c := newCluster(t)
	if err := c.save(config.Cluster{Version: config.ClusterVersion, BinKey: "v1.30.0-0", CIDR: "10.77.0.0/16", Nodes: []string{"a"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.shape(Options{}); err == nil || !strings.Contains(err.Error(), "localcluster down") {
		t.Errorf("got %v", err)
	}
}

func TestDamagedShapeIsAnErrorWithAWayOut(t *testing.T) {
	for name, content := range map[string]string{"cut off": `{"version": 1, "no`, "another format": `{"version": 99}`} {
		c := newCluster(t)
		if err := os.MkdirAll(c.layout.State, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(c.layout.Config(), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := c.load(); err == nil || !strings.Contains(err.Error(), "localcluster down") {
			t.Errorf("%s: got %v", name, err)
		}
	}
}

func TestNoClusterSaysHowToStartOne(t *testing.T) {
	if _, err := newCluster(t).load(); !errors.Is(err, errNoCluster) || !strings.Contains(err.Error(), "localcluster up") {
		t.Errorf("got %v", err)
	}
}

func TestOnlyOneCommandAtATime(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(file, "up --state /s")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lock(file, "down"); err == nil || !strings.Contains(err.Error(), "up --state /s") {
		t.Errorf("the second command got %v, want an error that names the first", err)
	}
	unlock()
	unlock, err = lock(file, "down")
	if err != nil {
		t.Fatalf("after the first has finished: %v", err)
	}
	unlock()
}

func TestPollSaysWhatWasWrongLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := poll(ctx, "node-a to be Ready", func(context.Context) error { return errors.New("no network") })
		if err == nil || !strings.Contains(err.Error(), "node-a to be Ready") || !strings.Contains(err.Error(), "no network") {
			t.Errorf("got %v", err)
		}
		calls := 0
		if err := poll(t.Context(), "x", func(context.Context) error {
			if calls++; calls < 3 {
				return errors.New("not yet")
			}
			return nil
		}); err != nil || calls != 3 {
			t.Errorf("got %v after %d calls", err, calls)
		}
	})
}

func TestTailOfAMissingLogIsNoError(t *testing.T) {
	if got := tail(filepath.Join(t.TempDir(), "x"), 3); !strings.Contains(got, "no such file") {
		t.Errorf("got %q", got)
	}
}

func TestAFolderOfSomethingElseIsNeitherUsedNorDeleted(t *testing.T) {
	c := newCluster(t)
	if err := c.checkOwned(); err != nil {
		t.Errorf("a folder that does not exist: %v", err)
	}
	if err := os.MkdirAll(filepath.Join(c.layout.State, "holiday-pictures"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := c.checkOwned(); err == nil || !strings.Contains(err.Error(), "not a cluster's state directory") {
		t.Errorf("somebody else's folder: %v", err)
	}
	if err := c.save(config.Cluster{}); err != nil {
		t.Fatal(err)
	}
	if err := c.checkOwned(); err != nil {
		t.Errorf("a cluster's folder: %v", err)
	}
	if err := c.removeState(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(c.layout.State); err == nil {
		t.Error("the state directory is still there")
	}
}
