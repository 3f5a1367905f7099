// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// faultyFiles fails at one step with one error, as a full or broken disk does.
type faultyFiles struct {
	osFiles
	step string
	err  error
}

func (f faultyFiles) create(target string) (pendingFile, error) {
	if f.step == "create" {
		return nil, f.err
	}
	pending, err := f.osFiles.create(target)
	return faultyPending{pending, f}, err
}

func (f faultyFiles) syncDir(dir string) error {
	if f.step == "sync directory" {
		return f.err
	}
	return f.osFiles.syncDir(dir)
}

func (f faultyFiles) remove(path string) error {
	if f.step == "remove" {
		return f.err
	}
	return f.osFiles.remove(path)
}

type faultyPending struct {
	pendingFile
	files faultyFiles
}

func (p faultyPending) Write(data []byte) (int, error) {
	if p.files.step == "write" {
		n, _ := p.pendingFile.Write(data[:len(data)/2])
		return n, p.files.err
	}
	return p.pendingFile.Write(data)
}

func (p faultyPending) Sync() error {
	if p.files.step == "sync" {
		return p.files.err
	}
	return p.pendingFile.Sync()
}

func (p faultyPending) Replace() error {
	if p.files.step == "rename" {
		return p.files.err
	}
	return p.pendingFile.Replace()
}

// A file system that copies on write needs room for every write, also over what is there already.
func TestAClaimIsForgottenOnADiskThatTakesNoWrite(t *testing.T) {
	dir := t.TempDir()
	s, other := open(t, dir), open(t, dir)
	put(t, s, record("a", "gpu-0"))
	lock, err := os.Open(filepath.Join(dir, lockName)) // its writes fail, and locks do not
	if err != nil {
		t.Fatal(err)
	}
	if err := s.dirLock.close(); err != nil {
		t.Fatal(err)
	}
	s.dirLock.file = lock
	if _, ok := other.Get("a"); !ok {
		t.Fatal("the other process does not know of it")
	}
	if err := s.Delete("a"); err != nil {
		t.Fatal(err)
	}
	if _, ok := s.Get("a"); ok {
		t.Error("it is still there")
	}
	put(t, other, record("b", "gpu-0")) // what it does not know is found by looking
}

func TestPutThatFailsChangesNothing(t *testing.T) {
	for _, fault := range []faultyFiles{
		{step: "create", err: unix.ENOSPC},
		{step: "create", err: unix.EROFS},
		{step: "create", err: unix.EDQUOT},
		{step: "write", err: unix.ENOSPC},
		{step: "write", err: unix.EIO},
		{step: "sync", err: unix.EIO},
		{step: "sync", err: unix.ENOSPC},
		{step: "rename", err: unix.EIO},
		{step: "rename", err: unix.ENOSPC},
		{step: "sync directory", err: unix.EIO},
	} {
		t.Run(fault.step+" "+fault.err.Error(), func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			before := record("a", "gpu-0")
			put(t, s, before)
			s.files = fault

			replaced := record("a", "gpu-1")
			for _, r := range []Record{replaced, record("b", "gpu-2")} {
				err := s.Put(r)
				if !errors.Is(err, fault.err) || !strings.Contains(err.Error(), "ml/claim-"+string(r.ClaimUID)) {
					t.Errorf("error %v is not %v or does not name the claim", err, fault.err)
				}
			}
			wantRecord(t, s, before)
			wantNone(t, s, "b")
			if got := files(t, dir); !slices.Equal(got, []string{"a.json"}) {
				t.Errorf("directory holds %v", got)
			}
			wantRecord(t, open(t, dir), before)

			s.files = osFiles{}
			put(t, s, replaced, record("b", "gpu-2"), record("c", "gpu-0")) // Nothing is held by what failed.
		})
	}
}

func TestDeleteThatFailsCanBeRepeated(t *testing.T) {
	s := open(t, t.TempDir())
	put(t, s, record("a", "gpu-0"))
	fault := faultyFiles{step: "remove", err: unix.EIO}
	s.files = fault
	if err := s.Delete("a"); !errors.Is(err, fault.err) || !strings.Contains(err.Error(), "claim UID a") {
		t.Errorf("error %v is not %v or does not name the claim", err, fault.err)
	}
	s.files = osFiles{}
	if err := s.Delete("a"); err != nil {
		t.Error(err)
	}
	wantNone(t, s, "a")
}

// Delete does not wait for the disk, so a power loss can bring a record back: in another boot, where
// it must not keep its device from others.
func TestRecordThatComesBackAfterAPowerLossHoldsNothing(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, record("a", "gpu-0"))
	name := filepath.Join(dir, "a.json")
	content, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Delete("a"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, content, filePerm); err != nil {
		t.Fatal(err)
	}

	rebooted := open(t, dir)
	wantRecord(t, rebooted, record("a", "gpu-0")) // to be found, and deleted, by the caller
	b, c := record("b", "gpu-0"), record("c", "gpu-0")
	b.BootID, c.BootID = "boot-2", "boot-2"
	put(t, rebooted, b)
	var inUse *DeviceInUseError
	if err := rebooted.Put(c); !errors.As(err, &inUse) || inUse.By != "b" {
		t.Errorf("a second claim of the new boot: %v, want it refused for claim b", err)
	}
	again := record("a", "gpu-0")
	again.BootID = "boot-2"
	if err := rebooted.Put(again); !errors.As(err, &inUse) {
		t.Errorf("the first claim, prepared anew: %v, want it refused", err)
	}
	if err := rebooted.Delete("a"); err != nil {
		t.Fatal(err)
	}
	wantRecord(t, rebooted, b)
}

// The same with a file system that is really full.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root; TestPutThatFailsChangesNothing covers the steps")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatalf("mount a small tmpfs: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	s := open(t, dir)
	before := record("a", "gpu-0")
	put(t, s, before)
	filler := filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, 1<<20), 0o600); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v, want ENOSPC", err)
	}
	if err := s.Put(record("b", "gpu-1")); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("put on a full disk: %v, want ENOSPC", err)
	}
	wantRecord(t, s, before)
	wantNone(t, s, "b")
	if got := files(t, dir); !slices.Equal(got, []string{"a.json", "filler"}) {
		t.Errorf("directory holds %v", got)
	}
	if err := s.Delete("a"); err != nil { // Room is made by unpreparing.
		t.Errorf("delete on a full disk: %v", err)
	}
	if err := os.Remove(filler); err != nil {
		t.Fatal(err)
	}
	put(t, s, record("b", "gpu-0"))
}
