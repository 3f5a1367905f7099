// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

const (
	// lookInterval is how often those who wait for a file look for it in case they were not told.
	lookInterval = time.Second
	// hopeless is after how many attempts nobody waits for a daemon any more.
	hopeless = 3
)

// ErrNoSupervisor matches errors that say that no supervisor runs on this node.
var ErrNoSupervisor = errors.New("no MPS supervisor runs on this node: apply deployments/mps, " +
	"and label the node switchyard.dev/mps=true")

// Endpoint is what a container needs to use a daemon: directories on the host.
type Endpoint struct {
	// PipeDir is to be CUDA_MPS_PIPE_DIRECTORY.
	PipeDir string
	// SharedMemoryDir is to be /dev/shm.
	SharedMemoryDir string
}

// Daemons asks for daemons. It is safe for concurrent use; calls for one daemon are the caller's to order. Any
// number of processes may use the same directory.
type Daemons struct {
	layout          layout
	sharedMemoryDir string
}

// NewDaemons returns what asks for daemons in a directory, which is made. sharedMemoryDir must be the supervisor's.
func NewDaemons(dir, sharedMemoryDir string) (*Daemons, error) {
	d := &Daemons{layout(dir), sharedMemoryDir}
	return d, d.layout.prepare(d.layout.specs())
}

// Ensure asks for a daemon and waits until it answers and has its limits. It fails with [ErrNoSupervisor], with
// what is wrong with the daemon, or when ctx ends. Whether or not it fails, the daemon stays asked for.
func (d *Daemons) Ensure(ctx context.Context, spec Spec) (Endpoint, error) {
	data, err := d.ask(spec)
	if err != nil {
		return Endpoint{}, err
	}
	var status Status
	err = d.wait(ctx, func() (bool, error) {
		if !d.supervised() {
			return false, ErrNoSupervisor
		}
		var err error
		if status, err = d.Status(spec.ID); err != nil || status.SpecHash != hashOf(data) {
			return false, err
		}
		switch {
		case status.State == Ready:
			return true, nil
		case status.State == Refused, status.State == Failed && status.Restarts+1 >= hopeless:
			return false, errors.New(status.Message)
		}
		return false, nil
	})
	if errors.Is(err, context.DeadlineExceeded) && status.Message != "" {
		err = fmt.Errorf("%w; %s", err, status.Message)
	}
	if err != nil {
		return Endpoint{}, fmt.Errorf("MPS daemon %s: %w", spec.ID, err)
	}
	if status.SharedMemoryDir != d.endpoint(spec.ID).SharedMemoryDir {
		return Endpoint{}, fmt.Errorf("MPS daemon %s: its shared memory is in %s and not in %s: give the plugin's --mps-shm-dir and the supervisor's --shm-dir one value",
			spec.ID, status.SharedMemoryDir, d.endpoint(spec.ID).SharedMemoryDir)
	}
	// The supervisor sees the directory mounted, and not what the path leads to on the host. Here it may not be seen at all.
	if err := checkOwn(d.sharedMemoryDir); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return Endpoint{}, fmt.Errorf("MPS daemon %s: %w", spec.ID, err)
	}
	return d.endpoint(spec.ID), nil
}

// Ask is Ensure without waiting.
func (d *Daemons) Ask(spec Spec) (Endpoint, error) {
	_, err := d.ask(spec)
	return d.endpoint(spec.ID), err
}

// ask writes a spec unless it is there.
func (d *Daemons) ask(spec Spec) ([]byte, error) {
	data, err := spec.encode()
	if err != nil {
		return nil, fmt.Errorf("MPS daemon %q: %w", spec.ID, err)
	}
	if now, err := readFile(d.layout.spec(spec.ID)); err == nil && bytes.Equal(now, data) {
		return data, nil
	}
	if err := atomicfile.Write(d.layout.spec(spec.ID), data, filePerm); err != nil {
		return nil, fmt.Errorf("ask for MPS daemon %s: %w", spec.ID, err)
	}
	return data, nil
}

func (d *Daemons) endpoint(id string) Endpoint {
	return Endpoint{PipeDir: d.layout.pipeDir(id), SharedMemoryDir: sharedMemory(d.sharedMemoryDir, id)}
}

// Remove asks for a daemon not to be, and waits until it is gone. One that is not there is no error. Without a
// supervisor it is gone already, since they end with it.
func (d *Daemons) Remove(ctx context.Context, id string) error {
	if !validID(id) {
		return fmt.Errorf("remove MPS daemon %q: there cannot be one of this ID", id)
	}
	if err := remove(d.layout.spec(id)); err != nil {
		return fmt.Errorf("remove MPS daemon %s: %w", id, err)
	}
	err := d.wait(ctx, func() (bool, error) {
		if !d.supervised() {
			// The directory stays: by it the next supervisor knows that there is shared memory to remove.
			return true, errors.Join(empty(d.layout.daemon(id)), remove(d.layout.status(id)))
		}
		_, err := os.Lstat(d.layout.status(id))
		return errors.Is(err, fs.ErrNotExist), nil
	})
	if err != nil {
		return fmt.Errorf("wait for MPS daemon %s to end: %w", id, err)
	}
	return nil
}

// List returns the IDs of the daemons that are asked for, sorted.
func (d *Daemons) List() ([]string, error) {
	ids, err := list(d.layout.specs())
	if err != nil {
		return nil, fmt.Errorf("list MPS daemons: %w", err)
	}
	slices.Sort(ids)
	return ids, nil
}

// Status tells how a daemon is. A daemon that the supervisor has not seen yet is Starting.
func (d *Daemons) Status(id string) (Status, error) {
	data, err := readFile(d.layout.status(id))
	if errors.Is(err, fs.ErrNotExist) {
		return Status{ID: id, State: Starting}, nil
	}
	if err != nil {
		return Status{}, fmt.Errorf("read the status of MPS daemon %s: %w", id, err)
	}
	status, err := decodeStatus(data)
	if err != nil {
		return Status{}, fmt.Errorf("the status of MPS daemon %s is damaged: %w", id, err)
	}
	return status, nil
}

// supervised reports whether a supervisor runs: it holds its lock.
func (d *Daemons) supervised() bool {
	file, err := os.Open(d.layout.supervisorLock())
	if err != nil {
		return false
	}
	defer file.Close()
	return errors.Is(unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB), unix.EWOULDBLOCK)
}

// wait calls done until it says so, whenever a status may have changed.
func (d *Daemons) wait(ctx context.Context, done func() (bool, error)) error {
	watcher := watch(ctx, d.layout.statuses())
	defer watcher.close()
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		if ok, err := done(); ok || err != nil {
			return err
		}
		select {
		case <-watcher.events:
		case err := <-watcher.errors:
			klog.FromContext(ctx).V(2).Info("Missed changes of MPS daemons, looking at them now", "err", err)
		case <-look.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// dirWatcher tells when something in a directory may have changed; never, where that cannot be had.
type dirWatcher struct {
	events chan fsnotify.Event
	errors chan error
	close  func()
}

// newWatcher is a variable for tests.
var newWatcher = fsnotify.NewWatcher

// watch watches a directory. The kernel allows each user a number of watchers, which all programs of the node that run
// as root share: without one, changes are found at the next look.
func watch(ctx context.Context, dir string) dirWatcher {
	watcher, err := newWatcher()
	if err == nil {
		if err = watcher.Add(dir); err == nil {
			return dirWatcher{watcher.Events, watcher.Errors, func() { _ = watcher.Close() }} // an error would change nothing
		}
		_ = watcher.Close()
	}
	klog.FromContext(ctx).Info("Cannot watch the directory of MPS daemons, looking at it every now and then", "directory", dir, "every", lookInterval, "err", err)
	return dirWatcher{close: func() {}}
}

func remove(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}
