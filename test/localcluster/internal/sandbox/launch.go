// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/procid"
)

// InitCommand is the hidden subcommand of this program that runs RunInit.
const InitCommand = "sandbox-init"

const setupTimeout = 30 * time.Second

// Machine is a machine that was launched but whose services do not run yet.
type Machine struct {
	// ID is its init process, as the host sees it.
	ID   procid.ID
	gate *os.File
}

// Launch starts a machine's init and waits until its namespaces are set up.
// Its identity is saved to pidFile before anything else happens in it. The
// caller wires the network, then calls Go; or Kill.
func Launch(specPath, pidFile, initLog string) (*Machine, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("find own program: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(initLog), 0o755); err != nil {
		return nil, fmt.Errorf("create log folder: %w", err)
	}
	logFile, err := os.OpenFile(initLog, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of init: %w", err)
	}
	defer logFile.Close()
	readyRead, readyWrite, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start init: %w", err)
	}
	defer readyRead.Close()
	gateRead, gateWrite, err := os.Pipe()
	if err != nil {
		readyWrite.Close()
		return nil, fmt.Errorf("start init: %w", err)
	}
	cmd := exec.Command(self, InitCommand, specPath)
	cmd.Dir = "/"
	cmd.Env = []string{"PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = logFile, logFile
	cmd.ExtraFiles = []*os.File{readyWrite, gateRead}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid:     true,
		Cloneflags: unix.CLONE_NEWNS | unix.CLONE_NEWPID | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC,
	}
	err = cmd.Start()
	readyWrite.Close()
	gateRead.Close()
	if err != nil {
		gateWrite.Close()
		return nil, fmt.Errorf("start init in its own namespaces: %w (namespaces need root and a kernel that allows them; in a container, run it privileged)", err)
	}
	go func() { _ = cmd.Wait() }() // reaped if it dies before this program does
	m := &Machine{gate: gateWrite}
	if m.ID, err = procid.Of(cmd.Process.Pid); err == nil {
		err = m.ID.Save(pidFile)
	}
	if err == nil {
		err = awaitReady(readyRead)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%w (log: %s)", err, initLog), m.Kill())
	}
	return m, nil
}

func awaitReady(ready *os.File) error {
	if err := ready.SetReadDeadline(time.Now().Add(setupTimeout)); err != nil {
		return fmt.Errorf("wait for init: %w", err)
	}
	var r report
	if err := json.NewDecoder(ready).Decode(&r); err != nil {
		return fmt.Errorf("wait for init: %w", err)
	}
	if r.Error != "" {
		return errors.New(r.Error)
	}
	return nil
}

// Go lets init start the services.
func (m *Machine) Go() error {
	_, err := m.gate.Write([]byte{1})
	if cerr := m.gate.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("tell init to start: %w", err)
	}
	return nil
}

// killTimeout is generous: the end of init ends every process of the machine.
const killTimeout = 30 * time.Second

// Kill ends a machine that was launched.
func (m *Machine) Kill() error {
	m.gate.Close()
	return m.ID.Kill(killTimeout)
}

// Kill ends a machine with everything in it: processes, mounts, interfaces.
func Kill(id procid.ID) error { return id.Kill(killTimeout) }

// ExecArgs is the command line that runs a command inside a machine's
// namespaces.
func ExecArgs(pid int, command ...string) []string {
	args := []string{"nsenter", "--target", fmt.Sprint(pid), "--mount", "--pid", "--net", "--uts", "--ipc", "--"}
	return append(args, command...)
}
