// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/moby/sys/symlink"
)

// soname is the name under which driver packages install NVML.
const soname = "libnvidia-ml.so.1"

// libraryDirs are where distributions and the driver's container image install libraries, in the order
// in which they are searched under a driver root. /usr/lib may hold 32-bit libraries, so it comes last
// and every hit is checked.
var libraryDirs = []string{
	"usr/lib64",
	"usr/lib/x86_64-linux-gnu",
	"usr/lib/aarch64-linux-gnu",
	"lib64",
	"lib/x86_64-linux-gnu",
	"lib/aarch64-linux-gnu",
	"usr/lib/wsl/lib",
	"usr/lib",
	"lib",
}

// locate returns what to pass to dlopen: the path of the library under the driver root, or the bare
// name for the root "/", where the dynamic linker knows best (LD_LIBRARY_PATH, ld.so.cache).
func locate(driverRoot string) (string, error) {
	if driverRoot == "" || filepath.Clean(driverRoot) == "/" {
		return soname, nil
	}
	var unfit []error
	for _, dir := range libraryDirs {
		// Absolute links are meant to be read inside the root, as after chroot.
		path, err := symlink.FollowSymlinkInScope(filepath.Join(driverRoot, dir, soname), driverRoot)
		if err != nil {
			err = fmt.Errorf("follow symbolic links: %w", err)
		} else {
			err = checkLoadable(path)
		}
		if err == nil {
			return path, nil
		}
		if !errors.Is(err, fs.ErrNotExist) {
			unfit = append(unfit, err)
		}
	}
	if len(unfit) > 0 {
		return "", fmt.Errorf("no usable %s under driver root %s: %w", soname, driverRoot, errors.Join(unfit...))
	}
	return "", fmt.Errorf("no %s under driver root %s (looked in %s): install the NVIDIA driver there or set --driver-root-mount",
		soname, driverRoot, strings.Join(libraryDirs, ", "))
}

// checkLoadable returns an error if the shared library is not for this process, or is incomplete, as
// while an installer still writes it: dlopen of such a file ends the process with SIGBUS.
func checkLoadable(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	file, err := elf.Open(path)
	if err != nil {
		return fmt.Errorf("read ELF header of %s: %w", path, err)
	}
	defer file.Close()
	for _, segment := range file.Progs {
		if end := segment.Off + segment.Filesz; segment.Type == elf.PT_LOAD && end > uint64(info.Size()) {
			return fmt.Errorf("%s is incomplete: %d bytes of at least %d", path, info.Size(), end)
		}
	}
	want := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[runtime.GOARCH]
	if want != 0 && file.Machine != want {
		return fmt.Errorf("%s is built for %s, this process needs %s", path, file.Machine, want)
	}
	return nil
}

// whyNotLoaded returns the dynamic linker's own words, which go-nvml's Init replaces by
// ERROR_LIBRARY_NOT_FOUND.
func whyNotLoaded(path string) string {
	library := dl.New(path, dl.RTLD_LAZY|dl.RTLD_LOCAL)
	if err := library.Open(); err != nil {
		return err.Error()
	}
	_ = library.Close()
	return path + " could not be loaded at first, but can be now"
}

// loadedFile identifies the NVML library file that this process has mapped, or is nil.
func loadedFile() (string, fs.FileInfo) {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return "", nil
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		_, rest, found := strings.Cut(lines.Text(), " /")
		path := "/" + rest
		if found && strings.HasPrefix(filepath.Base(path), "libnvidia-ml.so") {
			if info, err := os.Stat(path); err == nil {
				return path, info
			}
		}
	}
	return "", nil
}
