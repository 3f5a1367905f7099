// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
	"github.com/switchyard-dev/switchyard/test/harness/process"
)

const (
	sharingHead = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharing":`
	mpsLimits   = sharingHead + `{"strategy":"MPS","mps":{"activeThreadPercentage":25,"pinnedDeviceMemoryLimit":"2Gi"}}}`
	longSlice   = sharingHead + `{"strategy":"TimeSlicing","timeSlicing":{"interval":"Long"}}}`
)

// supervise runs the MPS supervisor.
func (n *node) supervise(t *testing.T) *process.Process {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	before := n.supervisorsRan(t)
	p, err := n.StartSupervisor(filepath.Join(filepath.Dir(path), "switchyard-mps-supervisor"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	// It has the lock that the plugin looks at.
	eventually(t, "the supervisor to say that it runs", func() error {
		if err := p.Err(); err != nil {
			t.Fatal(err)
		}
		if n.supervisorsRan(t) == before {
			return errors.New(p.Tail(5))
		}
		return nil
	})
	return p
}

// supervisorsRan is how many supervisors said in the node's log that they run.
func (n *node) supervisorsRan(t *testing.T) int {
	t.Helper()
	content, err := os.ReadFile(n.SupervisorLogFile())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		t.Fatal(err)
	}
	return strings.Count(string(content), "Keeping MPS daemons")
}

// shared creates a claim for GPUs, with a configuration.
func (n *node) shared(t *testing.T, name, parameters string, devices ...string) *resourceapi.ResourceClaim {
	t.Helper()
	return create(t, n.claim(name).Request("gpus", devices...).Config(parameters))
}

// mpsDaemons are the daemons that run on the node.
func (n *node) mpsDaemons(t *testing.T) []driver.Running {
	t.Helper()
	running, err := n.GPUs.MPSDaemons()
	if err != nil {
		t.Fatal(err)
	}
	return running
}

// mpsSays is what the daemon answers to a program in a container with the CDI device IDs.
func (n *node) mpsSays(t *testing.T, ids []string, command string) (string, error) {
	t.Helper()
	spec, err := n.container(ids...)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(spec.Process.Env, func(v string) bool { return strings.HasPrefix(v, "CUDA_MPS_PIPE_DIRECTORY=") })
	if i < 0 {
		t.Fatalf("containers have no pipe directory, only %q", spec.Process.Env)
	}
	inside := strings.TrimPrefix(spec.Process.Env[i], "CUDA_MPS_PIPE_DIRECTORY=")
	for _, mount := range spec.Mounts {
		if mount.Destination != inside {
			continue
		}
		// The path of a socket has its limit: the directory is where the container has it.
		link := filepath.Join(t.TempDir(), "p")
		if err := os.Symlink(mount.Source, link); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(filepath.Join(n.GPUs.DriverRoot(), "usr/bin", driver.ControlProgram))
		cmd.Env = []string{"CUDA_MPS_PIPE_DIRECTORY=" + link}
		cmd.Stdin = strings.NewReader(command + "\n")
		output, err := cmd.CombinedOutput()
		return strings.TrimSpace(string(output)), err
	}
	t.Fatalf("nothing is mounted at %s", inside)
	return "", nil
}

// wantUnshared waits until nothing is left of sharing: no daemon, and the settings of all GPUs are the driver's.
func (n *node) wantUnshared(t *testing.T) {
	t.Helper()
	eventually(t, "nothing to be left of sharing", func() error {
		left := slices.Concat(files(t, filepath.Join(n.PluginDir(), "settings")), files(t, filepath.Join(n.PluginDir(), "mps", "specs")),
			files(t, filepath.Join(n.PluginDir(), "mps", "status")))
		for _, daemon := range n.mpsDaemons(t) {
			left = append(left, fmt.Sprintf("daemon %d", daemon.PID))
		}
		state, err := n.GPUs.State()
		if err != nil {
			t.Fatal(err)
		}
		for i, gpu := range state.GPUs {
			slice, err := n.GPUs.TimeSlice(i)
			if err != nil {
				t.Fatal(err)
			}
			if gpu.ComputeMode != nvml.COMPUTEMODE_DEFAULT || slice != 0 {
				left = append(left, fmt.Sprintf("GPU %d has compute mode %d and time slice %d", i, gpu.ComputeMode, slice))
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("there are %q", left)
		}
		return nil
	})
	n.wantNothingLeft(t)
}

func (n *node) computeMode(t *testing.T, gpu int) nvml.ComputeMode {
	t.Helper()
	state, err := n.GPUs.State()
	if err != nil {
		t.Fatal(err)
	}
	return state.GPUs[gpu].ComputeMode
}

func TestContainersOfAClaimWithMPSReachItsDaemonAndItsLimits(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	n.supervise(t)
	c := n.shared(t, "shared", mpsLimits, n.devices[2], n.devices[5])
	ids := n.prepare(t, c)
	n.wantSees(t, ids, 2, 5)
	for command, want := range map[string]string{
		"get_default_active_thread_percentage":  "25.0",
		"get_default_device_pinned_mem_limit 0": "2G",
		"get_default_device_pinned_mem_limit 1": "2G",
	} {
		if got, err := n.mpsSays(t, ids, command); err != nil || got != want {
			t.Errorf("%s says %q, %v, want %q", command, got, err, want)
		}
	}
	if running := n.mpsDaemons(t); len(running) != 1 || len(running[0].Devices) != 2 {
		t.Errorf("%+v run", running)
	}
	for _, gpu := range []int{2, 5} {
		if mode := n.computeMode(t, gpu); mode != nvml.COMPUTEMODE_EXCLUSIVE_PROCESS {
			t.Errorf("GPU %d has compute mode %d", gpu, mode)
		}
	}
	n.unprepare(t, c)
	n.wantUnshared(t)
}

func TestMPSWithoutASupervisorSaysWhatToInstall(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	c := n.shared(t, "shared", mpsLimits, n.devices[0])
	n.refused(t, c, "no MPS supervisor runs on this node", "deployments/mps", "switchyard.dev/mps=true")
	n.wantUnshared(t)
	n.supervise(t)
	n.prepare(t, c)
	n.unprepare(t, c)
	n.wantUnshared(t)
}

// A plugin that is killed, or replaced, does not take the CUDA programs along.
func TestADaemonOutlivesThePluginAndIsReplacedWhenItOrItsSupervisorDies(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	supervisor := n.supervise(t)
	c := n.shared(t, "shared", mpsLimits, n.devices[0])
	ids := n.prepare(t, c)
	pid := n.mpsDaemons(t)[0].PID
	replaced := func(what string) {
		t.Helper()
		eventually(t, "a daemon to answer after "+what, func() error {
			running := n.mpsDaemons(t)
			if len(running) != 1 || running[0].PID == pid {
				return fmt.Errorf("%+v run", running)
			}
			if got, err := n.mpsSays(t, ids, "get_default_active_thread_percentage"); err != nil || got != "25.0" {
				return fmt.Errorf("it says %q, %w", got, err)
			}
			return nil
		})
		pid = n.mpsDaemons(t)[0].PID
	}

	p.Kill()
	n.running(t, plugin.Options{})
	n.prepare(t, c)
	if running := n.mpsDaemons(t); len(running) != 1 || running[0].PID != pid {
		t.Errorf("after the plugin was killed %+v run, want the daemon %d", running, pid)
	}

	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	replaced("it was killed")

	supervisor.Kill()
	eventually(t, "the daemon to end with its supervisor", func() error {
		if running := n.mpsDaemons(t); len(running) > 0 {
			return fmt.Errorf("%+v run", running)
		}
		return nil
	})
	n.supervise(t)
	replaced("its supervisor was killed")

	n.unprepare(t, c)
	n.wantUnshared(t)
}

// Wherever the plugin dies, the next one finishes, or takes back, what it had begun.
func TestKilledAtEachStepOfSharing(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.supervise(t)
	for i, step := range []string{
		"prepare:after-checkpoint", "sharing:before-settings", "sharing:after-settings", "sharing:after-daemon", "prepare:after-cdi",
	} {
		for _, goes := range []string{"stays", "goes"} {
			t.Run(step+" and the claim "+goes, func(t *testing.T) {
				p := n.running(t, plugin.Options{})
				c := n.shared(t, fmt.Sprintf("made-%d-%s", i, goes), mpsLimits, n.devices[0])
				n.diesPreparing(t, p, step, c)
				if goes == "goes" {
					if err := claim.Delete(t.Context(), cluster.Client(), c); err != nil {
						t.Fatal(err)
					}
				}
				n.running(t, plugin.Options{Args: []string{"--orphan-grace=0s"}})
				if goes == "stays" {
					ids := n.prepare(t, c)
					if got, err := n.mpsSays(t, ids, "get_default_active_thread_percentage"); err != nil || got != "25.0" {
						t.Errorf("the daemon says %q, %v", got, err)
					}
					n.unprepare(t, c)
				}
				n.wantUnshared(t)
			})
		}
	}
	for i, step := range []string{"unprepare:after-cdi-removal", "sharing:after-daemon-removal", "sharing:after-settings-restored"} {
		t.Run(step, func(t *testing.T) {
			p := n.running(t, plugin.Options{})
			c := n.shared(t, fmt.Sprintf("gone-%d", i), mpsLimits, n.devices[0])
			n.prepare(t, c)
			n.diesUnpreparing(t, p, step, c)
			n.running(t, plugin.Options{Args: []string{"--orphan-grace=0s"}})
			n.unprepare(t, c)
			n.wantUnshared(t)
		})
	}
}

func TestADaemonThatFailsRefusesTheClaimUntilItStarts(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	n.supervise(t)
	if err := n.GPUs.SetMPSFailure(driver.Failure{Start: "out of whatever it needs"}); err != nil {
		t.Fatal(err)
	}
	c := n.shared(t, "shared", mpsLimits, n.devices[0])
	n.refused(t, c, "MPS daemon", "out of whatever it needs")
	n.wantUnshared(t)
	if err := n.GPUs.SetMPSFailure(driver.Failure{Delay: 500}); err != nil {
		t.Fatal(err)
	}
	n.prepare(t, c)
	n.unprepare(t, c)
	n.wantUnshared(t)
}

func TestATimeSliceIsSetForAClaimAndTakenBack(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	p := n.running(t, plugin.Options{})
	c := n.shared(t, "long", longSlice, n.devices[3])
	wantSlice := func(want int) {
		t.Helper()
		if got, err := n.GPUs.TimeSlice(3); err != nil || got != want {
			t.Errorf("the time slice is %d, %v, want %d", got, err, want)
		}
	}
	n.diesPreparing(t, p, "sharing:before-settings", c)
	n.running(t, plugin.Options{})
	n.prepare(t, c)
	wantSlice(3)
	n.unprepare(t, c)
	wantSlice(0)
	n.wantUnshared(t)
}

// Two daemons cannot serve one program: whichever claim comes second is refused.
func TestTwoClaimsWithMPSDoNotMeetInOneContainer(t *testing.T) {
	t.Parallel()
	n := newNode(t, "hgx-h100")
	n.running(t, plugin.Options{})
	n.supervise(t)
	pod := n.pod(t, "both", "one", "two")
	one := create(t, n.claim("one").Request("gpus", n.devices[0]).Config(mpsLimits).ReservedFor(pod))
	two := create(t, n.claim("two").Request("gpus", n.devices[1]).Config(mpsLimits).ReservedFor(pod))
	n.prepare(t, one)
	n.refused(t, two, "container main", "both have MPS", "one claim")
	n.unprepare(t, one)
	n.prepare(t, two)
	n.unprepare(t, two)
	n.wantUnshared(t)
}
