// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package procid

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestParseStat(t *testing.T) {
	const rest = " 1 7 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 "
	tests := []struct {
		name, contents string
		want           Stat
		wantErr        bool
	}{
		{"a plain command", "42 (sleep) S" + rest + "987654 1000 10", Stat{State: 'S', StartTicks: 987654}, false},
		{"a command with blanks and parentheses", "42 (a) b (c) Z" + rest + "5 0", Stat{State: 'Z', StartTicks: 5}, false},
		{"a status without a command", "42 sleep S", Stat{}, true},
		{"a status that was cut off", "42 (sleep) S 1 2 3", Stat{}, true},
		{"a start time that is no number", "42 (sleep) S" + rest + "soon 0", Stat{}, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := ParseStat(tt.contents)
			if got != tt.want || (err != nil) != tt.wantErr {
				t.Errorf("got %+v, %v; want %+v, error %t", got, err, tt.want, tt.wantErr)
			}
		})
	}
}

func startSleep(t *testing.T) (*exec.Cmd, ID) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	id, err := Of(cmd.Process.Pid)
	if err != nil {
		t.Fatal(err)
	}
	return cmd, id
}

func TestKillEndsTheProcess(t *testing.T) {
	_, id := startSleep(t)
	if !id.Alive() {
		t.Fatal("a running process is not alive")
	}
	if err := id.Kill(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	// Nobody has reaped it: a zombie counts as ended.
	if id.Alive() {
		t.Error("alive after Kill")
	}
	if err := id.Kill(10 * time.Second); err != nil {
		t.Errorf("second Kill: %v", err)
	}
}

func TestARecycledPIDIsNotKilled(t *testing.T) {
	for name, change := range map[string]func(*ID){
		"another start time": func(id *ID) { id.StartTicks-- },
		"another boot":       func(id *ID) { id.BootID = "00000000-0000-4000-8000-000000000000" },
	} {
		t.Run(name, func(t *testing.T) {
			_, real := startSleep(t)
			old := real
			change(&old)
			if old.Alive() {
				t.Error("the old process counts as alive")
			}
			if err := old.Kill(10 * time.Second); err != nil {
				t.Error(err)
			}
			if !real.Alive() {
				t.Error("the new process with the PID was killed")
			}
		})
	}
}

func TestSaveAndLoad(t *testing.T) {
	id, err := Of(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "init.json")
	if err := id.Save(path); err != nil {
		t.Fatal(err)
	}
	if got := Load(path); got != id {
		t.Errorf("got %+v, want %+v", got, id)
	}
}

func TestLoadOfADamagedFileIsNoProcess(t *testing.T) {
	path := filepath.Join(t.TempDir(), "init.json")
	for name, contents := range map[string]string{"empty": "", "cut off": `{"pid": 1, "sta`} {
		if err := os.WriteFile(path, []byte(contents), 0o600); err != nil {
			t.Fatal(err)
		}
		if id := Load(path); id != (ID{}) || id.Alive() {
			t.Errorf("%s file: got %+v", name, id)
		}
	}
	if id := Load(path + ".missing"); id.Alive() {
		t.Error("missing file: alive")
	}
}
