// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package process runs the programs that tests and benchmarks look at from outside: it starts them,
// keeps their output in a file, kills them like a crash would and reads their memory.
//
// It imports the standard library only. It promises that a child does not outlive the program that
// started it, that Kill and Stop return only when the child is gone, and that a child that ended on
// its own is told apart from one that was stopped.
package process

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"
)

// Options say what to run.
type Options struct {
	// Path is the program.
	Path string
	Args []string
	// Env is added to the environment of this process.
	Env []string
	// LogFile takes standard output and standard error; it is appended to, so that the output of
	// successive runs stays together.
	LogFile string
}

// Process is a running (or ended) child.
type Process struct {
	name    string
	logFile string
	started time.Time
	cmd     *exec.Cmd
	done    chan struct{}
	err     error // of Wait; valid once done is closed
	ours    atomic.Bool
}

// Start runs the program. The kernel kills it when this process ends, however that ends.
func Start(o Options) (*Process, error) {
	name := filepath.Base(o.Path)
	log, err := os.OpenFile(o.LogFile, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", name, err)
	}
	defer log.Close()

	cmd := exec.Command(o.Path, o.Args...)
	cmd.Env = append(os.Environ(), o.Env...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}

	p := &Process{name: name, logFile: o.LogFile, cmd: cmd, done: make(chan struct{}), started: time.Now()}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process ID.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Started is the instant just before the program was executed.
func (p *Process) Started() time.Time { return p.started }

// LogFile is where the output goes.
func (p *Process) LogFile() string { return p.logFile }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Err returns nil while the process runs and once Kill or Stop ended it. For a process that ended by
// itself, also one that ended without an error, it tells how, with the last lines of its output.
func (p *Process) Err() error {
	select {
	case <-p.done:
	default:
		return nil
	}
	if p.ours.Load() {
		return nil
	}
	return fmt.Errorf("%s ended by itself (%v), its last output:\n%s", p.name, p.cmd.ProcessState, p.Tail(20))
}

// While returns a context that ends with ctx, and as soon as the process ends, with its Err as the
// cause: nobody has to wait for what a dead process will not do.
func (p *Process) While(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-p.done:
			cancel(p.Err())
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(nil) }
}

// ExitState tells how the process ended; nil while it runs.
func (p *Process) ExitState() *os.ProcessState {
	select {
	case <-p.done:
		return p.cmd.ProcessState
	default:
		return nil
	}
}

// Kill ends the process with SIGKILL, as a crash would, and returns when it is gone.
func (p *Process) Kill() {
	p.ours.Store(true)
	_ = p.cmd.Process.Kill() // only fails when the process has ended
	<-p.done
}

// Stop asks the process to end with SIGTERM and returns when it is gone. A process that has not
// ended when ctx is done is killed, and that is an error; so is an exit status other than 0.
func (p *Process) Stop(ctx context.Context) error {
	p.ours.Store(true)
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // only fails when the process has ended
	select {
	case <-p.done:
	case <-ctx.Done():
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not end after SIGTERM: %w, its last output:\n%s", p.name, ctx.Err(), p.Tail(20))
	}
	if p.err != nil {
		return fmt.Errorf("stop %s: %w, its last output:\n%s", p.name, p.err, p.Tail(20))
	}
	return nil
}

// Tail returns the last n lines of the log file.
func (p *Process) Tail(n int) string {
	content, err := os.ReadFile(p.logFile)
	if err != nil {
		return fmt.Sprintf("(%v)", err)
	}
	lines := bytes.Split(bytes.TrimRight(content, "\n"), []byte("\n"))
	return string(bytes.Join(lines[max(0, len(lines)-n):], []byte("\n")))
}

// Memory is what the kernel says about a process's memory, in bytes (proc_pid_status(5)).
type Memory struct {
	// Resident is VmRSS, ResidentPeak VmHWM: file-backed pages of the program count.
	Resident, ResidentPeak uint64
}

// Memory reads the memory of the running process.
func (p *Process) Memory() (Memory, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", p.PID()))
	if err != nil {
		return Memory{}, fmt.Errorf("read memory of %s: %w", p.name, err)
	}
	m, err := parseMemory(status)
	if err != nil {
		return Memory{}, fmt.Errorf("read memory of %s: %w", p.name, err)
	}
	return m, nil
}

func parseMemory(status []byte) (Memory, error) {
	var m Memory
	fields := map[string]*uint64{"VmRSS": &m.Resident, "VmHWM": &m.ResidentPeak}
	for line := range bytes.Lines(status) {
		key, value, _ := bytes.Cut(line, []byte(":"))
		target, wanted := fields[string(key)]
		if !wanted {
			continue
		}
		number, isKiB := bytes.CutSuffix(bytes.TrimSpace(value), []byte(" kB"))
		kib, err := strconv.ParseUint(string(number), 10, 64)
		if err != nil || !isKiB {
			return Memory{}, fmt.Errorf("%s is %q, want a number of kB", key, bytes.TrimSpace(value))
		}
		*target = kib << 10
		delete(fields, string(key))
	}
	if len(fields) > 0 {
		return Memory{}, errors.New("VmRSS or VmHWM is missing: the process has ended")
	}
	return m, nil
}
