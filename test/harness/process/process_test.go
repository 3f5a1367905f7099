// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package process

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func start(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Options{
		Path:    "/bin/sh",
		Args:    []string{"-c", script},
		Env:     []string{"GREETING=hello"},
		LogFile: filepath.Join(t.TempDir(), "log"),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return p
}

func TestErrTellsAnEndOfItsOwnFromAStop(t *testing.T) {
	for name, tc := range map[string]struct {
		script string
		end    func(*Process)
		want   string // part of Err; empty: no error
	}{
		"ends by itself with an error":    {script: "echo $GREETING; exit 3", end: func(p *Process) { <-p.Done() }, want: "exit status 3"},
		"ends by itself without an error": {script: "echo $GREETING", end: func(p *Process) { <-p.Done() }, want: "hello"},
		"killed":                          {script: "exec sleep 60", end: (*Process).Kill},
		"running":                         {script: "exec sleep 60", end: func(*Process) {}},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, tc.script)
			tc.end(p)
			err := p.Err()
			if tc.want == "" {
				if err != nil {
					t.Fatalf("Err() = %v, want none", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Fatalf("Err() = %v, want it to contain %q", err, tc.want)
			}
		})
	}
}

// ready waits until the script has said that its trap is set.
func ready(t *testing.T, p *Process) {
	t.Helper()
	deadline := time.After(10 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !strings.Contains(p.Tail(1), "ready") {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatal("the script never got ready")
		}
	}
}

func TestStop(t *testing.T) {
	for name, tc := range map[string]struct {
		script  string
		timeout time.Duration
		want    string
	}{
		"graceful end is no error":             {script: "trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", timeout: 10 * time.Second},
		"an exit status is an error":           {script: "trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done", timeout: 10 * time.Second, want: "exit status 4"},
		"one that ignores SIGTERM gets killed": {script: "trap '' TERM; echo ready; while :; do sleep 0.01; done", timeout: 50 * time.Millisecond, want: "did not end after SIGTERM"},
	} {
		t.Run(name, func(t *testing.T) {
			p := start(t, tc.script)
			ready(t, p)
			ctx, cancel := context.WithTimeout(context.Background(), tc.timeout)
			defer cancel()
			err := p.Stop(ctx)
			if p.ExitState() == nil {
				t.Error("the process is still there")
			}
			switch {
			case tc.want == "" && err != nil:
				t.Errorf("Stop() = %v, want no error", err)
			case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
				t.Errorf("Stop() = %v, want it to contain %q", err, tc.want)
			}
			if strings.Contains(tc.want, "did not end") && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Stop() = %v, want a deadline error", err)
			}
		})
	}
}

func TestMemoryOfALiveProcess(t *testing.T) {
	p := start(t, "echo ready; exec sleep 60")
	ready(t, p)
	m, err := p.Memory()
	if err != nil {
		t.Fatal(err)
	}
	if m.Resident == 0 || m.ResidentPeak < m.Resident {
		t.Errorf("Memory() = %+v, want a resident size and a peak not below it", m)
	}
}

func TestParseMemory(t *testing.T) {
	for name, tc := range map[string]struct {
		status string
		want   Memory
		err    string
	}{
		"kB are KiB":        {status: "Name:\tx\nVmHWM:\t    2048 kB\nVmRSS:\t    1024 kB\n", want: Memory{Resident: 1 << 20, ResidentPeak: 2 << 20}},
		"zombie has no Vm":  {status: "Name:\tx\nState:\tZ (zombie)\n", err: "missing"},
		"unit is not kB":    {status: "VmHWM:\t 1 MB\n", err: "VmHWM"},
		"value is no count": {status: "VmRSS:\t many kB\n", err: "VmRSS"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseMemory([]byte(tc.status))
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("error %v, want it to contain %q", err, tc.err)
				}
				return
			}
			if err != nil || got != tc.want {
				t.Fatalf("got %+v, %v, want %+v", got, err, tc.want)
			}
		})
	}
}
