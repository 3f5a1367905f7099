// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// State is what a service is doing.
type State string

// The states of a service.
const (
	Waiting State = "waiting" // for what it waits for, or to be restarted
	Running State = "running"
)

// Status is one service's state.
type Status struct {
	Name  string `json:"name"`
	State State  `json:"state"`
	// PID is the process in the machine's PID namespace.
	PID int `json:"pid,omitempty"`
	// Exits counts how often the service ended without being asked to.
	Exits int `json:"exits"`
	// AllowedExits is the service's own; see Service.
	AllowedExits int `json:"allowedExits,omitempty"`
	// LastExit says how it ended last.
	LastExit string `json:"lastExit,omitempty"`
	// WaitingFor is what holds its start back.
	WaitingFor string `json:"waitingFor,omitempty"`
}

const restartDelay = 500 * time.Millisecond

// supervisor keeps the services of a machine running.
type supervisor struct {
	spec *Spec
	log  *slog.Logger

	mu       sync.Mutex
	services []*service
	changed  chan struct{} // closed and replaced at every change
}

type service struct {
	Service
	status  Status
	ended   chan struct{} // closed when the running process was reaped
	expect  bool          // its end was asked for
	started time.Time
}

func newSupervisor(spec *Spec, log *slog.Logger) *supervisor {
	s := &supervisor{spec: spec, log: log, changed: make(chan struct{})}
	for _, svc := range spec.Services {
		s.services = append(s.services, &service{Service: svc, status: Status{Name: svc.Name, State: Waiting, AllowedExits: svc.AllowedExits}})
	}
	return s
}

// run keeps the services running and reaps children until the context ends,
// which for a machine's init is never.
func (s *supervisor) run(ctx context.Context) {
	for _, svc := range s.services {
		go s.keep(ctx, svc)
	}
	s.reap(ctx)
}

// keep starts a service again and again.
func (s *supervisor) keep(ctx context.Context, svc *service) {
	for ctx.Err() == nil {
		for _, target := range svc.WaitFor {
			s.update(func() { svc.status.WaitingFor = target })
			waitFor(target)
		}
		s.update(func() { svc.status.WaitingFor = "" })
		ended, err := s.launch(svc)
		if err != nil {
			s.log.Error("cannot start service", "service", svc.Name, "err", err)
			s.update(func() { svc.status.Exits++; svc.status.LastExit = err.Error() })
		} else {
			<-ended
		}
		time.Sleep(restartDelay)
	}
}

// launch starts a service's process. It holds the lock over the fork, so that
// reap never sees a child that is not registered yet.
func (s *supervisor) launch(svc *service) (<-chan struct{}, error) {
	logFile, err := openLog(s.spec.Logs, svc.Name)
	if err != nil {
		return nil, err
	}
	defer logFile.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", svc.Name, err)
	}
	defer null.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	pid, err := syscall.ForkExec(svc.Args[0], svc.Args, &syscall.ProcAttr{
		Dir:   "/",
		Env:   svc.Env,
		Files: []uintptr{null.Fd(), logFile.Fd(), logFile.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", svc.Args[0], err)
	}
	svc.ended = make(chan struct{})
	svc.expect = false
	svc.started = time.Now()
	svc.status.State, svc.status.PID = Running, pid
	s.notify()
	s.log.Info("service started", "service", svc.Name, "pid", pid)
	return svc.ended, nil
}

// reap collects every dead child: services, and orphans of the machine such as
// pods' processes whose shim has died.
func (s *supervisor) reap(ctx context.Context) {
	children := make(chan os.Signal, 1)
	signal.Notify(children, syscall.SIGCHLD)
	defer signal.Stop(children)
	for {
		s.reapAll()
		select {
		case <-children:
		case <-ctx.Done():
			return
		}
	}
}

func (s *supervisor) reapAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
		for _, svc := range s.services {
			if svc.status.State == Running && svc.status.PID == pid {
				s.ended(svc, status)
			}
		}
	}
}

func (s *supervisor) ended(svc *service, status unix.WaitStatus) {
	how := fmt.Sprintf("exited with code %d after %s", status.ExitStatus(), time.Since(svc.started).Round(100*time.Millisecond))
	if status.Signaled() {
		how = fmt.Sprintf("killed by %s after %s", unix.SignalName(status.Signal()), time.Since(svc.started).Round(100*time.Millisecond))
	}
	s.log.Info("service ended", "service", svc.Name, "how", how, "expected", svc.expect)
	svc.status.State, svc.status.PID, svc.status.LastExit = Waiting, 0, how
	if !svc.expect {
		svc.status.Exits++
	}
	close(svc.ended)
	s.notify()
}

// restart ends a service's process, which makes keep start it again.
func (s *supervisor) restart(name string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, svc := range s.services {
		if svc.Name != name {
			continue
		}
		if svc.status.State != Running {
			return nil // it is about to start
		}
		svc.expect = true
		// Only the service: as after a crash, its pods live on.
		if err := unix.Kill(svc.status.PID, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("kill %s: %w", name, err)
		}
		return nil
	}
	return fmt.Errorf("no service %q on %s", name, s.spec.Name)
}

// snapshot returns all states and a channel that is closed at the next change.
func (s *supervisor) snapshot() ([]Status, <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Status
	for _, svc := range s.services {
		all = append(all, svc.status)
	}
	return all, s.changed
}

func (s *supervisor) update(change func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	change()
	s.notify()
}

func (s *supervisor) notify() {
	close(s.changed)
	s.changed = make(chan struct{})
}
