// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the repository, seen from this package.
const root = "../.."

// files returns the files of the repository with one of the endings, below the given folders (all of the
// repository when none is given), relative to its root.
func files(t *testing.T, endings []string, folders ...string) []string {
	t.Helper()
	if len(folders) == 0 {
		folders = []string{"."}
	}
	var found []string
	for _, folder := range folders {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name := entry.Name()
			if entry.IsDir() && (name == ".git" || name == "bin" || name == "build" || name == "shared" || name == "testdata") {
				return fs.SkipDir
			}
			if !entry.IsDir() && slices.Contains(endings, filepath.Ext(name)) {
				relative, err := filepath.Rel(root, path)
				found = append(found, relative)
				return err
			}
			return nil
		})
		if err != nil {
			t.Fatalf("list %s: %v", folder, err)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no file %s below %s: the check would check nothing", strings.Join(endings, " or "), strings.Join(folders, ", "))
	}
	return found
}

func read(t *testing.T, file string) string {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(content)
}
