// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Builder fills a folder with the cluster's binaries.
type Builder struct {
	// Versions are those of the module.
	Versions Versions
	// Dir is where the binaries go; by convention it is named by the key.
	Dir string
	// Out receives one line per program.
	Out io.Writer
}

// CacheDir is the folder with one folder of binaries per key.
func CacheDir() (string, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find the cache directory: %w: set XDG_CACHE_HOME", err)
	}
	return filepath.Join(cache, "switchyard", "bin"), nil
}

// Missing returns the programs that are not built yet.
func (b *Builder) Missing() []Program {
	var missing []Program
	for _, p := range Programs() {
		if _, err := os.Stat(filepath.Join(b.Dir, p.Name)); err != nil {
			missing = append(missing, p)
		}
	}
	return missing
}

// Build compiles what is missing. Binaries appear in the folder only when they
// are whole, so a build that was killed goes on where it stopped. Only one
// build at a time fills a folder; a second one waits for it.
func (b *Builder) Build(ctx context.Context) error {
	if len(b.Missing()) == 0 {
		return nil
	}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return fmt.Errorf("create folder for binaries: %w", err)
	}
	unlock, err := b.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	source, err := sourceDir()
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return fmt.Errorf("the cluster's programs are compiled from source: %w: install Go and put it on PATH", err)
	}
	missing := b.Missing()
	if len(missing) > 0 {
		fmt.Fprintf(b.Out, "Building %d programs into %s (about 10 minutes on 2 cores the first time, then cached)\n", len(missing), b.Dir)
	}
	for _, p := range Programs() {
		path := filepath.Join(b.Dir, p.Name)
		if _, err := os.Stat(path); err == nil {
			fmt.Fprintf(b.Out, "  %-26s cached\n", p.Name)
			continue
		}
		fmt.Fprintf(b.Out, "  %-26s ", p.Name)
		start := time.Now()
		if err := b.compile(ctx, source, p, path); err != nil {
			fmt.Fprintln(b.Out, "failed")
			return err
		}
		fmt.Fprintf(b.Out, "built in %.1f s\n", time.Since(start).Seconds())
	}
	return nil
}

func (b *Builder) compile(ctx context.Context, source string, p Program, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("build %s: %w", p.Name, err)
	}
	partial := path + ".partial"
	args := []string{"build", "-buildvcs=false", "-o", partial}
	if p.Tags != "" {
		args = append(args, "-tags", p.Tags)
	}
	if stamp := p.Stamp(b.Versions.Of(p.Module)); stamp != "" {
		args = append(args, "-ldflags", "-s -w "+stamp)
	} else {
		args = append(args, "-ldflags", "-s -w")
	}
	cmd := exec.CommandContext(ctx, "go", append(args, p.Package)...)
	cmd.Dir = source
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly")
	if p.Static {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=0")
	}
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.Name, err, strings.TrimSpace(output.String()))
	}
	if err := os.Rename(partial, path); err != nil {
		return fmt.Errorf("build %s: %w", p.Name, err)
	}
	return nil
}

// lock keeps other builds out of the folder.
func (b *Builder) lock(ctx context.Context) (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(b.Dir, ".lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock folder for binaries: %w", err)
	}
	for told := false; ; {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) {
			f.Close()
			return nil, fmt.Errorf("lock folder for binaries: %w", err)
		}
		if !told {
			fmt.Fprintf(b.Out, "Another build fills %s; waiting for it\n", b.Dir)
			told = true
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// sourceDir finds this module's source: where this program was compiled, or
// below the current directory's repository.
func sourceDir() (string, error) {
	var candidates []string
	if _, file, _, ok := runtime.Caller(0); ok {
		candidates = append(candidates, filepath.Join(filepath.Dir(file), "..", ".."))
	}
	if dir, err := os.Getwd(); err == nil {
		for ; ; dir = filepath.Dir(dir) {
			candidates = append(candidates, dir, filepath.Join(dir, "test", "localcluster"))
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	for _, dir := range candidates {
		mod, err := os.ReadFile(filepath.Join(dir, "go.mod"))
		if errors.Is(err, fs.ErrNotExist) || err != nil {
			continue
		}
		if bytes.HasPrefix(mod, []byte("module github.com/switchyard-dev/switchyard/test/localcluster\n")) {
			return filepath.Clean(dir), nil
		}
	}
	return "", errors.New("cannot find the source of test/localcluster, from which the cluster's programs are built: run this inside the repository")
}
