// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/types"
)

// corruptDir is the subdirectory that damaged files are moved to. They are for people to look at;
// nothing reads or removes them.
const corruptDir = "corrupt"

// Quarantine is one damaged file and what became of it.
type Quarantine struct {
	// ClaimUID is the claim that the file's name stands for. It has no record now.
	ClaimUID types.UID
	// File is where the damage was found.
	File string
	// MovedTo is where the file is now; empty when it could not be moved. It then stays in its place,
	// is not believed, and the claim's next Put replaces it.
	MovedTo string
	Reason  Reason
	// Err tells a person what was seen, and why the file could not be moved.
	Err  error
	Time time.Time
}

// Quarantined returns what this process has moved aside, in the order in which it was found.
func (s *Store) Quarantined() []Quarantine {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return slices.Clone(s.quarantined)
}

// moveAside quarantines a claim's file. Another process may replace the file at any time: under the
// lock that it would take for that, the damage is looked at again. The caller holds mu.
func (s *Store) moveAside(uid types.UID) error {
	return s.dirLock.withLock(func() error {
		record, file, err := readRecord(s.path(uid), uid)
		var damage *damageError
		switch {
		case err == nil:
			s.index.set(entry{record, file})
			return nil
		case errors.Is(err, fs.ErrNotExist):
			return nil
		case !errors.As(err, &damage):
			return err
		}
		found := Quarantine{ClaimUID: uid, File: s.path(uid), Reason: damage.reason, Err: damage.err, Time: s.clock.Now()}
		if found.MovedTo, err = s.moveToCorrupt(uid, found.Time); err != nil {
			found.Err = errors.Join(found.Err, fmt.Errorf("move it aside: %w", err))
		}
		if s.alreadyReported(found) {
			return nil
		}
		s.quarantined = append(s.quarantined, found)
		s.logger.Error(found.Err, "Checkpoint record is damaged; the claim counts as not prepared",
			"claimUID", uid, "file", found.File, "movedTo", found.MovedTo, "reason", found.Reason)
		s.onQuarantine(found)
		return nil
	})
}

func (s *Store) moveToCorrupt(uid types.UID, now time.Time) (string, error) {
	dir := filepath.Join(s.dir, corruptDir)
	if err := os.Mkdir(dir, dirPerm); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	stamp := now.UTC().Format("20060102T150405.000000000Z")
	for n := 0; ; n++ {
		target := filepath.Join(dir, fmt.Sprintf("%s%s.%s.%d", uid, fileSuffix, stamp, n))
		if _, err := os.Lstat(target); err == nil {
			continue // Nothing in corrupt/ is overwritten. The lock keeps others from taking the name.
		}
		if err := os.Rename(s.path(uid), target); err != nil {
			return "", err
		}
		s.aside[filepath.Base(target)] = true
		return target, nil
	}
}

// alreadyReported keeps a file that cannot be moved from being reported at every look.
func (s *Store) alreadyReported(found Quarantine) bool {
	return found.MovedTo == "" && slices.ContainsFunc(s.quarantined, func(q Quarantine) bool {
		return q.MovedTo == "" && q.ClaimUID == found.ClaimUID && q.Reason == found.Reason
	})
}

// movedByOthers tells the handler of files that another process has moved aside since the last look. A record that is not there
// may be one of them: it is damaged, not deleted. The caller does not hold mu.
func (s *Store) movedByOthers() {
	names := s.namesAside()
	if len(names) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteAside(names, s.onQuarantine)
}

// namesAside lists corrupt/, which most directories do not have. One that cannot be listed tells nothing.
func (s *Store) namesAside() []string {
	dir, err := os.Open(filepath.Join(s.dir, corruptDir))
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	return names
}

// noteAside tells of the names that are new. The caller holds mu.
func (s *Store) noteAside(names []string, tell func(Quarantine)) {
	for _, name := range names {
		uid, _, ok := strings.Cut(name, fileSuffix+".")
		if s.aside[name] || !ok {
			continue
		}
		s.aside[name] = true
		tell(Quarantine{
			ClaimUID: types.UID(uid),
			File:     s.path(types.UID(uid)),
			MovedTo:  filepath.Join(s.dir, corruptDir, name),
			Reason:   MovedByOther,
			Err:      errMovedByOther,
			Time:     s.clock.Now(),
		})
	}
}

var errMovedByOther = errors.New("another process found it damaged")
