// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/klog/v2"
)

// maxSocketPath is the longest path of a Unix socket in bytes (sun_path without its NUL).
const maxSocketPath = 107

// removeStaleSockets removes the sockets that an earlier process of this driver left when it was
// killed. With rolling updates every pod has sockets of its own name, so a new pod's listening does
// not replace them, and the kubelet would go on dialling the dead registration socket.
//
// A socket is stale when nobody listens on it (ECONNREFUSED); one that answers belongs to the
// instance that is being replaced and stays.
func removeStaleSockets(ctx context.Context, driverName, pluginDir, registryDir string) error {
	var errs []error
	for _, pattern := range []string{
		filepath.Join(pluginDir, "dra*.sock"),
		filepath.Join(registryDir, driverName+"-*reg.sock"),
	} {
		paths, err := filepath.Glob(pattern)
		if err != nil {
			errs = append(errs, fmt.Errorf("list sockets %s: %w", pattern, err))
			continue
		}
		for _, path := range paths {
			if !refusesConnection(ctx, path) {
				continue
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				errs = append(errs, fmt.Errorf("remove stale socket: %w", err))
				continue
			}
			klog.FromContext(ctx).Info("Removed a stale socket of an earlier process", "path", path)
		}
	}
	return errors.Join(errs...)
}

func refusesConnection(ctx context.Context, path string) bool {
	dialer := net.Dialer{Timeout: time.Second}
	conn, err := dialer.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close() // only the attempt mattered
		return false
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}
