// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package procid identifies processes so that a recycled PID is never mistaken
// for the process that once had it. It imports only the standard library,
// golang.org/x/sys/unix and renameio.
package procid

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/google/renameio/v2"
	"golang.org/x/sys/unix"
)

// ID names one process of one boot of this machine.
type ID struct {
	PID int `json:"pid"`
	// StartTicks is the process's start time in clock ticks since boot:
	// field 22 of /proc/PID/stat, see proc(5).
	StartTicks uint64 `json:"startTicks"`
	// BootID is the machine's boot, because ticks start again with each.
	BootID string `json:"bootID"`
}

// Stat is what of /proc/PID/stat identifies a process.
type Stat struct {
	State      byte
	StartTicks uint64
}

// ParseStat parses the contents of /proc/PID/stat.
func ParseStat(contents string) (Stat, error) {
	// The second field is the command in parentheses; it may hold blanks
	// and parentheses itself.
	end := strings.LastIndexByte(contents, ')')
	if end < 0 {
		return Stat{}, fmt.Errorf("no command in process status %q", contents)
	}
	fields := strings.Fields(contents[end+1:])
	const startField = 22 - 3 // counted from the third field
	if len(fields) <= startField {
		return Stat{}, fmt.Errorf("process status %q has too few fields", contents)
	}
	ticks, err := strconv.ParseUint(fields[startField], 10, 64)
	if err != nil {
		return Stat{}, fmt.Errorf("start time in process status %q: %w", contents, err)
	}
	return Stat{State: fields[0][0], StartTicks: ticks}, nil
}

func readStat(pid int) (Stat, error) {
	contents, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return Stat{}, err
	}
	return ParseStat(string(contents))
}

func bootID() (string, error) {
	contents, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", fmt.Errorf("read the machine's boot ID: %w", err)
	}
	return strings.TrimSpace(string(contents)), nil
}

// Of returns the identity of the running process pid.
func Of(pid int) (ID, error) {
	stat, err := readStat(pid)
	if err != nil {
		return ID{}, fmt.Errorf("identify process %d: %w", pid, err)
	}
	boot, err := bootID()
	if err != nil {
		return ID{}, err
	}
	return ID{PID: pid, StartTicks: stat.StartTicks, BootID: boot}, nil
}

// Alive reports whether exactly this process still runs. A zombie does not.
func (id ID) Alive() bool {
	if id.PID <= 0 {
		return false
	}
	boot, err := bootID()
	if err != nil || boot != id.BootID {
		return false
	}
	stat, err := readStat(id.PID)
	return err == nil && stat.StartTicks == id.StartTicks && stat.State != 'Z' && stat.State != 'X'
}

// Kill ends exactly this process with SIGKILL and waits until it is gone. A
// process that no longer runs is no error.
func (id ID) Kill(timeout time.Duration) error {
	if id.PID <= 0 {
		return nil
	}
	// From here on the descriptor, not the number, names the process; so
	// the check below cannot be outdated by the time of the signal.
	fd, err := unix.PidfdOpen(id.PID, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open process %d: %w", id.PID, err)
	}
	defer unix.Close(fd)
	if !id.Alive() {
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill process %d: %w", id.PID, err)
	}
	deadline := time.Now().Add(timeout)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return fmt.Errorf("process %d did not end within %s of SIGKILL: it hangs in the kernel (see /proc/%d/stack)", id.PID, timeout, id.PID)
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the end of process %d: %w", id.PID, err)
		}
		if n > 0 {
			return nil
		}
	}
}

// Save writes the identity to a file, atomically.
func (id ID) Save(path string) error {
	data, err := json.Marshal(id)
	if err != nil {
		return fmt.Errorf("encode identity of process %d: %w", id.PID, err)
	}
	if err := renameio.WriteFile(path, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("save identity of process %d: %w", id.PID, err)
	}
	return nil
}

// Load reads an identity. A missing or unreadable file means that there is no
// such process: it gives the zero ID, which is never alive.
func Load(path string) ID {
	data, err := os.ReadFile(path)
	if err != nil {
		return ID{}
	}
	var id ID
	if json.Unmarshal(data, &id) != nil {
		return ID{}
	}
	return id
}
