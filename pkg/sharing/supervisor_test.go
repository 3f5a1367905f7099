// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/klog/v2/ktesting"

	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
)

const (
	gpu0 = "GPU-00000000-0000-0000-0000-000000000000"
	gpu1 = "GPU-00000001-0000-0000-0000-000000000000"
	// patience is how long anything may take on a busy machine.
	patience = time.Minute
)

// machine is a node that outlives its supervisors.
type machine struct {
	*testing.T
	dir     string
	daemons *Daemons
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("a mount namespace for a daemon takes root")
	}
	dir, err := os.MkdirTemp("/tmp", "sy")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	m := &machine{T: t, dir: dir}
	bin := filepath.Join(dir, "root", "usr", "bin")
	lib := filepath.Join(dir, "root", "usr", "lib64")
	self, err := os.Executable()
	m.must(err)
	m.must(os.MkdirAll(bin, 0o755))
	m.must(os.MkdirAll(lib, 0o755))
	content, err := os.ReadFile(self)
	m.must(err)
	m.must(os.WriteFile(filepath.Join(bin, driver.ControlProgram), content, 0o755))
	m.must(os.Symlink(driver.ControlProgram, filepath.Join(bin, "nvidia-smi")))
	for _, name := range []string{"libcuda.so.1", "libc.so.6"} {
		m.must(os.WriteFile(filepath.Join(lib, name), nil, 0o644))
	}
	m.must(os.WriteFile(filepath.Join(dir, "state.json"), fmt.Appendf(nil, `{"gpus":[{"uuid":%q},{"uuid":%q}]}`, gpu0, gpu1), 0o644))
	m.daemons, err = NewDaemons(filepath.Join(dir, "mps-dir"), filepath.Join(dir, "shm"))
	m.must(err)
	return m
}

func (m *machine) must(err error) {
	m.Helper()
	if err != nil {
		m.Fatal(err)
	}
}

func TestADaemonIsStartedOnceForWhatIsWanted(t *testing.T) {
	s, r := NewSupervisor(Options{}), &runner{poke: make(chan struct{}, 1)}
	r.set([]byte("spec")) // as look does, before or after serve begins
	if want := s.wanted(r); string(want) != "spec" {
		t.Errorf("wanted is %q", want)
	}
	select {
	case <-r.poke:
		t.Error("the daemon that was just started would be ended for the spec that it was started with")
	default:
	}
	r.set([]byte("other"))
	select {
	case <-r.poke:
	default:
		t.Error("a change after the daemon was started is not told")
	}
}

// supervise runs a supervisor until the function is called or the test ends.
func (m *machine) supervise() (stop func()) {
	m.Helper()
	_, ctx := ktesting.NewTestContext(m.T)
	ctx, cancel := context.WithCancel(ctx)
	s := m.supervisor()
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			m.Errorf("the supervisor ended with %v", err)
		}
	}
	m.Cleanup(stop)
	m.until("the supervisor has its lock", m.daemons.supervised)
	return stop
}

func (m *machine) supervisor() *Supervisor {
	self, err := os.Executable()
	m.must(err)
	return NewSupervisor(Options{
		Dir: string(m.daemons.layout), SharedMemoryDir: filepath.Join(m.dir, "shm"), RunDir: filepath.Join(m.dir, "run"),
		DriverRoot: filepath.Join(m.dir, "root"), BootID: "boot-1", Launcher: []string{self, "launch"},
	})
}

func (m *machine) until(what string, ok func() bool) {
	m.Helper()
	late := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-late:
			m.Fatalf("waited %v until %s", patience, what)
		}
	}
}

func (m *machine) ensure(spec Spec) (Endpoint, error) {
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	return m.daemons.Ensure(ctx, spec)
}

func (m *machine) remove(id string) {
	m.Helper()
	ctx, cancel := context.WithTimeout(m.Context(), patience)
	defer cancel()
	m.must(m.daemons.Remove(ctx, id))
}

func (m *machine) status(id string) Status {
	m.Helper()
	status, err := m.daemons.Status(id)
	m.must(err)
	return status
}

// ask asks a daemon as a client in a container does, which has its pipe directory in another place.
func (m *machine) ask(pipe, command string) string {
	m.Helper()
	link := filepath.Join(m.dir, "container")
	_ = os.Remove(link)
	m.must(os.Symlink(pipe, link))
	m.Setenv("CUDA_MPS_PIPE_DIRECTORY", link)
	var out strings.Builder
	m.must(driver.Main([]string{driver.ControlProgram}, strings.NewReader(command+"\n"), &out))
	return strings.TrimSpace(out.String())
}

func (m *machine) running() []driver.Running {
	m.Helper()
	running, err := driver.Daemons(m.dir)
	m.must(err)
	return running
}

func spec(id string, devices ...Device) Spec { return Spec{ID: id, BootID: "boot-1", Devices: devices} }

// The program is one of a container that was there before: its daemon died, and is started again.
func TestAProgramThatMeetsADaemonBeforeItsLimitsIsEnded(t *testing.T) {
	m := newMachine(t)
	m.must(driver.SetFailure(m.dir, driver.Failure{Awaited: true}))
	m.supervise()
	unlimited, err := m.ensure(spec("unlimited", Device{UUID: gpu0}))
	m.must(err)
	server := m.ask(unlimited.PipeDir, "get_server_list")
	if got := m.ask(unlimited.PipeDir, "get_active_thread_percentage "+server); got != "100.0" {
		t.Fatalf("server %q of a daemon without limits: %q", server, got)
	}
	want := spec("limited", Device{UUID: gpu1})
	want.ActiveThreadPercentage = 40
	limited, err := m.ensure(want)
	m.must(err)
	if got := m.ask(limited.PipeDir, "get_server_list"); got != "" {
		t.Errorf("server %s has no limits", got)
	}
	want.ID, want.ActiveThreadPercentage = "memory", 0
	want.Devices = []Device{{UUID: gpu1, PinnedMemoryMiB: 1024}}
	memory, err := m.ensure(want)
	m.must(err)
	if got := m.ask(memory.PipeDir, "get_server_list"); got != "" {
		t.Errorf("server %s has no limit of memory", got)
	}
}

func TestADaemonIsReadyWithItsLimitsAndGoneWhenItIsRemoved(t *testing.T) {
	m := newMachine(t)
	m.supervise()
	want := spec("claim-1", Device{UUID: gpu1, PinnedMemoryMiB: 1536}, Device{UUID: gpu0})
	want.ActiveThreadPercentage = 40
	endpoint, err := m.ensure(want)
	m.must(err)
	for command, answer := range map[string]string{
		"get_default_active_thread_percentage":        "40.0",
		"get_default_device_pinned_mem_limit " + gpu1: "1G",
		"get_default_device_pinned_mem_limit 0":       "1G",
		"get_default_device_pinned_mem_limit " + gpu0: "",
	} {
		if got := m.ask(endpoint.PipeDir, command); got != answer {
			t.Errorf("%s says %q, want %q", command, got, answer)
		}
	}
	running := m.running()
	if len(running) != 1 || running[0].PID != m.status("claim-1").PID || strings.Join(running[0].Devices, " ") != gpu1+" "+gpu0 {
		t.Errorf("%+v run, want one with both GPUs in their order", running)
	}
	// CHOWN, KILL, SETGID and SETUID, and what this test lacks itself not.
	if len(running) == 1 && running[0].Capabilities != "00000000000000e1" {
		t.Errorf("the daemon has the capabilities %s", running[0].Capabilities)
	}
	if privileges, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", running[0].PID)); err != nil || !strings.Contains(string(privileges), "NoNewPrivs:\t1") {
		t.Errorf("the daemon can gain privileges: %v", err)
	}
	if info, err := os.Stat(endpoint.SharedMemoryDir); err != nil || info.Mode().Perm() != 0o777 {
		t.Errorf("its shared memory is %v, %v", info, err)
	}
	links, err := os.ReadDir(filepath.Join(m.dir, "run", "lib"))
	if err != nil || len(links) != 1 || links[0].Name() != "libcuda.so.1" {
		t.Errorf("its libraries are %v, %v: want the driver's alone", links, err)
	}
	if again, err := m.ensure(want); err != nil || again != endpoint || m.status("claim-1").PID != running[0].PID {
		t.Errorf("asking again gave %v, %v and PID %d", again, err, m.status("claim-1").PID)
	}

	m.remove("claim-1")
	if running := m.running(); len(running) != 0 {
		t.Errorf("%+v run after it was removed", running)
	}
	for _, dir := range []string{m.daemons.layout.specs(), m.daemons.layout.statuses(), m.daemons.layout.daemons(), filepath.Join(m.dir, "shm")} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("%s has %v, %v", dir, left, err)
		}
	}
	m.remove("claim-1") // again is no error
}

func TestADaemonThatDiesIsStartedAgainInTheSameDirectories(t *testing.T) {
	m := newMachine(t)
	m.supervise()
	endpoint, err := m.ensure(spec("a", Device{UUID: gpu0}))
	m.must(err)
	before, err := os.Stat(endpoint.PipeDir)
	m.must(err)
	m.must(syscall.Kill(m.status("a").PID, syscall.SIGKILL))
	m.until("it runs again", func() bool { status := m.status("a"); return status.State == Ready && status.Restarts == 1 })
	if after, err := os.Stat(endpoint.PipeDir); err != nil || !os.SameFile(before, after) {
		t.Errorf("containers have another pipe directory than the daemon: %v", err)
	}
	if len(m.running()) != 1 {
		t.Errorf("%+v run", m.running())
	}
}

func TestANewSupervisorStartsWhatEndedWithTheOldOne(t *testing.T) {
	m := newMachine(t)
	stop := m.supervise()
	_, err := m.ensure(spec("a", Device{UUID: gpu0}))
	m.must(err)
	_, err = m.ensure(spec("b", Device{UUID: gpu1}))
	m.must(err)
	stop()
	if running := m.running(); len(running) != 0 {
		t.Fatalf("%+v outlived the supervisor", running)
	}
	m.remove("b") // while there is none
	m.supervise()
	m.until("it runs again", func() bool { return len(m.running()) == 1 && m.status("a").State == Ready })
	if _, err := os.Stat(filepath.Join(m.dir, "shm", "b")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("shared memory of a daemon that was removed without a supervisor: %v", err)
	}
}

// Containers may write to the pipe directory of their daemon.
func TestALinkToTheSocketOfAnotherDaemonLeadsNowhere(t *testing.T) {
	for name, other := range map[string]func(m *machine) string{
		"by the daemon's directory":    func(m *machine) string { return m.daemons.layout.pipeDir("b") },
		"by the supervisor's shortcut": func(m *machine) string { return m.supervisor().pipeDirectory("b") },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			m.supervise()
			endpoint, err := m.ensure(spec("a", Device{UUID: gpu0}))
			m.must(err)
			_, err = m.ensure(spec("b", Device{UUID: gpu1}))
			m.must(err)
			before := m.status("b")
			control := filepath.Join(endpoint.PipeDir, "control")
			m.must(errors.Join(os.Remove(control), os.Symlink(filepath.Join(other(m), "control"), control)))
			m.remove("a") // which tells the daemon to quit, and waits for it
			if running := m.running(); len(running) != 1 || running[0].PID != before.PID {
				t.Errorf("%+v run, want the other daemon as it was: %+v", running, before)
			}
		})
	}
}

// Any user of a node may put something where the directory for shared memory is to be, as long as there is none.
func TestSharedMemoryIsNowhereThatOthersChose(t *testing.T) {
	for name, put := range map[string]func(m *machine, dir string){
		"a link":                      func(m *machine, dir string) { m.must(os.Symlink(filepath.Join(m.dir, "theirs"), dir)) },
		"a directory of another user": func(m *machine, dir string) { m.must(errors.Join(os.Mkdir(dir, 0o755), os.Chown(dir, 1000, 1000))) },
		"one that all may write to":   func(m *machine, dir string) { m.must(errors.Join(os.Mkdir(dir, 0o755), os.Chmod(dir, 0o777))) },
	} {
		t.Run(name, func(t *testing.T) {
			m := newMachine(t)
			theirs, dir := filepath.Join(m.dir, "theirs"), filepath.Join(m.dir, "shm")
			m.must(os.Mkdir(theirs, 0o755))
			put(m, dir)
			precious := filepath.Join(dir, "etc") // might be the ID of a daemon
			m.must(os.Mkdir(precious, 0o755))
			m.supervise()
			if _, err := m.ensure(spec("a", Device{UUID: gpu0})); err == nil || !strings.Contains(err.Error(), dir+" must be a directory that user 0 alone may write to") {
				t.Errorf("got %v", err)
			}
			if _, err := os.Stat(filepath.Join(dir, "a")); !errors.Is(err, os.ErrNotExist) {
				t.Errorf("shared memory was made there: %v", err)
			}
			m.remove("a")
			if _, err := os.Stat(precious); err != nil {
				t.Errorf("what was there is gone: %v", err)
			}
		})
	}
}

// In the supervisor's pod the directory is mounted, and whatever the path leads to on the host looks like one.
func TestSharedMemoryThatIsALinkOnTheHostIsNotMounted(t *testing.T) {
	m := newMachine(t)
	m.supervise()
	want := spec("a", Device{UUID: gpu0})
	_, err := m.ensure(want)
	m.must(err)
	dir := filepath.Join(m.dir, "shm")
	m.must(errors.Join(os.Rename(dir, dir+"-2"), os.Symlink(dir+"-2", dir)))
	if _, err := m.ensure(want); err == nil || !strings.Contains(err.Error(), "must be a directory") {
		t.Errorf("got %v", err)
	}
}

func TestADaemonWithOtherLimitsTakesThePlaceOfTheOld(t *testing.T) {
	m := newMachine(t)
	m.supervise()
	first := spec("a", Device{UUID: gpu0})
	_, err := m.ensure(first)
	m.must(err)
	first.ActiveThreadPercentage = 25
	endpoint, err := m.ensure(first)
	m.must(err)
	if got := m.ask(endpoint.PipeDir, "get_default_active_thread_percentage"); got != "25.0" {
		t.Errorf("it has %s percent", got)
	}
	if len(m.running()) != 1 {
		t.Errorf("%+v run", m.running())
	}
}

// All programs of a node that run as root share its inotify instances, 128 by default, and use them up.
func TestWithoutInotifyDaemonsStartAndEndAllTheSame(t *testing.T) {
	newWatcher = func() (*fsnotify.Watcher, error) { return nil, syscall.EMFILE }
	t.Cleanup(func() { newWatcher = fsnotify.NewWatcher })
	m := newMachine(t)
	m.supervise()
	if _, err := m.ensure(spec("a", Device{UUID: gpu0})); err != nil {
		t.Fatal(err)
	}
	m.remove("a")
	if running := m.running(); len(running) > 0 {
		t.Errorf("still running: %v", running)
	}
}

func TestEnsureSaysWhatIsWrong(t *testing.T) {
	m := newMachine(t)
	if _, err := m.ensure(spec("a", Device{UUID: gpu0})); !errors.Is(err, ErrNoSupervisor) {
		t.Errorf("without a supervisor: %v", err)
	}
	m.remove("a")
	m.supervise()
	old := spec("old", Device{UUID: gpu0})
	old.BootID = "boot-0"
	for name, test := range map[string]struct {
		spec Spec
		want string
	}{
		"a daemon of another boot":        {old, "another boot"},
		"a GPU that is not there":         {spec("gone", Device{UUID: "GPU-gone"}), "Failed to find device GPU-gone"},
		"a spec that cannot be":           {spec("empty"), "devices: must be 1 to 32"},
		"an ID that is no name of a file": {spec("../x", Device{UUID: gpu0}), "letters, digits or hyphens"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := m.ensure(test.spec); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("the error %v does not say %q", err, test.want)
			}
		})
	}
	m.must(driver.SetFailure(m.dir, driver.Failure{Start: "MPS does not like this GPU"}))
	if _, err := m.ensure(spec("b", Device{UUID: gpu0})); err == nil || !strings.Contains(err.Error(), "MPS does not like this GPU") {
		t.Errorf("a daemon that does not start: %v", err)
	}
	m.must(driver.SetFailure(m.dir, driver.Failure{}))
	m.until("it starts after all", func() bool { return m.status("b").State == Ready })
}

func TestADamagedSpecDisturbsNoOther(t *testing.T) {
	m := newMachine(t)
	m.must(os.WriteFile(m.daemons.layout.spec("damaged"), []byte("{"), 0o600))
	m.must(os.WriteFile(m.daemons.layout.status("stray"), []byte("{"), 0o600))
	m.supervise()
	if _, err := m.ensure(spec("a", Device{UUID: gpu0})); err != nil {
		t.Error(err)
	}
	m.until("it is refused", func() bool { return m.status("damaged").State == Refused })
	m.until("a status without a spec is gone", func() bool { return m.status("stray").SpecHash == "" })
	m.remove("damaged")
}

func TestANodeHasOneSupervisor(t *testing.T) {
	m := newMachine(t)
	m.supervise()
	_, ctx := ktesting.NewTestContext(t)
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if err := m.supervisor().Run(ctx); err == nil || !strings.Contains(err.Error(), "another MPS supervisor") {
		t.Errorf("a second supervisor: %v", err)
	}
}

func TestFieldCase22_ATimeSliceIsSetByTheDriversProgramWithoutAShell(t *testing.T) {
	m := newMachine(t)
	smi := SMI{DriverRoot: filepath.Join(m.dir, "root"), LibraryDir: filepath.Join(m.dir, "libraries")}
	for _, slice := range []int{3, 0} {
		m.must(smi.SetTimeSlice(t.Context(), gpu1, slice))
		if now, err := driver.TimeSlice(m.dir, gpu1); err != nil || now != slice {
			t.Errorf("the time slice is %d, %v, want %d", now, err, slice)
		}
	}
	if err := smi.SetTimeSlice(t.Context(), "GPU-gone", 1); err == nil || !strings.Contains(err.Error(), "No devices were found") {
		t.Errorf("a GPU that is gone: %v", err)
	}
	smi.DriverRoot = t.TempDir()
	if err := smi.SetTimeSlice(t.Context(), gpu0, 1); err == nil || !strings.Contains(err.Error(), "no program nvidia-smi below") {
		t.Errorf("without a driver: %v", err)
	}
}
