// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

const (
	fileSuffix = ".json"
	filePerm   = 0o600
	dirPerm    = 0o700
)

// DeviceInUseError says that Put was refused because another claim holds a device.
type DeviceInUseError struct {
	// Device is the device as the refused record has it.
	Device Device
	// By is the claim that holds it.
	By                  types.UID
	ByNamespace, ByName string
}

func (e *DeviceInUseError) Error() string {
	return fmt.Sprintf("device %s/%s is already prepared for claim %s/%s (UID %s)", e.Device.Pool, e.Device.Name, e.ByNamespace, e.ByName, e.By)
}

// Store is a directory of records. It is safe for concurrent use.
type Store struct {
	dir          string
	logger       klog.Logger
	clock        clock.PassiveClock
	onQuarantine func(Quarantine)
	files        fileOps
	dirLock      *dirLock

	// mu guards what follows. It is held over renames, never over an fsync.
	mu          sync.RWMutex
	index       index
	quarantined []Quarantine
	// aside are the names in corrupt/ that are known.
	aside map[string]bool
}

// Option changes a Store.
type Option func(*Store)

// WithClock sets the clock that dates quarantined files. Default: the real one.
func WithClock(clock clock.PassiveClock) Option { return func(s *Store) { s.clock = clock } }

// WithQuarantineHandler sets a function that is called once for every file that is moved aside, also
// by Open, and by another process (MovedByOther). It must not call the Store.
func WithQuarantineHandler(handle func(Quarantine)) Option {
	return func(s *Store) { s.onQuarantine = handle }
}

// Open reads the records in dir, which is created when missing. Temporary files of killed writers are
// removed and damaged files moved aside. It fails only when the directory itself cannot be used or
// the process has run out of resources. The context carries the logger.
func Open(ctx context.Context, dir string, opts ...Option) (*Store, error) {
	s := &Store{
		dir:          dir,
		logger:       klog.LoggerWithName(klog.FromContext(ctx), "checkpoint"),
		clock:        clock.RealClock{},
		onQuarantine: func(Quarantine) {},
		files:        osFiles{},
		index:        newIndex(),
		aside:        map[string]bool{},
	}
	for _, opt := range opts {
		opt(s)
	}
	if err := os.MkdirAll(dir, dirPerm); err != nil {
		return nil, fmt.Errorf("create checkpoint directory: %w", err)
	}
	stale, err := atomicfile.RemoveStale(dir, func(base string) bool { return strings.HasSuffix(base, fileSuffix) })
	if err != nil {
		return nil, fmt.Errorf("remove temporary files from checkpoint directory: %w", err)
	}
	if len(stale) > 0 {
		s.logger.Info("Removed temporary files of a killed process", "directory", dir, "files", stale)
	}
	if s.dirLock, err = openDirLock(dir); err != nil {
		return nil, fmt.Errorf("open lock of checkpoint directory: %w", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.noteAside(s.namesAside(), func(Quarantine) {}) // of before
	if err := s.syncAll(); err != nil {
		return nil, errors.Join(fmt.Errorf("read checkpoint directory: %w", err), s.dirLock.close())
	}
	s.reportConflicts()
	return s, nil
}

// Close gives up the directory. The records stay.
func (s *Store) Close() error { return s.dirLock.close() }

// Get returns the record of a claim as it is on disk now. A record that is found damaged is moved
// aside, and the claim has none. That another process has moved it aside is told before Get returns, as it is by List.
func (s *Store) Get(uid types.UID) (Record, bool) {
	if !validUID(string(uid)) {
		return Record{}, false
	}
	s.mu.RLock()
	known, ok := s.index.entries[uid]
	s.mu.RUnlock()
	now, err := statFile(s.path(uid))
	switch {
	case errors.Is(err, fs.ErrNotExist) && !ok:
		s.movedByOthers()
		return Record{}, false
	case err == nil && ok && now == known.file:
		return known.record.clone(), true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.load(uid); err != nil {
		s.logger.Error(err, "Could not read checkpoint record; using the last one that was read", "claimUID", uid)
	}
	if known, ok = s.index.entries[uid]; !ok {
		s.noteAside(s.namesAside(), s.onQuarantine)
	}
	return known.record.clone(), ok
}

// List returns all records as they are on disk now, by claim UID.
func (s *Store) List() []Record {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.syncAll(); err != nil {
		s.logger.Error(err, "Could not read all checkpoint records; using the last ones that were read", "directory", s.dir)
	}
	records := make([]Record, 0, len(s.index.entries))
	for _, uid := range s.index.uids() {
		records = append(records, s.index.entries[uid].record.clone())
	}
	return records
}

// Put stores the record of a claim durably. It replaces an earlier record of the claim and keeps what
// a newer release wrote into it (Record.Unknown). It fails with *DeviceInUseError, and stores
// nothing, when another claim holds one of the devices.
func (s *Store) Put(record Record) error {
	if err := s.put(record); err != nil {
		return fmt.Errorf("store checkpoint record of claim %s/%s (UID %s): %w", record.Namespace, record.Name, record.ClaimUID, err)
	}
	return nil
}

func (s *Store) put(record Record) error {
	if err := record.validate(); err != nil {
		return err
	}
	earlier, _ := s.Get(record.ClaimUID)
	record = record.inherit(earlier)
	data, err := encode(record)
	if err != nil {
		return err
	}
	pending, err := s.writeAside(record.ClaimUID, data)
	if err != nil {
		return err
	}
	defer pending.Discard() //nolint:errcheck // After Replace it does nothing; before, its error is not the first.
	if err := pending.Sync(); err != nil {
		return err
	}
	before, err := s.publish(record, pending)
	if err != nil {
		return err
	}
	if err := s.files.syncDir(s.dir); err != nil {
		return errors.Join(err, s.restore(record.ClaimUID, before))
	}
	return nil
}

// publish puts the file in place if no other claim holds a device. It returns the record that the
// claim had before, if any.
func (s *Store) publish(record Record, pending pendingFile) (before *Record, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err = s.dirLock.withLock(func() error {
		if s.dirLock.othersChanged() {
			if err := s.syncAll(); err != nil {
				return err
			}
		}
		if s.index.conflict(record) != nil {
			// Only what is on disk counts.
			if err := s.syncAll(); err != nil {
				return err
			}
		}
		if err := s.index.conflict(record); err != nil {
			return err
		}
		if err := s.dirLock.announceChange(); err != nil {
			return err
		}
		if err := pending.Replace(); err != nil {
			return err
		}
		// Should the lstat fail, the next look reads the file again.
		file, _ := statFile(s.path(record.ClaimUID))
		if old, ok := s.index.entries[record.ClaimUID]; ok {
			before = &old.record
		}
		s.index.set(entry{record, file})
		return nil
	})
	return before, err
}

// restore undoes a Put whose durability is in doubt.
func (s *Store) restore(uid types.UID, before *Record) error {
	if before == nil {
		return s.remove(uid)
	}
	data, err := encode(*before)
	if err != nil {
		return err
	}
	pending, err := s.writeAside(uid, data)
	if err != nil {
		return err
	}
	defer pending.Discard() //nolint:errcheck // As in put.
	_, err = s.publish(*before, pending)
	return err
}

// writeAside writes what is to replace the record of a claim.
func (s *Store) writeAside(uid types.UID, data []byte) (pendingFile, error) {
	pending, err := s.files.create(s.path(uid))
	if err != nil {
		return nil, err
	}
	if _, err := pending.Write(data); err != nil {
		return nil, errors.Join(err, pending.Discard())
	}
	return pending, nil
}

// Delete forgets a claim; that outlives the death of the process. It does not wait for the disk: a
// record that a power loss brings back is one of an earlier boot, and excludes nobody. A claim without
// a record is no error.
func (s *Store) Delete(uid types.UID) error {
	if !validUID(string(uid)) {
		return nil // No such record can exist.
	}
	if err := s.remove(uid); err != nil {
		return fmt.Errorf("delete checkpoint record of claim UID %s: %w", uid, err)
	}
	return nil
}

func (s *Store) remove(uid types.UID) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	// It is not counted: that takes a write, which a full disk may refuse, and a claim must be able to end. Who misses it
	// finds a device held that is free, and looks again.
	return s.dirLock.withLock(func() error {
		if err := s.files.remove(s.path(uid)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		s.index.drop(uid)
		return nil
	})
}

// reportConflicts logs devices that two records hold: they were put there by hand, or an earlier
// release was wrong. Both records stay, so that both claims can be unprepared.
func (s *Store) reportConflicts() {
	for _, uid := range s.index.uids() {
		if err := s.index.conflict(s.index.entries[uid].record); err != nil {
			s.logger.Error(err, "Two checkpoint records hold one device", "claimUID", uid)
		}
	}
}

func (s *Store) path(uid types.UID) string { return filepath.Join(s.dir, string(uid)+fileSuffix) }
