// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubelet is a stand-in for the kubelet's part in DRA: it watches a plugin registry
// directory, registers what appears there over the plugin registration API and calls
// NodePrepareResources and NodeUnprepareResources of the newest plugin, as the kubelet does.
//
// It imports the kubelet's gRPC APIs and fsnotify. It has no pods, no checkpoint and no retries: a
// call that fails is reported as it is. It promises to notice a socket as soon as the kernel says so,
// and to prefer, of two registered instances, the one that registered last and is connected.
package kubelet

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// getInfoTimeout is the kubelet's own limit for GetInfo.
const getInfoTimeout = time.Second

// registerAgain is the time between two tries.
const registerAgain = time.Second

// Kubelet is a running stand-in for one driver's plugins.
type Kubelet struct {
	driver string
	cancel context.CancelFunc
	wg     sync.WaitGroup

	mu      sync.Mutex
	plugins []*plugin     // in the order of registration
	changed chan struct{} // closed and replaced when plugins or refused change
	refused error         // why the last registration failed
}

// plugin is one registered instance.
type plugin struct {
	Registration
	conn   *grpc.ClientConn
	client drapb.DRAPluginClient
}

// Registration is what an instance said about itself.
type Registration struct {
	// Socket is the file in the registry directory.
	Socket string
	// Endpoint is the socket of the DRA service.
	Endpoint string
	// Services are the "supported versions", for example "v1.DRAPlugin".
	Services []string
	// At is when the instance was told that it is registered.
	At time.Time
}

// Start watches the registry directory for plugins of the driver. Others are told that they are
// refused.
func Start(driver, registryDir string) (*Kubelet, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch %s: %w", registryDir, err)
	}
	if err := watcher.Add(registryDir); err != nil {
		return nil, errors.Join(fmt.Errorf("watch %s: %w", registryDir, err), watcher.Close())
	}
	present, err := os.ReadDir(registryDir)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("read %s: %w", registryDir, err), watcher.Close())
	}

	ctx, cancel := context.WithCancel(context.Background())
	k := &Kubelet{driver: driver, cancel: cancel, changed: make(chan struct{})}
	k.wg.Go(func() {
		defer watcher.Close()
		for _, entry := range present {
			k.wg.Go(func() { k.appeared(ctx, filepath.Join(registryDir, entry.Name())) })
		}
		for {
			select {
			case <-ctx.Done():
				return
			case event := <-watcher.Events:
				switch {
				case event.Has(fsnotify.Create):
					k.wg.Go(func() { k.appeared(ctx, event.Name) })
				case event.Has(fsnotify.Remove), event.Has(fsnotify.Rename):
					k.vanished(event.Name)
				}
			case err := <-watcher.Errors:
				k.refuse(fmt.Errorf("watch %s: %w", registryDir, err))
			}
		}
	})
	return k, nil
}

// Stop ends the watch and closes all connections.
func (k *Kubelet) Stop() {
	k.cancel()
	k.wg.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, p := range k.plugins {
		_ = p.conn.Close() // only fails when already closed
	}
	k.plugins = nil
}

// errNotAdmitted is of a plugin that says of itself what a kubelet does not take.
var errNotAdmitted = errors.New("not admitted")

// appeared registers the plugin behind a new socket; an error stays readable through WaitRegistered. As the kubelet
// does, it tries again for as long as the socket is there: a plugin may be slow to answer, or long dead.
func (k *Kubelet) appeared(ctx context.Context, socket string) {
	info, err := os.Stat(socket)
	if err != nil || info.Mode()&os.ModeSocket == 0 {
		return // gone again, or not a socket: the kubelet ignores such files too
	}
	same := func() bool {
		now, err := os.Stat(socket)
		return err == nil && os.SameFile(info, now)
	}
	p, err := k.register(ctx, socket)
	for ; err != nil; p, err = k.register(ctx, socket) {
		k.refuse(fmt.Errorf("register the plugin behind %s: %w", socket, err))
		if errors.Is(err, errNotAdmitted) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(registerAgain):
		}
		if !same() {
			return
		}
	}
	k.update(func() {
		if !same() {
			_ = p.conn.Close() // it vanished while it was being registered
			return
		}
		k.plugins = append(k.plugins, p)
	})
}

func (k *Kubelet) vanished(socket string) {
	k.update(func() {
		k.plugins = slices.DeleteFunc(k.plugins, func(p *plugin) bool {
			if p.Socket == socket {
				_ = p.conn.Close() // only fails when already closed
				return true
			}
			return false
		})
	})
}

func (k *Kubelet) refuse(err error) { k.update(func() { k.refused = err }) }

func (k *Kubelet) update(change func()) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change()
	close(k.changed)
	k.changed = make(chan struct{})
}

func (k *Kubelet) register(ctx context.Context, socket string) (_ *plugin, err error) {
	conn, err := dial(socket)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	registration := registerapi.NewRegistrationClient(conn)

	ctx, cancel := context.WithTimeout(ctx, getInfoTimeout)
	defer cancel()
	// The file is there from bind on, a moment before listen.
	info, err := registration.GetInfo(ctx, &registerapi.InfoRequest{}, grpc.WaitForReady(true))
	if err != nil {
		return nil, fmt.Errorf("GetInfo: %w", err)
	}
	p, reason := k.admit(socket, info)
	if reason != nil {
		_, err := registration.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{Error: reason.Error()})
		return nil, errors.Join(errNotAdmitted, reason, err)
	}
	if _, err := registration.NotifyRegistrationStatus(ctx, &registerapi.RegistrationStatus{PluginRegistered: true}); err != nil {
		return nil, errors.Join(fmt.Errorf("NotifyRegistrationStatus: %w", err), p.conn.Close())
	}
	p.At = time.Now()
	return p, nil
}

// admit checks what a plugin says and connects to its service.
func (k *Kubelet) admit(socket string, info *registerapi.PluginInfo) (*plugin, error) {
	switch {
	case info.Type != registerapi.DRAPlugin:
		return nil, fmt.Errorf("plugin type is %q, want %q", info.Type, registerapi.DRAPlugin)
	case info.Name != k.driver:
		return nil, fmt.Errorf("plugin name is %q, want %q", info.Name, k.driver)
	case !slices.Contains(info.SupportedVersions, drapb.DRAPluginService):
		return nil, fmt.Errorf("supported versions are %q, want %q among them", strings.Join(info.SupportedVersions, " "), drapb.DRAPluginService)
	}
	conn, err := dial(info.Endpoint)
	if err != nil {
		return nil, err
	}
	conn.Connect()
	return &plugin{
		Registration: Registration{Socket: socket, Endpoint: info.Endpoint, Services: info.SupportedVersions},
		conn:         conn,
		client:       drapb.NewDRAPluginClient(conn),
	}, nil
}

func dial(socket string) (*grpc.ClientConn, error) {
	conn, err := grpc.NewClient("unix:"+socket,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{
			Backoff: backoff.Config{
				BaseDelay:  time.Millisecond, // the default of a second would hide how soon a plugin serves
				Multiplier: 1.6,
				MaxDelay:   100 * time.Millisecond,
			},
			MinConnectTimeout: 5 * time.Second,
		}))
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", socket, err)
	}
	return conn, nil
}

// WaitRegistered waits until an instance that registered at or after since is there, and returns
// what it said. Its error tells why the last attempt to register failed.
func (k *Kubelet) WaitRegistered(ctx context.Context, since time.Time) (Registration, error) {
	for {
		k.mu.Lock()
		changed, refused := k.changed, k.refused
		for _, p := range k.plugins {
			if !p.At.Before(since) {
				k.mu.Unlock()
				return p.Registration, nil
			}
		}
		k.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return Registration{}, errors.Join(fmt.Errorf("no plugin of %s registered: %w", k.driver, context.Cause(ctx)), refused)
		}
	}
}

// Registrations lists the registered instances, oldest first.
func (k *Kubelet) Registrations() []Registration {
	k.mu.Lock()
	defer k.mu.Unlock()
	registrations := make([]Registration, 0, len(k.plugins))
	for _, p := range k.plugins {
		registrations = append(registrations, p.Registration)
	}
	return registrations
}

// newest returns the instance to call: of the connected ones the one that registered last.
func (k *Kubelet) newest() (*plugin, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(k.plugins) == 0 {
		return nil, fmt.Errorf("no plugin of %s is registered", k.driver)
	}
	for _, p := range slices.Backward(k.plugins) {
		if p.conn.GetState() == connectivity.Ready {
			return p, nil
		}
	}
	return k.plugins[len(k.plugins)-1], nil // it connects, or the call says why not
}
