// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"

	"golang.org/x/sys/unix"
)

// daemonCapabilities are what an MPS control daemon keeps: it starts a server as the user of its clients, gives it its
// files, and ends it. Everything else goes.
var daemonCapabilities = []uintptr{unix.CAP_SETUID, unix.CAP_SETGID, unix.CAP_CHOWN, unix.CAP_KILL}

// lastCapability is above all that kernels have; they say so with EINVAL.
const lastCapability = 63

// Launch becomes a program of the driver for one daemon, which ends with its parent: "PARENT ALL OWN SHM PROGRAM [ARGUMENT...]",
// with the parent's process ID, the directory of all daemons, that of this daemon below it, which alone stays to be seen, and a
// directory that is to be its /dev/shm, or "" for none. It must be in a mount namespace of its own. It returns only if it fails.
func Launch(args []string) error {
	// Capabilities, and the signal at the parent's death, are a thread's.
	runtime.LockOSThread()
	if len(args) < 5 {
		return errors.New("launch: want PARENT ALL OWN SHM PROGRAM [ARGUMENT...]")
	}
	parent, err := strconv.Atoi(args[0])
	if err != nil {
		return fmt.Errorf("launch: process ID of the parent: %w", err)
	}
	all, own, shm, program := args[1], args[2], args[3], args[4:]
	if err := hideOthers(all, own); err != nil {
		return fmt.Errorf("launch %s: hide the directories of other daemons: %w", program[0], err)
	}
	if shm != "" {
		if err := unix.Mount(shm, "/dev/shm", "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("launch %s: mount %s as /dev/shm: %w", program[0], shm, err)
		}
	}
	if err := dropPrivileges(); err != nil {
		return fmt.Errorf("launch %s: give up privileges: %w", program[0], err)
	}
	// After the capabilities: the kernel forgets it when a program gains some.
	if err := unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(unix.SIGKILL), 0, 0, 0); err != nil {
		return fmt.Errorf("launch %s: end with the parent: %w", program[0], err)
	}
	if os.Getppid() != parent {
		return fmt.Errorf("launch %s: the parent has ended", program[0])
	}
	return fmt.Errorf("launch %s: %w", program[0], unix.Exec(program[0], program, os.Environ()))
}

// hideOthers leaves in a directory nothing but one below it. The programs of a daemon follow links that containers may put into
// its pipe directory: they must not lead to another daemon, or to what is asked of daemons.
func hideOthers(all, own string) error {
	dir, err := unix.Open(own, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Close(dir) }()
	if err := unix.Mount("tmpfs", all, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=0755,size=64k"); err != nil {
		return err
	}
	if err := os.MkdirAll(own, dirPerm); err != nil {
		return err
	}
	return unix.Mount(fmt.Sprintf("/proc/self/fd/%d", dir), own, "", unix.MS_BIND, "")
}

// dropPrivileges gives up all capabilities but those of a daemon, for good.
func dropPrivileges() error {
	var keep uint64
	for _, capability := range daemonCapabilities {
		keep |= 1 << capability
	}
	for capability := range uintptr(lastCapability + 1) {
		if keep&(1<<capability) != 0 {
			continue
		}
		has, err := unix.PrctlRetInt(unix.PR_CAPBSET_READ, capability, 0, 0, 0)
		if errors.Is(err, unix.EINVAL) {
			break // the kernel has no more
		}
		if err == nil && has != 0 {
			err = unix.Prctl(unix.PR_CAPBSET_DROP, capability, 0, 0, 0)
		}
		if err != nil {
			return fmt.Errorf("drop capability %d: %w", capability, err)
		}
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var have [2]unix.CapUserData
	if err := unix.Capget(&header, &have[0]); err != nil {
		return fmt.Errorf("read capabilities: %w", err)
	}
	for i := range have {
		kept := have[i].Permitted & uint32(keep>>(32*i))
		have[i] = unix.CapUserData{Effective: kept, Permitted: kept, Inheritable: kept}
	}
	if err := unix.Capset(&header, &have[0]); err != nil {
		return fmt.Errorf("set capabilities: %w", err)
	}
	return unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
}
