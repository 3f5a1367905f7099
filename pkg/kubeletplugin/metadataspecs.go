// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
)

// metadataSpecs remembers which CDI specs of device metadata this process wrote, by claim. The helper
// looks for those of a claim by listing the CDI directory, so that an unprepare would take the longer
// the more claims are prepared; the memory answers for it. A nil one remembers nothing.
type metadataSpecs struct {
	mu      sync.Mutex
	byClaim map[types.UID]map[string]bool // paths
}

// wrote notes that a file was written; any that is no CDI spec of device metadata is none of ours.
func (s *metadataSpecs) wrote(path string) {
	uid, ok := metadataSpecClaim(path)
	if s == nil || !ok {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.byClaim == nil {
		s.byClaim = make(map[types.UID]map[string]bool)
	}
	if s.byClaim[uid] == nil {
		s.byClaim[uid] = make(map[string]bool)
	}
	s.byClaim[uid][path] = true
}

// forget drops what is known of a claim.
func (s *metadataSpecs) forget(uid types.UID) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.byClaim, uid)
}

// glob is filepath.Glob for the helper. It forgets the specs that it returns: should removing one of
// them fail, the next call looks into the directory, as it does for claims that another process
// prepared.
func (s *metadataSpecs) glob(pattern string) ([]string, error) {
	if uid, ok := metadataSpecClaim(pattern); s != nil && ok {
		s.mu.Lock()
		defer s.mu.Unlock()
		if specs, known := s.byClaim[uid]; known {
			delete(s.byClaim, uid)
			paths := make([]string, 0, len(specs))
			for path := range specs {
				paths = append(paths, path)
			}
			return paths, nil
		}
	}
	return filepath.Glob(pattern)
}

// metadataSpecClaim returns the claim of a path or a pattern of CDI specs of device metadata.
func metadataSpecClaim(path string) (types.UID, bool) {
	rest, ours := strings.CutPrefix(filepath.Base(path), metadataSpecPrefix)
	uid, _, ok := strings.Cut(rest, "_")
	return types.UID(uid), ours && ok
}
