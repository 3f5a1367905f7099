// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/moby/sys/symlink"
)

// Where distributions, driver containers and node images put the driver's programs and libraries, below a driver root.
var (
	programDirs = []string{"opt/bin", "usr/bin", "usr/local/bin", "bin", "run/current-system/sw/bin"}
	libraryDirs = []string{
		"usr/lib64", "usr/lib/x86_64-linux-gnu", "usr/lib/aarch64-linux-gnu", "lib64", "lib/x86_64-linux-gnu",
		"lib/aarch64-linux-gnu", "usr/lib/wsl/lib", "run/opengl-driver/lib", "usr/lib", "lib",
	}
)

// findProgram returns the path of a program of the driver.
func findProgram(root, name string) (string, error) {
	for _, dir := range programDirs {
		path := below(root, filepath.Join(root, dir, name))
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("no program %s below %s (looked in %s): the driver's installation lacks it, or the driver root is another",
		name, root, strings.Join(programDirs, ", "))
}

// below returns the path, or where its links lead when absolute ones are read inside the root, as after chroot: Debian's
// alternatives are such.
func below(root, path string) string {
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if inside, err := symlink.FollowSymlinkInScope(path, root); err == nil {
		return inside
	}
	return path
}

// linkLibraries makes dir a directory of links to the driver's libraries alone, for LD_LIBRARY_PATH. A library
// directory of the host has the host's C library in it, too, which the loader of this container cannot use.
// For the root "/" the loader knows best: then there is no directory.
func linkLibraries(root, dir string) (string, error) {
	if filepath.Clean(root) == "/" {
		return "", nil
	}
	for _, candidate := range libraryDirs {
		from := filepath.Join(root, candidate)
		if _, err := os.Lstat(filepath.Join(from, "libcuda.so.1")); err != nil {
			continue
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return "", fmt.Errorf("find the driver's libraries: %w", err)
		}
		if err := os.MkdirAll(dir, dirPerm); err != nil {
			return "", fmt.Errorf("link the driver's libraries: %w", err)
		}
		for _, entry := range entries {
			name := entry.Name()
			if !strings.HasPrefix(name, "libcuda") && !strings.HasPrefix(name, "libnvidia-") || !strings.Contains(name, ".so") {
				continue
			}
			if err := link(below(root, filepath.Join(from, name)), filepath.Join(dir, name)); err != nil {
				return "", fmt.Errorf("link the driver's libraries: %w", err)
			}
		}
		return dir, nil
	}
	return "", fmt.Errorf("no libcuda.so.1 below %s (looked in %s)", root, strings.Join(libraryDirs, ", "))
}

// linking is held while links are made: several daemons and GPUs share a directory of them.
var linking sync.Mutex

// link makes a symbolic link, unless it is there.
func link(target, path string) error {
	linking.Lock()
	defer linking.Unlock()
	if now, err := os.Readlink(path); err == nil && now == target {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(target, path)
}

// environment is what a program of the driver gets. The path lets nvidia-cuda-mps-control find nvidia-cuda-mps-server.
func environment(program, libraries string, more ...string) []string {
	env := append([]string{"PATH=" + filepath.Dir(program) + ":/usr/sbin:/usr/bin:/sbin:/bin"}, more...)
	if libraries != "" {
		env = append(env, "LD_LIBRARY_PATH="+libraries)
	}
	return env
}
