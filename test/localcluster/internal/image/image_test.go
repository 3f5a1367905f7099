// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func write(t *testing.T, dir, name, content string) string {
	t.Helper()
	path := filepath.Join(dir, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o640); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestSameInputsGiveTheSameBytes(t *testing.T) {
	dir := t.TempDir()
	a, b := write(t, dir, "a", "one"), write(t, dir, "b", "two")
	build := func(name string, entries ...Entry) []byte {
		out := filepath.Join(dir, name)
		if err := Write(out, Spec{Tag: "localhost/x:1", Entrypoint: []string{"/a"}, Entries: entries}); err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(out)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	ea, eb := Entry{Source: a, Target: "/a"}, Entry{Source: b, Target: "/etc/b"}
	first := build("1.tar", ea, eb)
	if err := os.Chtimes(a, time.Unix(1, 0), time.Unix(1, 0)); err != nil {
		t.Fatal(err)
	}
	if second := build("2.tar", eb, ea); !bytes.Equal(first, second) {
		t.Error("order of entries and times of files change the image")
	}
}

func TestImageHoldsFilesFoldersAndLinks(t *testing.T) {
	dir := t.TempDir()
	write(t, dir, "tree/profiles/x.yaml", "x")
	program := write(t, dir, "program", "#!")
	out := filepath.Join(dir, "image.tar")
	err := Write(out, Spec{
		Tag: "localhost/x:1", Entrypoint: []string{"/usr/bin/program", "--flag"}, Env: []string{"A=b"},
		Entries: []Entry{
			{Source: filepath.Join(dir, "tree"), Target: "/etc/tree"},
			{Source: program, Target: "/usr/bin/program", Mode: 0o755},
			{Target: "/bin", Link: "usr/bin"},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	img, err := tarball.ImageFromPath(out, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/program", "--flag"}) || !slices.Contains(config.Config.Env, "A=b") {
		t.Errorf("config is %+v", config.Config)
	}
	layers, err := img.Layers()
	if err != nil || len(layers) != 1 {
		t.Fatalf("%d layers, %v", len(layers), err)
	}
	content, err := layers[0].Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	defer content.Close()
	var got []string
	for r := tar.NewReader(content); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, h.FileInfo().Mode().String()+" "+h.Name+" "+h.Linkname)
	}
	want := []string{
		"Lrwxrwxrwx bin usr/bin",
		"drwxr-xr-x etc/ ", "drwxr-xr-x etc/tree/ ", "drwxr-xr-x etc/tree/profiles/ ", "-rw-r----- etc/tree/profiles/x.yaml ",
		"dtrwxrwxrwx tmp/ ",
		"drwxr-xr-x usr/ ", "drwxr-xr-x usr/bin/ ", "-rwxr-xr-x usr/bin/program ",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestWriteRefuses(t *testing.T) {
	dir := t.TempDir()
	file := write(t, dir, "file", "x")
	for name, tt := range map[string]struct {
		spec Spec
		want string
	}{
		"a bad tag":               {Spec{Tag: "UPPER:1"}, "UPPER"},
		"a relative target":       {Spec{Tag: "x:1", Entries: []Entry{{Source: file, Target: "a"}}}, "absolute"},
		"a missing source":        {Spec{Tag: "x:1", Entries: []Entry{{Source: file + "2", Target: "/a"}}}, "/a"},
		"a file without a name":   {Spec{Tag: "x:1", Entries: []Entry{{Source: file, Target: "/"}}}, "name the file"},
		"two files of one name":   {Spec{Tag: "x:1", Entries: []Entry{{Source: file, Target: "/a"}, {Source: "/bin/sh", Target: "/a"}}}, "/a is to be both"},
		"a file that is a folder": {Spec{Tag: "x:1", Entries: []Entry{{Source: file, Target: "/a"}, {Source: file, Target: "/a/b"}}}, "both"},
	} {
		out := filepath.Join(dir, "out.tar")
		if err := Write(out, tt.spec); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: got %v, want an error with %q", name, err, tt.want)
		}
		if _, err := os.Stat(out); err == nil {
			t.Errorf("%s: an archive was written", name)
		}
	}
}

func TestParseLdd(t *testing.T) {
	got, err := parseLdd(`	linux-vdso.so.1 (0x00007ffc0)
	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f1)
	libdl.so.2 => /lib/x86_64-linux-gnu/libdl.so.2 (0x00007f2)
	/lib64/ld-linux-x86-64.so.2 (0x00007f3)
`)
	want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libdl.so.2", "/lib64/ld-linux-x86-64.so.2"}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v", got, err)
	}
	if _, err := parseLdd("\tlibgone.so.1 => not found\n"); err == nil || !strings.Contains(err.Error(), "libgone.so.1") {
		t.Errorf("a missing library: %v", err)
	}
}

func TestBinariesBringTheirLoader(t *testing.T) {
	entries, err := Binaries("/bin/sh")
	if err != nil {
		t.Fatal(err)
	}
	if entries[0].Target != "/usr/bin/sh" || entries[0].Mode != 0o755 {
		t.Errorf("program is %+v", entries[0])
	}
	if !slices.ContainsFunc(entries, func(e Entry) bool { return strings.Contains(e.Target, "/ld-") }) {
		t.Errorf("no loader in %+v", entries)
	}
	if _, err := Binaries("/etc/passwd"); err == nil || !strings.Contains(err.Error(), "ELF") {
		t.Errorf("a file that is no program: %v", err)
	}
}
