// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package image builds container images from files of this machine, without a
// registry, a Dockerfile or a daemon. The same inputs give the same bytes. It
// imports only the standard library, go-containerregistry and renameio.
package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/renameio/v2"
)

// Entry is one file of an image.
type Entry struct {
	// Target is the absolute path inside the image.
	Target string
	// Source is the file of this machine that is copied, symbolic links
	// followed; a folder is copied with everything below it.
	Source string
	// Link makes the entry a symbolic link to this target instead.
	Link string
	// Mode overrides the source's permissions unless it is 0.
	Mode fs.FileMode
}

// Spec is an image.
type Spec struct {
	// Tag is the image's name, for example localhost/switchyard:dev.
	Tag        string
	Entrypoint []string
	// Cmd are the arguments that a pod's args replace.
	Cmd     []string
	Env     []string
	Entries []Entry
	// Labels are those of the image's configuration.
	Labels map[string]string
}

// Write builds an image into a docker archive.
func Write(file string, spec Spec) error {
	tag, err := name.NewTag(spec.Tag, name.WithDefaultRegistry("localhost"))
	if err != nil {
		return fmt.Errorf("image tag %q: %w", spec.Tag, err)
	}
	layer, err := packLayer(spec.Entries)
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Tag, err)
	}
	tarLayer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(layer)), nil })
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Tag, err)
	}
	img, err := mutate.AppendLayers(empty.Image, tarLayer)
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Tag, err)
	}
	env := slices.Clone(spec.Env)
	if !slices.ContainsFunc(env, func(e string) bool { return strings.HasPrefix(e, "PATH=") }) {
		env = append(env, "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	layers, err := img.ConfigFile()
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Tag, err)
	}
	img, err = mutate.ConfigFile(img, &v1.ConfigFile{
		Architecture: runtime.GOARCH,
		OS:           "linux",
		Created:      v1.Time{Time: time.Unix(0, 0).UTC()},
		Config:       v1.Config{Entrypoint: spec.Entrypoint, Cmd: spec.Cmd, Env: env, Labels: spec.Labels, WorkingDir: "/"},
		RootFS:       layers.RootFS,
		History:      []v1.History{{CreatedBy: "switchyard localcluster image build"}},
	})
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Tag, err)
	}
	out, err := renameio.NewPendingFile(file, renameio.WithPermissions(0o644))
	if err != nil {
		return fmt.Errorf("image %s: %w", spec.Tag, err)
	}
	defer out.Cleanup() //nolint:errcheck // no-op after the file was renamed
	if err := tarball.Write(tag, img, out); err != nil {
		return fmt.Errorf("image %s: write %s: %w", spec.Tag, file, err)
	}
	if err := out.CloseAtomicallyReplace(); err != nil {
		return fmt.Errorf("image %s: write %s: %w", spec.Tag, file, err)
	}
	return nil
}

// packLayer writes the entries and their parent folders into a tar stream,
// sorted, without times or owners.
func packLayer(entries []Entry) ([]byte, error) {
	files := map[string]Entry{}
	for _, e := range entries {
		if !path.IsAbs(e.Target) {
			return nil, fmt.Errorf("target %q of %q must be an absolute path", e.Target, e.Source)
		}
		if e.Link != "" {
			files[path.Clean(e.Target)] = e
			continue
		}
		if err := collect(files, e); err != nil {
			return nil, err
		}
	}
	if root, ok := files["/"]; ok {
		return nil, fmt.Errorf("target / of %q is a folder: name the file in it", root.Source+root.Link)
	}
	dirs := map[string]bool{"/tmp": true}
	for target := range files {
		for dir := path.Dir(target); dir != "/"; dir = path.Dir(dir) {
			if _, isFile := files[dir]; isFile {
				return nil, fmt.Errorf("%s is to be both a file and the folder of %s", dir, target)
			}
			dirs[dir] = true
		}
	}
	names := make([]string, 0, len(files)+len(dirs))
	for target := range files {
		names = append(names, target)
	}
	for dir := range dirs {
		names = append(names, dir)
	}
	slices.Sort(names)
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for _, target := range names {
		var err error
		if dirs[target] {
			err = w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: target[1:] + "/", Mode: dirMode(target), ModTime: time.Unix(0, 0), Format: tar.FormatUSTAR})
		} else {
			err = packFile(w, target, files[target])
		}
		if err != nil {
			return nil, fmt.Errorf("pack %s: %w", target, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("pack layer: %w", err)
	}
	return out.Bytes(), nil
}

func dirMode(dir string) int64 {
	if dir == "/tmp" || dir == "/var/tmp" {
		return 0o1777
	}
	return 0o755
}

// collect adds a source file, or all files below a source folder.
func collect(files map[string]Entry, e Entry) error {
	info, err := os.Stat(e.Source)
	if err != nil {
		return fmt.Errorf("source of %s: %w", e.Target, err)
	}
	if !info.IsDir() {
		target := path.Clean(e.Target)
		if other, taken := files[target]; taken && other.Source != e.Source {
			return fmt.Errorf("%s is to be both %s and %s", target, other.Source, e.Source)
		}
		files[target] = e
		return nil
	}
	return filepath.WalkDir(e.Source, func(source string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(e.Source, source)
		if err != nil {
			return err
		}
		one := Entry{Target: path.Join(e.Target, filepath.ToSlash(rel)), Source: source}
		if d.Type()&fs.ModeSymlink != 0 {
			if one.Link, err = os.Readlink(source); err != nil {
				return err
			}
		}
		files[one.Target] = one
		return nil
	})
}

func packFile(w *tar.Writer, target string, e Entry) error {
	header := &tar.Header{Name: target[1:], ModTime: time.Unix(0, 0)}
	if e.Link != "" {
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, e.Link, 0o777
		return w.WriteHeader(header)
	}
	f, err := os.Open(e.Source)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	mode := e.Mode
	if mode == 0 {
		mode = info.Mode().Perm()
	}
	header.Typeflag, header.Size, header.Mode = tar.TypeReg, info.Size(), int64(mode)
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}
