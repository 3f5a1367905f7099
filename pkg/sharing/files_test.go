// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sync/errgroup"
)

func TestSpecsAreReadStrictly(t *testing.T) {
	good := spec("a", Device{UUID: gpu0, PinnedMemoryMiB: 512})
	good.ActiveThreadPercentage = 50
	data, err := good.encode()
	if err != nil {
		t.Fatal(err)
	}
	if got, err := decodeSpec(data); err != nil || !cmp.Equal(got, good) {
		t.Fatalf("read back as %+v, %v", got, err)
	}
	for name, test := range map[string]struct{ old, new, want string }{
		"another format":                  {`"switchyard.dev/mps-daemon"`, `"other"`, `format is "other"`},
		"a later version":                 {`"version": 1`, `"version": 2`, "of one release"},
		"a field that it does not know":   {`"id"`, `"memoryTotal": 1, "id"`, `unknown field "memoryTotal"`},
		"a limit that is none":            {`"pinnedMemoryMiB": 512`, `"pinnedMemoryMiB": -1`, "must not be negative"},
		"a percentage beyond all":         {`"activeThreadPercentage": 50`, `"activeThreadPercentage": 101`, "must be 1 to 100"},
		"a UUID that smuggles in another": {gpu0, gpu0 + "," + gpu1, "must begin with GPU- or MIG-"},
		"no boot ID":                      {`"boot-1"`, `""`, "bootID: must not be empty"},
		"more after the object":           {"\n}\n", "\n}{}", "after top-level value"},
		"half a file":                     {"\n}\n", "", "unexpected end"},
	} {
		t.Run(name, func(t *testing.T) {
			changed := strings.Replace(string(data), test.old, test.new, 1)
			if changed == string(data) {
				t.Fatalf("%q is not in %s", test.old, data)
			}
			if got, err := decodeSpec([]byte(changed)); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("read as %+v, %v, want an error with %q", got, err, test.want)
			}
		})
	}
}

func TestADaemonServesOnePartitionOrWholeGPUsOnce(t *testing.T) {
	for name, devices := range map[string][]Device{
		"a partition beside a GPU": {{UUID: gpu0}, {UUID: "MIG-1"}},
		"two partitions":           {{UUID: "MIG-1"}, {UUID: "MIG-2"}},
		"a GPU twice":              {{UUID: gpu0}, {UUID: gpu0}},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := spec("a", devices...).encode(); err == nil {
				t.Error("no error")
			}
		})
	}
	if _, err := spec("a", Device{UUID: "MIG-1"}).encode(); err != nil {
		t.Errorf("one partition: %v", err)
	}
}

func TestALimitIsRecognisedAsDriversTellIt(t *testing.T) {
	for _, test := range []struct {
		answer string
		mib    int64
		same   bool
	}{
		{"512M", 512, true},
		{"1536M", 1536, true},
		{"1G", 1536, true},
		{"1G", 1024, true},
		{"2G", 1536, false},
		{"511M", 512, false},
		{"", 512, false},
		{"G", 512, false},
		{"512", 512, false},
		{"0G", 512, true},
	} {
		t.Run(fmt.Sprintf("%q for %d MiB", test.answer, test.mib), func(t *testing.T) {
			if got := sameMemory(test.answer, test.mib); got != test.same {
				t.Errorf("the same: %t", got)
			}
		})
	}
}

func TestLogsAreBounded(t *testing.T) {
	dir := t.TempDir()
	long, short := filepath.Join(dir, "server.log"), filepath.Join(dir, "control.log")
	for path, size := range map[string]int64{long: maxLog + 1, short: maxLog} {
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
	}
	if err := boundLogs(dir); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]int64{long: 0, short: maxLog} {
		if info, err := os.Stat(path); err != nil || info.Size() != want {
			t.Errorf("%s has %d bytes, %v, want %d", path, info.Size(), err, want)
		}
	}
}

func FuzzDecodeSpec(f *testing.F) {
	data, err := spec("a", Device{UUID: gpu0}).encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"format":"switchyard.dev/mps-daemon","version":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		read, err := decodeSpec(data)
		if err != nil {
			return
		}
		again, err := read.encode()
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		if got, err := decodeSpec(again); err != nil || !cmp.Equal(got, read) {
			t.Errorf("read back as %+v, %v", got, err)
		}
	})
}

func TestSeveralMayLinkTheDriversLibrariesAtOnce(t *testing.T) {
	root := t.TempDir()
	from := filepath.Join(root, "usr", "lib64")
	if err := os.MkdirAll(from, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"libcuda.so.1", "libnvidia-ml.so.1"} {
		if err := os.WriteFile(filepath.Join(from, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for range 100 {
		dir := filepath.Join(t.TempDir(), "lib")
		var group errgroup.Group
		for range 4 {
			group.Go(func() error {
				_, err := linkLibraries(root, dir)
				return err
			})
		}
		if err := group.Wait(); err != nil {
			t.Fatal(err)
		}
	}
}

// A container can answer in the daemon's place, since the daemon's socket lies in a directory that it may write to.
func TestAnAnswerWithoutEndIsNotRead(t *testing.T) {
	for _, to := range []string{"1", "2"} {
		answer, err := run(exec.CommandContext(t.Context(), "sh", "-c", "head -c 1000000 /dev/zero >&"+to))
		if err == nil || !strings.Contains(err.Error(), "it says more than 65536 bytes") {
			t.Errorf("stream %s: got an answer of %d bytes and %v", to, len(answer), err)
		}
	}
}
