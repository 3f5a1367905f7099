// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"net"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

func TestFieldCase08_StaleSocketsAfterACrash(t *testing.T) {
	dir := shortTempDir(t)
	pluginDir, registryDir := filepath.Join(dir, "p"), filepath.Join(dir, "r")
	for _, d := range []string{pluginDir, registryDir} {
		if err := os.Mkdir(d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	alive := []string{
		filepath.Join(pluginDir, "dra-running.sock"),
		filepath.Join(registryDir, v1alpha1.DriverName+"-running-reg.sock"),
		filepath.Join(registryDir, "other.example.com-reg.sock"), // of another driver, dead or not
	}
	stale := []string{
		filepath.Join(pluginDir, "dra.sock"),
		filepath.Join(pluginDir, "dra-killed.sock"),
		filepath.Join(registryDir, v1alpha1.DriverName+"-reg.sock"),
		filepath.Join(registryDir, v1alpha1.DriverName+"-killed-reg.sock"),
	}
	for _, path := range slices.Concat(alive, stale) {
		listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains(stale, path) {
			listener.SetUnlinkOnClose(false) // as after kill -9
			if err := listener.Close(); err != nil {
				t.Fatal(err)
			}
			continue
		}
		t.Cleanup(func() { _ = listener.Close() })
	}

	if err := removeStaleSockets(t.Context(), v1alpha1.DriverName, pluginDir, registryDir); err != nil {
		t.Fatal(err)
	}
	for _, path := range alive {
		if _, err := os.Stat(path); err != nil {
			t.Errorf("a socket that somebody listens on is gone: %v", err)
		}
	}
	for _, path := range stale {
		if _, err := os.Stat(path); !os.IsNotExist(err) {
			t.Errorf("stale socket %s is still there", path)
		}
	}
}

// shortTempDir is t.TempDir for Unix sockets, whose paths must be short.
func shortTempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "kp")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}
