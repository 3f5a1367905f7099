// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2/ktesting"
)

func record(uid string, devices ...string) Record {
	r := Record{ClaimUID: types.UID(uid), Namespace: "ml", Name: "claim-" + uid, BootID: "boot-1", State: Prepared}
	for _, name := range devices {
		r.Devices = append(r.Devices, Device{Request: "gpus", Pool: "node-a", Name: name, UUID: strings.ToUpper(name)})
	}
	return r
}

func open(t *testing.T, dir string, opts ...Option) *Store {
	t.Helper()
	_, ctx := ktesting.NewTestContext(t)
	s, err := Open(ctx, dir, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func put(t *testing.T, s *Store, records ...Record) {
	t.Helper()
	for _, r := range records {
		if err := s.Put(r); err != nil {
			t.Fatal(err)
		}
	}
}

func wantRecord(t *testing.T, s *Store, want Record) {
	t.Helper()
	got, ok := s.Get(want.ClaimUID)
	if !ok {
		t.Fatalf("claim %s has no record", want.ClaimUID)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
}

func wantNone(t *testing.T, s *Store, uid types.UID) {
	t.Helper()
	if got, ok := s.Get(uid); ok {
		t.Errorf("claim %s has record %+v, want none", uid, got)
	}
}

// files are the names in the directory but for the lock, which is always there.
func files(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	names := []string{}
	for _, entry := range entries {
		if entry.Name() != lockName {
			names = append(names, entry.Name())
		}
	}
	return names
}

func TestRecordsSurviveARestart(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new", "checkpoint")
	a, b := record("a", "gpu-0", "gpu-1"), record("b", "gpu-2")
	put(t, open(t, dir), a, b)

	s := open(t, dir)
	wantRecord(t, s, a)
	wantRecord(t, s, b)
	if diff := cmp.Diff([]Record{a, b}, s.List()); diff != "" {
		t.Errorf("list (-want +got):\n%s", diff)
	}
	if err := s.Delete("a"); err != nil {
		t.Fatal(err)
	}
	wantNone(t, s, "a")
	wantNone(t, open(t, dir), "a")
	if got := files(t, dir); !slices.Equal(got, []string{"b.json"}) {
		t.Errorf("directory holds %v", got)
	}
}

func TestPutReplacesTheClaimsOwnRecord(t *testing.T) {
	s := open(t, t.TempDir())
	preparing := record("a", "gpu-0")
	preparing.State = Preparing
	put(t, s, preparing)
	wantRecord(t, s, preparing)
	other := record("a", "gpu-1")
	put(t, s, other)
	wantRecord(t, s, other)
	put(t, s, record("b", "gpu-0")) // The device that the claim gave up is free.
}

func TestDeleteIsIdempotent(t *testing.T) {
	s := open(t, t.TempDir())
	for _, uid := range []types.UID{"never-there", "", "../outside"} {
		if err := s.Delete(uid); err != nil {
			t.Errorf("delete %q: %v", uid, err)
		}
	}
}

func TestWhatIsReturnedIsACopy(t *testing.T) {
	s := open(t, t.TempDir())
	want := record("a", "gpu-0")
	put(t, s, want)
	got, _ := s.Get("a")
	got.Devices[0].Name = "changed"
	s.List()[0].Devices[0].Name = "changed"
	wantRecord(t, s, want)
}

func TestPutRefusesWhatGetWouldNotBelieve(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Record)
		want   string
	}{
		"no claim UID":                 {func(r *Record) { r.ClaimUID = "" }, "claimUID"},
		"a claim UID that is a path":   {func(r *Record) { r.ClaimUID = "../x" }, "claimUID"},
		"a claim UID that is hidden":   {func(r *Record) { r.ClaimUID = ".x" }, "claimUID"},
		"a claim UID that is too long": {func(r *Record) { r.ClaimUID = types.UID(strings.Repeat("a", 129)) }, "claimUID"},
		"no namespace":                 {func(r *Record) { r.Namespace = "" }, "namespace"},
		"no name":                      {func(r *Record) { r.Name = "" }, "name"},
		"no boot ID":                   {func(r *Record) { r.BootID = "" }, "bootID"},
		"no state":                     {func(r *Record) { r.State = "" }, "state"},
		"an unknown state":             {func(r *Record) { r.State = "Done" }, `state "Done": must be Preparing or Prepared`},
		"no devices":                   {func(r *Record) { r.Devices = nil }, "devices"},
		"a device without request":     {func(r *Record) { r.Devices[0].Request = "" }, "devices[0].request"},
		"a device without pool":        {func(r *Record) { r.Devices[0].Pool = "" }, "devices[0].pool"},
		"a device without name":        {func(r *Record) { r.Devices[0].Name = "" }, "devices[0].device"},
		"a device twice":               {func(r *Record) { r.Devices = append(r.Devices, r.Devices[0]) }, "devices[1].device node-a/gpu-0: is there twice"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			r := record("a", "gpu-0")
			test.change(&r)
			err := s.Put(r)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v does not name %s", err, test.want)
			}
			if got := files(t, dir); len(got) != 0 {
				t.Errorf("directory holds %v", got)
			}
		})
	}
}

// The same device in two claims: NV and K reported it as silent sharing.
func TestFieldCase09_DeviceOfAnotherClaimIsRefused(t *testing.T) {
	admin := func(d Device) Device { d.AdminAccess = true; return d }
	share := func(d Device, id types.UID) Device { d.ShareID = id; return d }
	gpu := record("", "gpu-0").Devices[0]
	otherPool := gpu
	otherPool.Pool = "node-b"
	for name, test := range map[string]struct {
		first, second Device
		refused       bool
	}{
		"whole and whole":                {gpu, gpu, true},
		"whole and its share":            {gpu, share(gpu, "s1"), true},
		"share and the whole":            {share(gpu, "s1"), gpu, true},
		"a share and the same share":     {share(gpu, "s1"), share(gpu, "s1"), true},
		"two different shares":           {share(gpu, "s1"), share(gpu, "s2"), false},
		"admin access beside a claim":    {gpu, admin(gpu), false},
		"a claim beside admin access":    {admin(gpu), gpu, false},
		"two with admin access":          {admin(gpu), admin(gpu), false},
		"the same name in two pools":     {gpu, otherPool, false},
		"admin access to a share in use": {share(gpu, "s1"), admin(share(gpu, "s1")), false},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			s := open(t, dir)
			a, b := record("a"), record("b", "gpu-7")
			a.Devices = []Device{test.first}
			b.Devices = append(b.Devices, test.second)
			put(t, s, a)
			err := s.Put(b)
			if !test.refused {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			var inUse *DeviceInUseError
			if !errors.As(err, &inUse) {
				t.Fatalf("error is %v, want *DeviceInUseError", err)
			}
			want := &DeviceInUseError{Device: test.second, By: "a", ByNamespace: "ml", ByName: "claim-a"}
			if diff := cmp.Diff(want, inUse); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
			if !strings.Contains(err.Error(), "device node-a/gpu-0 is already prepared for claim ml/claim-a (UID a)") {
				t.Errorf("error %q names neither device nor claim", err)
			}
			wantNone(t, s, "b")
			put(t, s, record("c", "gpu-7")) // The refused claim holds nothing.
			if got := files(t, dir); !slices.Equal(got, []string{"a.json", "c.json"}) {
				t.Errorf("directory holds %v", got)
			}
		})
	}
}

func TestOneOfManyConcurrentClaimsGetsTheDevice(t *testing.T) {
	dir := t.TempDir()
	// Several stores on one directory are what several processes are: each has its own lock file.
	stores := []*Store{open(t, dir), open(t, dir), open(t, dir)}
	var won []string
	var mu sync.Mutex
	var group sync.WaitGroup
	for i := range 24 {
		group.Go(func() {
			uid := fmt.Sprintf("claim-%d", i)
			err := stores[i%len(stores)].Put(record(uid, "gpu-0", fmt.Sprintf("gpu-own-%d", i)))
			var inUse *DeviceInUseError
			switch {
			case err == nil:
				mu.Lock()
				won = append(won, uid)
				mu.Unlock()
			case !errors.As(err, &inUse):
				t.Errorf("claim %s: %v", uid, err)
			}
		})
	}
	group.Wait()
	if len(won) != 1 {
		t.Fatalf("%v got the device, want one", won)
	}
	for i, s := range stores {
		if list := s.List(); len(list) != 1 || string(list[0].ClaimUID) != won[0] {
			t.Errorf("store %d lists %v", i, list)
		}
	}
	if got := files(t, dir); !slices.Equal(got, []string{won[0] + ".json"}) {
		t.Errorf("directory holds %v", got)
	}
}

func TestConcurrentClaimsOfDifferentDevices(t *testing.T) {
	s := open(t, t.TempDir())
	var group sync.WaitGroup
	for i := range 16 {
		group.Go(func() {
			r := record(fmt.Sprintf("claim-%02d", i), fmt.Sprintf("gpu-%d", i))
			for range 3 {
				if err := errors.Join(s.Put(r), s.Put(r), s.Delete(r.ClaimUID), s.Put(r)); err != nil {
					t.Error(err)
				}
				if got, ok := s.Get(r.ClaimUID); !ok || !cmp.Equal(r, got) {
					t.Errorf("got %+v, %t", got, ok)
				}
			}
		})
	}
	group.Wait()
	if got := len(s.List()); got != 16 {
		t.Errorf("%d records, want 16", got)
	}
}

func TestTwoStoresOnOneDirectorySeeEachOther(t *testing.T) {
	dir := t.TempDir()
	old, young := open(t, dir), open(t, dir)
	a := record("a", "gpu-0")

	put(t, young, a)
	wantRecord(t, old, a) // A record that the other made.
	if err := old.Put(record("b", "gpu-0")); err == nil {
		t.Error("the device of the other's claim was given away")
	}
	changed := record("a", "gpu-1")
	put(t, old, changed)
	wantRecord(t, young, changed) // A record that the other changed.
	put(t, young, record("c", "gpu-0"))
	if err := old.Put(record("d", "gpu-0")); err == nil {
		t.Error("the device of the other's changed claim was given away")
	}
	if err := young.Delete("a"); err != nil {
		t.Fatal(err)
	}
	wantNone(t, old, "a") // A record that the other removed.
	put(t, old, record("e", "gpu-1"))
	if got := young.List(); len(got) != 2 {
		t.Errorf("list is %v, want c and e", got)
	}
}

func TestRecordsRemovedByHandAreGone(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir)
	put(t, s, record("a", "gpu-0"), record("b", "gpu-1"))
	if err := errors.Join(os.Remove(filepath.Join(dir, "a.json")), os.Remove(filepath.Join(dir, "b.json"))); err != nil {
		t.Fatal(err)
	}
	put(t, s, record("c", "gpu-0")) // Only what is on disk counts.
	wantNone(t, s, "a")
	if list := s.List(); len(list) != 1 || list[0].ClaimUID != "c" {
		t.Errorf("list is %v, want c", list)
	}
}

func TestFieldCase13_SharesOfOneDeviceStayApart(t *testing.T) {
	dir := t.TempDir()
	r := record("a", "gpu-0", "gpu-0")
	r.Devices[0].ShareID, r.Devices[1].ShareID = "share-1", "share-2"
	put(t, open(t, dir), r)
	wantRecord(t, open(t, dir), r)
}

// Killed in the middle of a prepare: what it was writing is removed at the next start.
func TestFieldCase13c_TemporaryFilesAreRemovedAtStart(t *testing.T) {
	dir := t.TempDir()
	put(t, open(t, dir), record("a", "gpu-0"))
	for _, name := range []string{".b.json.123.tmp", ".c.json.4.tmp"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("half a rec"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	s := open(t, dir)
	if got := files(t, dir); !slices.Equal(got, []string{"a.json"}) {
		t.Errorf("directory holds %v", got)
	}
	if got := s.Quarantined(); len(got) != 0 {
		t.Errorf("quarantined %v", got)
	}
}

func TestForeignFilesAreLeftAlone(t *testing.T) {
	dir := t.TempDir()
	foreign := []string{"README", "notes.txt", ".hidden.json", "a b.json", "claim.yaml", "backup"}
	for _, name := range foreign[:5] {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "backup"), 0o700); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if len(s.List()) != 0 || len(s.Quarantined()) != 0 {
		t.Errorf("list %v, quarantined %v", s.List(), s.Quarantined())
	}
	slices.Sort(foreign)
	if got := files(t, dir); !slices.Equal(got, foreign) {
		t.Errorf("directory holds %v, want %v", got, foreign)
	}
}

func TestOpenFailsOnlyOverTheDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "sub")} {
		if _, err := Open(context.Background(), dir); err == nil || !strings.Contains(err.Error(), file) {
			t.Errorf("open %s: error %v does not name it", dir, err)
		}
	}
}

// A process that may not open files now says nothing about damage: moving records aside would turn
// a busy moment into an outage.
func TestRunningOutOfFileDescriptorsIsNotDamage(t *testing.T) {
	for name, err := range map[string]error{"process": unix.EMFILE, "node": unix.ENFILE, "memory": unix.ENOMEM} {
		if _, ok := errors.AsType[*damageError](unreadable(err)); ok {
			t.Errorf("%s: %v counts as damage", name, err)
		}
	}
}

func TestTwoRecordsOfOneDeviceBothStay(t *testing.T) {
	dir, elsewhere := t.TempDir(), t.TempDir()
	put(t, open(t, dir), record("a", "gpu-0"))
	put(t, open(t, elsewhere), record("b", "gpu-0"))
	if err := os.Rename(filepath.Join(elsewhere, "b.json"), filepath.Join(dir, "b.json")); err != nil {
		t.Fatal(err)
	}
	s := open(t, dir)
	if got := len(s.List()); got != 2 {
		t.Fatalf("%d records, want both", got)
	}
	if err := errors.Join(s.Delete("a"), s.Delete("b")); err != nil {
		t.Error(err)
	}
}

func TestFilesAreForRootOnly(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "checkpoint")
	put(t, open(t, dir), record("a", "gpu-0"))
	for path, want := range map[string]os.FileMode{dir: 0o700 | os.ModeDir, filepath.Join(dir, "a.json"): 0o600} {
		if info, err := os.Stat(path); err != nil || info.Mode() != want {
			t.Errorf("%s: mode %v, %v; want %v", path, info.Mode(), err, want)
		}
	}
}

func TestUnknownFieldsAreCarriedAlongByPut(t *testing.T) {
	dir := t.TempDir()
	newer := record("a", "gpu-0", "gpu-1")
	newer.Unknown = map[string]json.RawMessage{"gangUID": json.RawMessage(`"g-1"`)}
	newer.Devices[1].Unknown = map[string]json.RawMessage{"sharing": json.RawMessage(`{"strategy":"MPS"}`)}
	put(t, open(t, dir), newer)

	s := open(t, dir)
	rewritten := record("a", "gpu-0", "gpu-1")
	rewritten.BootID = "boot-2"
	put(t, s, rewritten)
	want := newer.clone()
	want.BootID = "boot-2"
	wantRecord(t, s, want)
	wantRecord(t, open(t, dir), want)
}
