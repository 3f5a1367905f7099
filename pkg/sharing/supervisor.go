// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

// controlProgram is the driver's program that is the daemon, and with which it is spoken to.
const controlProgram = "nvidia-cuda-mps-control"

const (
	// sharedMemoryPerm lets the programs of any user make shared memory, as in every /dev/shm.
	sharedMemoryPerm = os.ModeSticky | 0o777
	// lockPatience is how long a start waits for a supervisor that is about to end.
	lockPatience = 5 * time.Second
)

// Options say where a supervisor finds things.
type Options struct {
	// Dir is the directory that the plugin and the supervisor share.
	Dir string
	// SharedMemoryDir has the daemons' /dev/shm below it, at the same path as on the host. It should be in memory.
	SharedMemoryDir string
	// RunDir is for links of the supervisor's own. Its path must be short: sockets are named through it.
	RunDir string
	// DriverRoot is where this process sees the root of the driver's files.
	DriverRoot string
	// BootID is the ID of the current boot.
	BootID string
	// Launcher is the program, with its first arguments, that calls [Launch] with those that follow.
	Launcher []string
	// Clock counts the pauses between starts; nil means the real one.
	Clock clock.Clock
}

// Supervisor runs the MPS daemons of a node.
type Supervisor struct {
	options Options
	layout  layout

	mu      sync.Mutex
	runners map[string]*runner // by ID
	running sync.WaitGroup
}

// runner keeps one daemon. Its fields are guarded by Supervisor.mu.
type runner struct {
	// want is the content of the spec's file; nil once there is none.
	want []byte
	// poke has a message when want has changed.
	poke chan struct{}
}

// NewSupervisor returns a supervisor that has done nothing yet.
func NewSupervisor(options Options) *Supervisor {
	if options.Clock == nil {
		options.Clock = clock.RealClock{}
	}
	return &Supervisor{options: options, layout: layout(options.Dir), runners: make(map[string]*runner)}
}

// Run keeps the daemons that are asked for until ctx ends, and then ends them. It fails at once if there is another
// supervisor.
func (s *Supervisor) Run(ctx context.Context) error {
	if err := s.layout.prepare(s.layout.statuses()); err != nil {
		return err
	}
	lock, err := s.lock(ctx)
	if err != nil {
		return err
	}
	defer lock.Close()
	watcher := watch(ctx, s.layout.specs())
	defer watcher.close()
	defer s.running.Wait()
	klog.FromContext(ctx).Info("Keeping MPS daemons", "directory", s.options.Dir, "driverRoot", s.options.DriverRoot)
	s.sweep(ctx)
	look := time.NewTicker(lookInterval)
	defer look.Stop()
	for {
		s.look(ctx)
		select {
		case <-ctx.Done():
			return nil
		case <-watcher.events:
		case err := <-watcher.errors:
			klog.FromContext(ctx).V(2).Info("Missed changes of MPS daemons, looking at them now", "err", err)
		case <-look.C:
		}
	}
}

// lock takes the lock that tells the plugin that there is a supervisor. The kernel releases it when this process
// ends, however it does.
func (s *Supervisor) lock(ctx context.Context) (*os.File, error) {
	path := s.layout.supervisorLock()
	file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, filePerm)
	if err != nil {
		return nil, fmt.Errorf("open the supervisor's lock: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, lockPatience)
	defer cancel()
	for {
		err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return file, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), file.Close())
		}
		select {
		case <-time.After(lookInterval / 20):
		case <-ctx.Done():
			return nil, errors.Join(fmt.Errorf("another MPS supervisor has %s locked: a node has one", path), file.Close())
		}
	}
}

// sweep removes what a supervisor that was killed left of daemons that nobody asks for any more.
func (s *Supervisor) sweep(ctx context.Context) {
	asked := func(id string) bool {
		_, err := os.Lstat(s.layout.spec(id))
		return err == nil
	}
	// Not in the directory for shared memory, which others could have put there: what they have in it is not ours to remove.
	entries, err := os.ReadDir(s.layout.daemons())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot look for what is left of MPS daemons", "directory", s.layout.daemons())
	}
	for _, entry := range entries {
		if validID(entry.Name()) && !asked(entry.Name()) {
			s.tidy(ctx, entry.Name())
		}
	}
	ids, err := list(s.layout.statuses())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the statuses of MPS daemons")
	}
	for _, id := range ids {
		if !asked(id) {
			s.tidy(ctx, id)
		}
	}
}

// look makes the runners follow the specs.
func (s *Supervisor) look(ctx context.Context) {
	ids, err := list(s.layout.specs())
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot list the specs of MPS daemons")
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	asked := make(map[string]bool, len(ids))
	for _, id := range ids {
		data, err := readFile(s.layout.spec(id))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		asked[id] = true
		if err != nil {
			klog.FromContext(ctx).Error(err, "Cannot read the spec of an MPS daemon", "daemon", id)
			continue
		}
		r := s.runners[id]
		if r == nil {
			r = &runner{poke: make(chan struct{}, 1)}
			s.runners[id] = r
			s.running.Go(func() { s.serve(ctx, id, r) })
		}
		r.set(data)
	}
	for id, r := range s.runners {
		if !asked[id] {
			r.set(nil)
		}
	}
}

// set changes what is wanted. Supervisor.mu is held.
func (r *runner) set(want []byte) {
	if (want == nil) == (r.want == nil) && bytes.Equal(want, r.want) {
		return
	}
	r.want = want
	select {
	case r.poke <- struct{}{}:
	default:
	}
}

// wanted reads what is wanted. A poke that told of it is used up: else the daemon would be ended and started again at once.
func (s *Supervisor) wanted(r *runner) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-r.poke:
	default:
	}
	return r.want
}

// serve keeps a daemon as it is wanted, until it is not wanted any more or ctx ends.
func (s *Supervisor) serve(ctx context.Context, id string, r *runner) {
	ctx = klog.NewContext(ctx, klog.LoggerWithValues(klog.FromContext(ctx), "daemon", id))
	for {
		want := s.wanted(r)
		if want == nil && s.retire(ctx, id, r) {
			return
		}
		if want == nil {
			continue
		}
		keeping, stop := context.WithCancel(ctx)
		kept := make(chan struct{})
		go func() {
			defer close(kept)
			s.keep(keeping, id, want)
		}()
		select {
		case <-r.poke:
		case <-ctx.Done():
		}
		stop()
		<-kept
		if ctx.Err() != nil {
			return
		}
	}
}

// retire forgets a daemon that has ended, unless it is wanted again.
func (s *Supervisor) retire(ctx context.Context, id string, r *runner) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.want != nil {
		return false
	}
	s.tidy(ctx, id)
	delete(s.runners, id)
	return true
}

// tidy removes the files of a daemon that has ended, its status last.
func (s *Supervisor) tidy(ctx context.Context, id string) {
	killLeftovers(ctx, s.pipeDirectory(id))
	err := os.RemoveAll(sharedMemory(s.options.SharedMemoryDir, id)) // first: the other directory tells that it is there
	if err == nil {
		err = errors.Join(os.RemoveAll(s.layout.daemon(id)), remove(s.shortcut(id)), remove(s.layout.status(id)))
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot remove all files of an MPS daemon", "daemon", id)
		return
	}
	klog.FromContext(ctx).Info("MPS daemon is gone", "daemon", id)
}

// setStatus tells the plugin how a daemon is.
func (s *Supervisor) setStatus(ctx context.Context, status Status) {
	status.SharedMemoryDir = sharedMemory(s.options.SharedMemoryDir, status.ID)
	data, err := encode(statusFile{head{statusFormat, formatVersion}, status})
	if err == nil {
		err = atomicfile.Write(s.layout.status(status.ID), data, filePerm)
	}
	if err != nil {
		klog.FromContext(ctx).Error(err, "Cannot write the status of an MPS daemon")
	}
}

// shortcut is a link to a daemon's directory. The path of a socket may have 107 bytes, which a path below the
// kubelet's directory leaves too little of.
func (s *Supervisor) shortcut(id string) string {
	return filepath.Join(s.options.RunDir, fmt.Sprintf("%.6x", sha256.Sum256([]byte(id))))
}

// pipeDirectory is a daemon's CUDA_MPS_PIPE_DIRECTORY, as the daemon has it.
func (s *Supervisor) pipeDirectory(id string) string { return filepath.Join(s.shortcut(id), "pipe") }

func sharedMemory(dir, id string) string { return filepath.Join(dir, id) }

// killLeftovers kills the programs of a daemon that has ended, or died with its supervisor.
func killLeftovers(ctx context.Context, pipeDirectory string) {
	processes, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		return // the pattern is right
	}
	for _, path := range processes {
		environ, err := os.ReadFile(path)
		if err != nil || !bytes.Contains(append([]byte{0}, environ...), []byte("\x00CUDA_MPS_PIPE_DIRECTORY="+pipeDirectory+"\x00")) {
			continue
		}
		program, err := os.Readlink(filepath.Join(filepath.Dir(path), "exe"))
		if err != nil || !strings.HasPrefix(filepath.Base(program), "nvidia-cuda-mps-") {
			continue
		}
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/environ", &pid); err != nil {
			continue
		}
		klog.FromContext(ctx).Info("Killing what is left of an MPS daemon", "pid", pid, "program", program)
		_ = unix.Kill(pid, unix.SIGKILL) // only fails when it has ended
	}
}
