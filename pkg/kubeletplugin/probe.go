// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerpb "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// probeTimeout bounds one look at the plugin's own sockets.
const probeTimeout = 2 * time.Second

// registrationSocket is where the kubelet finds the plugin.
func registrationSocket(c Config) string {
	if c.PodUID == "" {
		return filepath.Join(c.RegistryDir, v1alpha1.DriverName+"-reg.sock")
	}
	return filepath.Join(c.RegistryDir, kubeletplugin.RollingUpdateRegistrarSocketFile(c.RegistryDir, v1alpha1.DriverName, c.PodUID))
}

// serviceSocket is where the plugin serves the DRA calls; the helper derives the same name.
func serviceSocket(c Config) string {
	name := "dra"
	if c.PodUID != "" {
		name += "-" + string(c.PodUID)
	}
	return filepath.Join(c.PluginDir, name+".sock")
}

// Live reports whether the plugin does its work as the kubelet sees it: both sockets are there and
// answer. It calls through the sockets, so that a removed or stolen socket file is noticed.
func (d *Driver) Live(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	if err := probeRegistration(ctx, registrationSocket(d.config)); err != nil {
		return fmt.Errorf("registration socket: %w", err)
	}
	if err := probeService(ctx, serviceSocket(d.config)); err != nil {
		return fmt.Errorf("DRA socket: %w", err)
	}
	return nil
}

// Ready reports what keeps this node's GPUs from being used by new pods: nil when nothing does, the
// checks named in exclude left aside.
func (d *Driver) Ready(_ context.Context, exclude ...string) error {
	problems := d.conditions.problems(exclude...)
	if len(problems) == 0 {
		return nil
	}
	return errors.New(strings.Join(problems, "\n"))
}

func probeRegistration(ctx context.Context, socket string) (finalErr error) {
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, conn.Close()) }()
	if _, err := registerpb.NewRegistrationClient(conn).GetInfo(ctx, &registerpb.InfoRequest{}); err != nil {
		return fmt.Errorf("call GetInfo: %w", err)
	}
	return nil
}

func probeService(ctx context.Context, socket string) (finalErr error) {
	conn, err := dial(socket)
	if err != nil {
		return err
	}
	defer func() { finalErr = errors.Join(finalErr, conn.Close()) }()
	if _, err := drapb.NewDRAPluginClient(conn).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}); err != nil {
		return fmt.Errorf("call NodePrepareResources without claims: %w", err)
	}
	return nil
}

func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return conn, nil
}
