// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"

	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

//go:embed profiles/*.yaml
var embedded embed.FS

// Names returns the names of the embedded profiles, sorted.
func Names() []string {
	// ReadDir of an embedded directory cannot fail: the pattern above matched files.
	entries, _ := fs.ReadDir(embedded, "profiles")
	names := make([]string, 0, len(entries))
	for _, entry := range entries {
		names = append(names, strings.TrimSuffix(entry.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// Source returns the YAML text of an embedded profile, comments included.
func Source(name string) ([]byte, error) {
	text, err := embedded.ReadFile(path.Join("profiles", name+".yaml"))
	if err != nil {
		return nil, fmt.Errorf("no profile is called %q; there are %s", name, strings.Join(Names(), ", "))
	}
	return text, nil
}

// Load returns the profile of the given name, or of the file at the given path: anything with a slash
// or a .yaml, .yml or .json ending is a path.
func Load(nameOrFile string) (Profile, error) {
	if !isPath(nameOrFile) {
		text, err := Source(nameOrFile)
		if err != nil {
			return Profile{}, err
		}
		p, err := Parse(text)
		if err != nil {
			return Profile{}, fmt.Errorf("profile %q: %w", nameOrFile, err)
		}
		return p, nil
	}
	text, err := os.ReadFile(nameOrFile)
	if err != nil {
		return Profile{}, fmt.Errorf("read profile: %w", err)
	}
	p, err := Parse(text)
	if err != nil {
		return Profile{}, fmt.Errorf("profile file %s: %w", nameOrFile, err)
	}
	return p, nil
}

func isPath(s string) bool {
	return strings.ContainsRune(s, os.PathSeparator) || slices.Contains([]string{".yaml", ".yml", ".json"}, path.Ext(s))
}

// Parse reads a profile strictly: unknown and repeated fields and a second document are errors, and so is what
// Validate refuses.
func Parse(text []byte) (Profile, error) {
	document, err := v1alpha1.OnlyDocument(text)
	if err != nil {
		return Profile{}, err
	}
	if document == nil {
		return Profile{}, errors.New("is empty")
	}
	asJSON, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return Profile{}, err
	}
	var p Profile
	strict, err := kjson.UnmarshalStrict(asJSON, &p)
	if err := errors.Join(append(strict, err)...); err != nil {
		return Profile{}, err
	}
	if err := Validate(p).ToAggregate(); err != nil {
		return Profile{}, err
	}
	return p, nil
}

// Marshal writes the profile as YAML.
func Marshal(p Profile) ([]byte, error) {
	text, err := yaml.Marshal(p)
	if err != nil {
		return nil, fmt.Errorf("write profile %q: %w", p.Name, err)
	}
	return text, nil
}
