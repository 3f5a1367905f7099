// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"golang.org/x/sync/singleflight"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// DefaultTimeout bounds one discovery. Without persistence mode the driver wakes each GPU for it, which
// takes seconds; more than this means that a call hangs.
const DefaultTimeout = time.Minute

// Options say where to find NVML and sysfs.
type Options struct {
	// NodeName is the name of the Node object. Node-local domains are named after it.
	NodeName string
	// DriverRoot is the directory, in this process's file system, under which the driver's files lie.
	// Empty or "/" leaves the search for libnvidia-ml.so.1 to the dynamic linker.
	DriverRoot string
	// SysfsRoot is where sysfs is mounted; empty means "/sys".
	SysfsRoot string
	// MIG are the GPUs that may be partitioned, of those whose MIG mode is on.
	MIG device.Selection
	// Lib is an NVML to use instead of the shared library, such as a simulated one; see the package
	// comment for what it must answer.
	Lib gonvml.Interface
	// Timeout bounds one discovery; 0 means DefaultTimeout.
	Timeout time.Duration
	// Clock tells when NVML is initialised anew for GPUs in trouble; nil means the real one.
	Clock clock.PassiveClock
}

// Library is the NVML of this node. It is safe for concurrent use.
type Library struct {
	options Options
	flight  singleflight.Group
	// step says what the discovery in flight is doing, for the error when it hangs.
	step atomic.Value // string
	// busy is held by the one who calls NVML. It is a channel since a call may hang for ever.
	busy chan struct{}

	// session counts how often NVML was left to be initialised anew: who has an initialisation of its own
	// gives it up then.
	session atomic.Uint64

	// partitioning keeps calls that change the partitions of one GPU apart.
	partitioning gpuTokens

	mu   sync.Mutex       // for lib and path, which only the holder of busy sets back
	lib  gonvml.Interface // nil until the shared library was located
	path string           // of lib, where it is the shared library

	// Guarded by busy.
	initialised bool
	trouble     trouble
	loadedPath  string      // of the library file in this process's memory
	loaded      fs.FileInfo // of that file when it was loaded
}

// Open returns the node's NVML without touching it: a broken driver is an error of Discover only. The
// error is about the options.
func Open(options Options) (*Library, error) {
	if options.NodeName == "" {
		return nil, errors.New("open NVML: node name is empty")
	}
	if options.SysfsRoot == "" {
		options.SysfsRoot = "/sys"
	}
	if options.Timeout == 0 {
		options.Timeout = DefaultTimeout
	}
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Library{options: options, lib: options.Lib, busy: make(chan struct{}, 1)}, nil
}

// Interface returns the NVML for other libraries, such as nvcdi. They have to call Init and Shutdown
// themselves, which NVML counts. Init fails while Discover does.
func (l *Library) Interface() gonvml.Interface {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lib == nil {
		path, err := locate(l.options.DriverRoot)
		if err != nil {
			// Init of this one fails, too.
			return gonvml.New(gonvml.WithLibraryPath(filepath.Join(l.options.DriverRoot, libraryDirs[0], soname)))
		}
		l.path = path
		l.lib = gonvml.New(gonvml.WithLibraryPath(path))
	}
	return l.lib
}

// Discover returns the node's GPUs as they are now, with their domains. An inventory without GPUs is no
// error.
//
// NVML finds a GPU that came back only when it is initialised anew, which ends every [Library.WatchHealth].
// That happens when other GPUs are in trouble than before, and then after pauses that grow from a second to 5
// minutes: one that stays lost must not keep the others from being heard.
//
// The error is ctx's if that was cancelled, and otherwise an [*UnavailableError]. NVML calls cannot be
// interrupted: when one hangs, Discover returns after the timeout (or ctx's deadline) and the call stays
// in flight. A later Discover waits for the same call rather than adding another that hangs; once it has
// returned, discovery works again.
func (l *Library) Discover(ctx context.Context) (device.Inventory, error) {
	result, err := l.await(ctx, "discover GPUs", "discover", func() (any, error) {
		return l.discover(context.WithoutCancel(ctx))
	})
	if err != nil {
		return device.Inventory{}, err
	}
	inventory := result.(device.Inventory)
	inventory.GPUs = slices.Clone(inventory.GPUs)
	return inventory, nil
}

// await makes calls of NVML as Discover promises. Calls of one key are made once for all who wait for them.
func (l *Library) await(ctx context.Context, what, key string, call func() (any, error)) (any, error) {
	waiting, cancel := context.WithTimeout(ctx, l.options.Timeout)
	defer cancel()
	select {
	case done := <-l.flight.DoChan(key, call):
		return done.Val, done.Err
	case <-waiting.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, fmt.Errorf("%s: %w", what, context.Cause(ctx))
		}
		step, _ := l.step.Load().(string)
		return nil, &UnavailableError{ReasonNotResponding, fmt.Sprintf(
			"no answer in time; the call in flight is %s: a GPU or the driver hangs, see the kernel log of the node", step)}
	}
}

// closeTimeout bounds what a shutdown waits for NVML.
const closeTimeout = time.Second

// Close releases the driver. It fails if a call hangs, also one of those who use Interface: NVML may
// wait for it.
func (l *Library) Close() error {
	late := time.After(closeTimeout)
	select {
	case l.busy <- struct{}{}:
	case <-late:
		step, _ := l.step.Load().(string)
		return fmt.Errorf("close NVML: call %s is still in flight", step)
	}
	if !l.initialised {
		<-l.busy
		return nil
	}
	l.initialised = false
	answer := make(chan gonvml.Return, 1)
	go func() {
		defer func() { <-l.busy }()
		answer <- l.lib.Shutdown()
	}()
	select {
	case ret := <-answer:
		if ret != gonvml.SUCCESS {
			return fmt.Errorf("close NVML: nvmlShutdown: %w", ret)
		}
		return nil
	case <-late:
		return fmt.Errorf("close NVML: nvmlShutdown has not returned within %v", closeTimeout)
	}
}

// discover does the work of Discover, however long it takes.
func (l *Library) discover(ctx context.Context) (device.Inventory, error) {
	l.busy <- struct{}{}
	defer func() { <-l.busy }()
	logger := klog.FromContext(ctx)

	if err := l.initialise(); err != nil {
		return device.Inventory{}, err
	}
	r := newReader(l.lib, l.options, l.progress)
	inventory, err := r.inventory()
	if err != nil || l.trouble.leave(l.options.Clock.Now(), r.listed, r.troubled) {
		// NVML keeps a list of GPUs from its initialisation, and holds their device nodes open, which
		// stands in the way of a reset. Start anew the next time.
		logger.V(3).Info("Leaving NVML because of trouble", "err", err, "gpus", r.troubled)
		l.leave()
	}
	if err != nil {
		return device.Inventory{}, err
	}
	return inventory, nil
}

func (l *Library) progress(step string) { l.step.Store(step) }

// initialise loads and initialises NVML unless that is done.
func (l *Library) initialise() error {
	if l.initialised {
		return nil
	}
	l.progress("nvmlInit_v2")
	if l.options.Lib == nil {
		if _, err := locate(l.options.DriverRoot); err != nil {
			return &UnavailableError{ReasonLibraryNotFound, err.Error()}
		}
	}
	lib := l.Interface()
	ret := lib.Init()
	if ret != gonvml.ERROR_LIBRARY_NOT_FOUND {
		l.rememberFile()
	}
	switch ret {
	case gonvml.SUCCESS:
		l.initialised = true
		return nil
	case gonvml.ERROR_LIBRARY_NOT_FOUND:
		if l.options.Lib == nil {
			path := l.path
			l.mu.Lock()
			l.lib = nil // locate it anew
			l.mu.Unlock()
			return &UnavailableError{ReasonLibraryNotFound, "cannot load the NVIDIA driver's library: " + whyNotLoaded(path)}
		}
		return &UnavailableError{ReasonLibraryNotFound, "nvmlInit_v2: " + ret.Error()}
	case gonvml.ERROR_LIB_RM_VERSION_MISMATCH:
		if l.replaced() {
			return &UnavailableError{ReasonRestartRequired, fmt.Sprintf(
				"%s was replaced, as by a driver upgrade, while this process had the old one loaded: restart it", l.loadedPath)}
		}
	}
	return unavailable("nvmlInit_v2", ret)
}

// leave shuts NVML down so that the next discovery initialises it. An error would change nothing.
func (l *Library) leave() {
	l.progress("nvmlShutdown")
	l.initialised = false
	l.session.Add(1)
	_ = l.lib.Shutdown()
}

// rememberFile keeps the identity of the library file when it is loaded for the first time. The
// dynamic linker pins it from the first call on, whatever is closed later.
func (l *Library) rememberFile() {
	if l.options.Lib == nil && l.loaded == nil {
		l.loadedPath, l.loaded = loadedFile()
	}
}

// replaced reports whether another file now lies where the loaded library was.
func (l *Library) replaced() bool {
	if l.loaded == nil {
		return false
	}
	path, err := locate(l.options.DriverRoot)
	if err == nil && path == soname {
		path = l.loadedPath
	}
	if err != nil {
		return false
	}
	now, err := os.Stat(path)
	return err != nil || !os.SameFile(now, l.loaded)
}
