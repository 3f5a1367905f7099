// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

const (
	// startTimeout is how long a daemon may take to answer.
	startTimeout = 15 * time.Second
	// answerTimeout is how long one answer may take, askInterval the time between two questions.
	answerTimeout = 5 * time.Second
	askInterval   = 20 * time.Millisecond
	// quitTimeout is how long a daemon may take to end before it is killed.
	quitTimeout = 3 * time.Second
	// firstPause and longestPause are between two starts. A daemon that ran for steadyAfter starts anew with the first.
	firstPause   = time.Second
	longestPause = time.Minute
	steadyAfter  = time.Minute
	// maxLog is at what size a log is emptied, which is looked at every logInterval.
	maxLog      = 8 << 20
	logInterval = 30 * time.Second
)

// keep runs the daemon that a spec wants, and starts it again whenever it ends, until ctx ends.
func (s *Supervisor) keep(ctx context.Context, id string, data []byte) {
	// The kernel ends a daemon with the thread that started it.
	runtime.LockOSThread()
	logger := klog.FromContext(ctx)
	status := Status{ID: id, SpecHash: hashOf(data), State: Starting}
	spec, err := decodeSpec(data)
	switch {
	case err == nil && spec.ID != id:
		err = fmt.Errorf("it is the spec of daemon %s", spec.ID)
	case err == nil && spec.BootID != s.options.BootID:
		err = errors.New("it was asked for on another boot")
	}
	if err != nil {
		logger.Error(err, "Cannot follow the spec of an MPS daemon")
		status.State, status.Message = Refused, fmt.Sprintf("its spec cannot be followed: %v", err)
		s.setStatus(ctx, status)
		<-ctx.Done()
		return
	}
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		status.State, status.PID = Starting, 0
		s.setStatus(ctx, status)
		began := s.options.Clock.Now()
		err := s.runOnce(ctx, spec, &status)
		if ctx.Err() != nil {
			return
		}
		if s.options.Clock.Since(began) > steadyAfter {
			pause = firstPause
		}
		logger.Error(err, "MPS daemon ended, starting it again", "after", pause, "restarts", status.Restarts)
		status.State, status.PID, status.Message = Failed, 0, err.Error()
		s.setStatus(ctx, status)
		select {
		case <-ctx.Done():
			return
		case <-s.options.Clock.After(pause):
		}
		status.Restarts++
	}
}

// runOnce runs a daemon until it ends, or ctx does. The error says why it is not as it should be.
func (s *Supervisor) runOnce(ctx context.Context, spec Spec, status *Status) error {
	d, err := s.start(ctx, spec)
	if err != nil {
		return err
	}
	defer d.end(ctx)
	if err := d.setUp(ctx, spec); err != nil {
		return err
	}
	status.State, status.PID, status.Message = Ready, d.cmd.Process.Pid, ""
	s.setStatus(ctx, *status)
	klog.FromContext(ctx).Info("MPS daemon is ready", "pid", status.PID, "devices", spec.Devices)
	logs := time.NewTicker(logInterval)
	defer logs.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-d.done:
			return d.ended()
		case <-logs.C:
			if err := boundLogs(s.layout.logDir(spec.ID)); err != nil {
				klog.FromContext(ctx).Error(err, "Cannot bound the logs of an MPS daemon")
			}
		}
	}
}

// daemon is one run of a control daemon.
type daemon struct {
	cmd           *exec.Cmd
	done          chan struct{}
	output        *tail
	control       []string // the program through the launcher
	environ       []string
	pipeDirectory string
	logDir        string
}

// start starts a daemon in clean directories. Those that containers see stay the same directories.
func (s *Supervisor) start(ctx context.Context, spec Spec) (*daemon, error) {
	program, err := findProgram(s.options.DriverRoot, controlProgram)
	if err != nil {
		return nil, err
	}
	libraries, err := linkLibraries(s.options.DriverRoot, filepath.Join(s.options.RunDir, "lib"))
	if err != nil {
		return nil, err
	}
	pipe, logs, shm := s.layout.pipeDir(spec.ID), s.layout.logDir(spec.ID), sharedMemory(s.options.SharedMemoryDir, spec.ID)
	killLeftovers(ctx, s.pipeDirectory(spec.ID))
	err = errors.Join(os.MkdirAll(pipe, dirPerm), empty(pipe), os.MkdirAll(logs, 0o700), empty(logs),
		os.MkdirAll(s.options.RunDir, dirPerm), link(s.layout.daemon(spec.ID), s.shortcut(spec.ID)))
	if err == nil { // last: by the daemon's directory it is known that there is one
		err = makeSharedMemory(s.options.SharedMemoryDir, shm)
	}
	if err != nil {
		return nil, fmt.Errorf("make the daemon's directories: %w", err)
	}
	uuids := make([]string, len(spec.Devices))
	for i, device := range spec.Devices {
		uuids[i] = device.UUID
	}
	d := &daemon{
		done: make(chan struct{}), output: &tail{}, pipeDirectory: s.pipeDirectory(spec.ID), logDir: logs,
		control: s.launch(spec.ID, "", program),
		environ: environment(program, libraries,
			"CUDA_MPS_PIPE_DIRECTORY="+s.pipeDirectory(spec.ID),
			"CUDA_MPS_LOG_DIRECTORY="+filepath.Join(s.shortcut(spec.ID), "log"),
			"CUDA_VISIBLE_DEVICES="+strings.Join(uuids, ",")),
	}
	args := s.launch(spec.ID, shm, program, "-f")
	d.cmd = exec.Command(args[0], args[1:]...)
	d.cmd.Dir, d.cmd.Env = "/", d.environ
	d.cmd.Stdout, d.cmd.Stderr = d.output, d.output
	d.cmd.WaitDelay = time.Second
	d.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Setpgid: true, Pdeathsig: syscall.SIGKILL}
	if err := d.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s (which takes the capability SYS_ADMIN, for a /dev/shm of its own): %w", program, err)
	}
	go func() {
		_ = d.cmd.Wait() // ended tells
		close(d.done)
	}()
	return d, nil
}

// makeSharedMemory makes a daemon's shared memory in the directory for all of them.
func makeSharedMemory(dir, shm string) error {
	if err := os.MkdirAll(dir, dirPerm); err != nil {
		return err
	}
	if err := checkOwn(dir); err != nil {
		return err
	}
	return errors.Join(os.MkdirAll(shm, dirPerm), os.Chmod(shm, sharedMemoryPerm))
}

// launch is the command that becomes a program of the driver for a daemon, with a directory as its /dev/shm if that is not
// empty. It is to have a mount namespace of its own.
func (s *Supervisor) launch(id, shm string, program ...string) []string {
	return slices.Concat(s.options.Launcher, []string{strconv.Itoa(os.Getpid()), string(s.layout), s.layout.daemon(id), shm}, program)
}

// ended says how the daemon ended.
func (d *daemon) ended() error {
	said := d.output.String()
	if said == "" {
		said = lastLines(filepath.Join(d.logDir, "control.log"))
	}
	return fmt.Errorf("%s ended (%v): %s", controlProgram, d.cmd.ProcessState, said)
}

// setUp waits until the daemon answers and gives it its limits, before the plugin lets a container use it.
func (d *daemon) setUp(ctx context.Context, spec Spec) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ask := time.NewTicker(askInterval)
	defer ask.Stop()
	for {
		_, err := os.Stat(filepath.Join(d.pipeDirectory, "control"))
		if err == nil {
			if _, err = d.command(ctx, "get_default_active_thread_percentage"); err == nil {
				break
			}
		}
		select {
		case <-d.done:
			return d.ended()
		case <-ctx.Done():
			return fmt.Errorf("%s does not answer within %v: %w", controlProgram, startTimeout, err)
		case <-ask.C:
		}
	}
	if percentage := spec.ActiveThreadPercentage; percentage != 0 {
		if err := d.limit(ctx, "active_thread_percentage", strconv.Itoa(int(percentage)), func(answer string) bool {
			now, err := strconv.ParseFloat(answer, 64)
			return err == nil && now == float64(percentage)
		}); err != nil {
			return err
		}
	}
	limited := spec.ActiveThreadPercentage != 0
	for _, device := range spec.Devices {
		if device.PinnedMemoryMiB == 0 {
			continue
		}
		limited = true
		value := fmt.Sprintf("%s %dM", device.UUID, device.PinnedMemoryMiB)
		if err := d.limit(ctx, "device_pinned_mem_limit", value, func(answer string) bool { return sameMemory(answer, device.PinnedMemoryMiB) }); err != nil {
			return err
		}
	}
	if !limited {
		return nil
	}
	return d.endServers(ctx)
}

// endServers ends the MPS servers that there are already, with their programs: a daemon that is started again answers
// programs of containers that were there before it has its limits, and a server keeps those of its start.
func (d *daemon) endServers(ctx context.Context) error {
	servers, err := d.command(ctx, "get_server_list")
	if err != nil {
		return err
	}
	for pid := range strings.FieldsSeq(servers) {
		if _, err := strconv.Atoi(pid); err != nil {
			continue // words, where there is none
		}
		klog.FromContext(ctx).Info("Ending an MPS server that began before the daemon had its limits", "pid", pid)
		if _, err := d.command(ctx, "shutdown_server "+pid+" -f"); err != nil {
			return err
		}
	}
	return nil
}

// limit sets one of the daemon's defaults and asks it back.
func (d *daemon) limit(ctx context.Context, name, value string, same func(answer string) bool) error {
	said, err := d.command(ctx, "set_default_"+name+" "+value)
	if err != nil {
		return err
	}
	subject := ""
	if of, _, ok := strings.Cut(value, " "); ok {
		subject = " " + of
	}
	answer, err := d.command(ctx, "get_default_"+name+subject)
	if err != nil {
		return err
	}
	if !same(answer) {
		return fmt.Errorf("set_default_%s %s did not take: the daemon said %q, and has %q", name, value, said, answer)
	}
	return nil
}

// sameMemory compares a limit with how the daemon tells it: in mebibytes, or rounded down to gibibytes.
func sameMemory(answer string, mib int64) bool {
	unit := answer[max(0, len(answer)-1):]
	number, err := strconv.ParseInt(strings.TrimSuffix(answer, unit), 10, 64)
	switch {
	case err != nil:
		return false
	case unit == "M":
		return number == mib
	case unit == "G":
		return number == mib/1024
	}
	return false
}

// command gives the daemon a command and returns its answer.
func (d *daemon) command(ctx context.Context, command string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.control[0], d.control[1:]...)
	cmd.Dir, cmd.Env = "/", d.environ
	cmd.Stdin = strings.NewReader(command + "\n")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.WaitDelay = time.Second
	answer, err := run(cmd)
	if err != nil {
		return "", fmt.Errorf("%s %q: %w", controlProgram, command, err)
	}
	return answer, nil
}

// end ends the daemon, and what it started.
func (d *daemon) end(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), quitTimeout)
	defer cancel()
	select {
	case <-d.done:
	default:
		_, _ = d.command(ctx, "quit") // it is killed if it does not
		select {
		case <-d.done:
		case <-ctx.Done():
		}
	}
	_ = unix.Kill(-d.cmd.Process.Pid, unix.SIGKILL) // only fails when nobody is left
	<-d.done
	killLeftovers(ctx, d.pipeDirectory)
}

// tail keeps the end of what a program says.
type tail struct {
	mu   sync.Mutex
	text []byte
}

const maxTail = 2 << 10

// Write implements io.Writer.
func (t *tail) Write(data []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.text = append(t.text, data...)
	t.text = t.text[max(0, len(t.text)-maxTail):]
	return len(data), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return strings.TrimSpace(string(t.text))
}

// lastLines is the end of a log.
func lastLines(path string) string {
	data, err := os.ReadFile(path)
	if err != nil {
		return "it said nothing"
	}
	return string(bytes.TrimSpace(data[max(0, len(data)-maxTail):]))
}

// boundLogs empties logs that have become long.
func boundLogs(dir string) error {
	entries, err := os.ReadDir(dir)
	errs := []error{err}
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && info.Mode().IsRegular() && info.Size() > maxLog {
			errs = append(errs, os.Truncate(filepath.Join(dir, entry.Name()), 0))
		}
	}
	return errors.Join(errs...)
}

// empty removes what is in a directory. One that is not there has nothing.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, entry := range entries {
		errs = append(errs, os.RemoveAll(filepath.Join(dir, entry.Name())))
	}
	return errors.Join(errs...)
}
