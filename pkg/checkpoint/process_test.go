// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"
)

// The test binary is also the other process: these variables say what it is to do.
const (
	roleVariable = "CHECKPOINT_TEST_ROLE"
	dirVariable  = "CHECKPOINT_TEST_DIR"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(roleVariable) {
	case "writer":
		err = writeForEver(os.Getenv(dirVariable))
	case "contender":
		err = contend(os.Getenv(dirVariable))
	default:
		m.Run() // Its result is the exit status.
		return
	}
	if err != nil {
		panic(err)
	}
}

func child(t *testing.T, role, dir string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), roleVariable+"="+role, dirVariable+"="+dir)
	cmd.Stderr = os.Stderr
	return cmd
}

// writeForEver puts and deletes records and says on stdout what it is about to do and what is done.
func writeForEver(dir string) error {
	s, err := Open(context.Background(), dir)
	if err != nil {
		return err
	}
	for n := range 5 {
		fmt.Printf("put claim-%d none\n", n)
	}
	for n := 0; ; n++ {
		r := record(fmt.Sprintf("claim-%d", n%5), fmt.Sprintf("gpu-%d", n%5))
		r.Name = fmt.Sprint(n)
		fmt.Printf("putting %s %d\n", r.ClaimUID, n)
		if err := s.Put(r); err != nil {
			return err
		}
		fmt.Printf("put %s %d\n", r.ClaimUID, n)
		if n%3 == 0 {
			fmt.Printf("deleting %s none\n", r.ClaimUID)
			if err := s.Delete(r.ClaimUID); err != nil {
				return err
			}
			fmt.Printf("deleted %s none\n", r.ClaimUID)
		}
	}
}

// contend prepares the same four devices, each for a claim of its own, until it is told to stop; each
// success is checked for a second owner.
func contend(dir string) error {
	s, err := Open(context.Background(), dir)
	if err != nil {
		return err
	}
	won := 0
	for n := 0; won < 15; n++ {
		device := fmt.Sprintf("gpu-%d", n%2)
		uid := types.UID(fmt.Sprintf("claim-%d-%d", os.Getpid(), n%2))
		err := s.Put(record(string(uid), device))
		if _, ok := errors.AsType[*DeviceInUseError](err); ok {
			continue
		}
		if err != nil {
			return err
		}
		won++
		for _, other := range s.List() {
			if other.ClaimUID != uid && other.Devices[0].Name == device {
				return fmt.Errorf("device %s is prepared for claims %s and %s", device, uid, other.ClaimUID)
			}
		}
		if err := s.Delete(uid); err != nil {
			return err
		}
	}
	return nil
}

// Killed at any point of a write: what was acknowledged is there, what was not is whole or absent.
func TestKilledWriterLeavesWholeRecords(t *testing.T) {
	for round := range 12 {
		dir := t.TempDir()
		cmd := child(t, "writer", dir)
		stdout, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		// What each claim's record may be: the number that it was put with, or "none".
		allowed := map[types.UID][]string{}
		lines := bufio.NewScanner(stdout)
		for n := 0; lines.Scan(); n++ {
			var word, number string
			var uid types.UID
			if _, err := fmt.Sscan(lines.Text(), &word, &uid, &number); err != nil {
				t.Fatalf("line %q: %v", lines.Text(), err)
			}
			switch word {
			case "putting", "deleting": // May have happened or not.
				allowed[uid] = append(allowed[uid], number)
			case "put", "deleted":
				allowed[uid] = []string{number}
			}
			if n == 12+round {
				if err := cmd.Process.Kill(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the writer ended with %v, want killed", err)
		}

		s := open(t, dir)
		if got := s.Quarantined(); len(got) != 0 {
			t.Errorf("round %d: quarantined %v", round, got)
		}
		for uid, numbers := range allowed {
			got, ok := s.Get(uid)
			name := "none"
			if ok {
				name = got.Name
			}
			if !slices.Contains(numbers, name) {
				t.Errorf("round %d: claim %s has record %q, want one of %q", round, uid, name, numbers)
			}
		}
		for _, name := range files(t, dir) {
			if strings.HasPrefix(name, ".") {
				t.Errorf("round %d: temporary file %s is left", round, name)
			}
		}
	}
}

func TestTwoProcessesNeverPrepareOneDeviceTwice(t *testing.T) {
	dir := t.TempDir()
	var group sync.WaitGroup
	for range 3 {
		group.Go(func() {
			if err := child(t, "contender", dir).Run(); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if got := open(t, dir).List(); len(got) != 0 {
		t.Errorf("records are left: %v", got)
	}
}

// A checkpoint was read while it was being written. A reader sees the old record or the new one.
func TestFieldCase06_ReadWhileWritten(t *testing.T) {
	dir := t.TempDir()
	writer, reader := open(t, dir), open(t, dir)
	states := []Record{record("a", "gpu-0"), record("a", "gpu-0", "gpu-1", "gpu-2", "gpu-3")}
	put(t, writer, states[0])
	done := make(chan struct{})
	go func() {
		defer close(done)
		for n := range 100 {
			if err := writer.Put(states[n%2]); err != nil {
				t.Error(err)
			}
		}
	}()
	for reads := 0; ; reads++ {
		got, ok := reader.Get("a")
		if !ok || (!cmp.Equal(got, states[0]) && !cmp.Equal(got, states[1])) {
			t.Fatalf("read %d saw %+v (%t)", reads, got, ok)
		}
		if data, err := os.ReadFile(filepath.Join(dir, "a.json")); err != nil {
			t.Fatal(err)
		} else if _, err := decode(data); err != nil {
			t.Fatalf("read %d: %v", reads, err)
		}
		select {
		case <-done:
			if got := reader.Quarantined(); len(got) != 0 {
				t.Errorf("quarantined %v", got)
			}
			return
		default:
		}
	}
}
