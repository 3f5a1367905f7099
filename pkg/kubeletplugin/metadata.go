// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

// The helper keeps the device metadata of a claim (KEP-5304) in two places: a directory per claim
// below the plugin directory and a CDI spec per request. It removes them when the kubelet
// unprepares a claim; the reconciler has to when nobody else will.
const (
	metadataDirName    = "dra-device-metadata"
	metadataSpecPrefix = v1alpha1.DriverName + "_metadata_"
)

// metadataFiles is what this driver knows about the helper's files.
type metadataFiles struct {
	pluginDir, cdiDir string
	// inUse reports whether a claim of that namespace and name is prepared.
	inUse func(namespace, name string) bool
	// written are the CDI specs that this process wrote; nil remembers none.
	written *metadataSpecs
}

// operations are the file operations that the helper shall use.
//
// Writing is atomic, and is left out where the file is there as it should be: a repeated Prepare writes nothing. It is
// not synced: after a power failure no container that uses the files runs any
// more, and the next Prepare writes them anew. That keeps four syncs for each request out of the hot
// path. And the helper names a claim's directory by namespace and name, so cleaning up for a claim
// that is gone must spare the directory of the claim that took its name.
func (m metadataFiles) operations() kubeletplugin.MetadataFileOperations {
	return kubeletplugin.MetadataFileOperations{
		WriteFile: func(path string, data []byte, perm os.FileMode) error {
			if err := atomicfile.Ensure(path, data, perm); err != nil {
				return err
			}
			m.written.wrote(path)
			return nil
		},
		Glob: m.written.glob,
		RemoveAll: func(path string) error {
			if namespace, name, ok := strings.Cut(filepath.Base(path), "_"); ok && m.inUse(namespace, name) {
				return nil
			}
			err := os.RemoveAll(path)
			if errors.Is(err, syscall.ENAMETOOLONG) {
				return nil // so the helper could not make it either: the claim has no metadata, and must be able to end
			}
			return err
		},
	}
}

// directory is where the helper keeps the metadata of a claim.
func (m metadataFiles) directory(namespace, name string) string {
	return filepath.Join(m.pluginDir, metadataDirName, namespace+"_"+name)
}

// remove removes the metadata of a claim.
func (m metadataFiles) remove(namespace, name string, uid types.UID) error {
	errs := []error{m.operations().RemoveAll(m.directory(namespace, name))}
	specs, err := m.specs()
	errs = append(errs, err)
	for _, path := range specs[uid] {
		errs = append(errs, removeFile(path))
	}
	m.written.forget(uid)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("remove the device metadata of claim %s/%s: %w", namespace, name, err)
	}
	return nil
}

// specs lists the paths of the CDI specs by claim UID.
func (m metadataFiles) specs() (map[types.UID][]string, error) {
	entries, err := os.ReadDir(m.cdiDir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("list the CDI specs of device metadata: %w", err)
	}
	specs := make(map[types.UID][]string)
	for _, entry := range entries {
		rest, ok := strings.CutPrefix(entry.Name(), metadataSpecPrefix)
		if !ok {
			continue
		}
		uid, _, ok := strings.Cut(rest, "_")
		if !ok {
			continue
		}
		specs[types.UID(uid)] = append(specs[types.UID(uid)], filepath.Join(m.cdiDir, entry.Name()))
	}
	return specs, nil
}

// missing reports whether files of a prepared claim are not there. requests are the names of its
// requests, those of subrequests included.
func (m metadataFiles) missing(namespace, name string, uid types.UID, requests []string) bool {
	for _, request := range requests {
		request = resourceclaim.BaseRequestRef(request)
		for _, path := range []string{
			filepath.Join(m.directory(namespace, name), request, "metadata.json"),
			filepath.Join(m.cdiDir, metadataSpecPrefix+string(uid)+"_"+request+".json"),
		} {
			if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
				return true
			}
		}
	}
	return false
}

// sweep removes the specs and directories of claims that are not prepared; prepared reports whether a
// UID is. It also removes temporary files of killed processes.
func (m metadataFiles) sweep(prepared func(types.UID) bool) error {
	specs, err := m.specs()
	errs := []error{err}
	for uid, paths := range specs {
		if prepared(uid) {
			continue
		}
		for _, path := range paths {
			errs = append(errs, removeFile(path))
		}
	}
	directories, err := filepath.Glob(filepath.Join(m.pluginDir, metadataDirName, "*"))
	errs = append(errs, err)
	for _, directory := range directories {
		errs = append(errs, m.operations().RemoveAll(directory))
	}
	_, err = atomicfile.RemoveStale(m.cdiDir, func(base string) bool {
		return strings.HasPrefix(base, metadataSpecPrefix) || base == preflightFile
	})
	errs = append(errs, err)
	requests, err := filepath.Glob(filepath.Join(m.pluginDir, metadataDirName, "*", "*"))
	errs = append(errs, err)
	for _, request := range requests {
		_, err := atomicfile.RemoveStale(request, func(string) bool { return true })
		errs = append(errs, err)
	}
	_, err = atomicfile.RemoveStale(m.pluginDir, func(base string) bool { return base == inventoryFileName || base == shareFileName })
	errs = append(errs, err)
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("sweep device metadata: %w", err)
	}
	return nil
}

func removeFile(path string) error {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
