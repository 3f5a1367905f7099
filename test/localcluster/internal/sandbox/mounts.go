// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/sys/unix"
)

// device is a node of a machine's own /dev.
type device struct {
	name         string
	mode         uint32
	major, minor uint32
}

// devices are those every Linux machine has; see the kernel's
// admin-guide/devices. Host hardware stays invisible.
var devices = []device{
	{"null", 0o666, 1, 3},
	{"zero", 0o666, 1, 5},
	{"full", 0o666, 1, 7},
	{"random", 0o666, 1, 8},
	{"urandom", 0o666, 1, 9},
	{"kmsg", 0o600, 1, 11},
	{"tty", 0o666, 5, 0},
	{"console", 0o600, 5, 1},
	{"fuse", 0o666, 10, 229},
	{"net/tun", 0o666, 10, 200},
}

// setUpMounts gives the calling process's mount namespace the machine's view.
// The order matters: nothing below may need a folder that an earlier step hid.
func setUpMounts(s *Spec) error {
	// What happens in here must not reach the host.
	if err := mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return err
	}
	if s.Root != "" {
		steps := []func(root string) error{mountEtc, mountVar, mountRun, mountDev}
		for _, step := range steps {
			if err := step(s.Root); err != nil {
				return err
			}
		}
	}
	if err := mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	for target, source := range s.Masks {
		if _, err := os.Stat(target); errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := mount(source, target, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	// Pods may ask for mounts to propagate to and from the machine.
	return mount("", "/", "", unix.MS_SHARED|unix.MS_REC, "")
}

// mountEtc lays the machine's own files over the host's /etc.
func mountEtc(root string) error {
	upper, work := filepath.Join(root, "etc"), filepath.Join(root, ".etc-work")
	for _, dir := range []string{upper, work} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("prepare /etc: %w", err)
		}
	}
	return mount("overlay", "/etc", "overlay", 0, fmt.Sprintf("lowerdir=/etc,upperdir=%s,workdir=%s", upper, work))
}

func mountVar(root string) error {
	for _, dir := range []string{"/var/lib", "/var/log"} {
		source := filepath.Join(root, dir)
		if err := os.MkdirAll(source, 0o755); err != nil {
			return fmt.Errorf("prepare %s: %w", dir, err)
		}
		if err := mount(source, dir, "", unix.MS_BIND, ""); err != nil {
			return err
		}
	}
	return nil
}

// mountRun gives the machine an empty /run, as at boot.
func mountRun(string) error {
	if err := mount("tmpfs", "/run", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=755"); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks("/var/run"); err == nil && target != "/run" {
		return mount("/run", "/var/run", "", unix.MS_BIND, "")
	}
	return nil
}

// mountDev gives the machine a /dev of its own, so that device nodes made in
// there are seen by this machine only.
func mountDev(string) error {
	if err := mount("tmpfs", "/dev", "tmpfs", unix.MS_NOSUID, "mode=755"); err != nil {
		return err
	}
	for _, dir := range []string{"net", "pts", "shm", "mqueue"} {
		if err := os.Mkdir(filepath.Join("/dev", dir), 0o755); err != nil {
			return fmt.Errorf("prepare /dev: %w", err)
		}
	}
	umask := unix.Umask(0)
	defer unix.Umask(umask)
	for _, d := range devices {
		path := filepath.Join("/dev", d.name)
		if err := unix.Mknod(path, unix.S_IFCHR|d.mode, int(unix.Mkdev(d.major, d.minor))); err != nil {
			return fmt.Errorf("create device %s: %w (is this a container without CAP_MKNOD?)", path, err)
		}
	}
	links := map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2", "ptmx": "pts/ptmx"}
	for name, target := range links {
		if err := os.Symlink(target, filepath.Join("/dev", name)); err != nil {
			return fmt.Errorf("prepare /dev: %w", err)
		}
	}
	if err := mount("devpts", "/dev/pts", "devpts", unix.MS_NOSUID|unix.MS_NOEXEC, "newinstance,ptmxmode=0666,mode=0620,gid=5"); err != nil {
		return err
	}
	if err := mount("shm", "/dev/shm", "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=1777"); err != nil {
		return err
	}
	err := mount("mqueue", "/dev/mqueue", "mqueue", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if errors.Is(err, unix.ENODEV) { // a kernel without POSIX message queues
		return nil
	}
	return err
}

// setSysctls writes the machine's network settings.
func setSysctls(sysctls map[string]string) error {
	names := make([]string, 0, len(sysctls))
	for name := range sysctls {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		err := os.WriteFile(filepath.Join("/proc/sys", name), []byte(sysctls[name]), 0o644)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("set sysctl %s to %s: %w", name, sysctls[name], err)
		}
	}
	return nil
}

func mount(source, target, fstype string, flags uintptr, options string) error {
	if err := unix.Mount(source, target, fstype, flags, options); err != nil {
		what := fstype
		if source != "" {
			what = source
		}
		return fmt.Errorf("mount %q on %s (options %q): %w", what, target, options, err)
	}
	return nil
}
