// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"
)

func startSupervisor(t *testing.T, services ...Service) (*supervisor, string) {
	t.Helper()
	dir := t.TempDir()
	s := newSupervisor(&Spec{Name: "node-a", Logs: dir, Services: services}, slog.New(slog.DiscardHandler))
	socket := filepath.Join(dir, "init.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	go serve(listener, s, s.log)
	// A supervisor reaps every child of this process, so there must be only
	// one at a time.
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { s.run(ctx); close(ended) }()
	t.Cleanup(func() { cancel(); <-ended })
	return s, socket
}

// await watches until the first service's state satisfies the condition.
func await(t *testing.T, socket string, condition func(Status) bool) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	var last Status
	done := errors.New("done")
	err := Watch(ctx, socket, func(all []Status) error {
		last = all[0]
		if condition(last) {
			return done
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatalf("gave up: %v; last state %+v", err, last)
	}
	return last
}

func TestAServiceThatDiesIsStartedAgainAndCounted(t *testing.T) {
	_, socket := startSupervisor(t, Service{Name: "bad", Args: []string{"/bin/sh", "-c", "exit 3"}})
	got := await(t, socket, func(s Status) bool { return s.Exits >= 2 })
	if !strings.HasPrefix(got.LastExit, "exited with code 3") {
		t.Errorf("last exit is %q", got.LastExit)
	}
}

func TestAProgramThatCannotStartIsReported(t *testing.T) {
	_, socket := startSupervisor(t, Service{Name: "missing", Args: []string{"/no/such/program"}})
	got := await(t, socket, func(s Status) bool { return s.Exits >= 1 })
	if !strings.Contains(got.LastExit, "/no/such/program") {
		t.Errorf("last exit is %q", got.LastExit)
	}
}

func TestRestartIsNoUnexpectedExit(t *testing.T) {
	s, socket := startSupervisor(t, Service{Name: "sleeper", Args: []string{"/bin/sleep", "600"}})
	t.Cleanup(func() { _ = s.restart("sleeper") })
	first := await(t, socket, func(s Status) bool { return s.State == Running })
	if err := Restart(socket, "sleeper"); err != nil {
		t.Fatal(err)
	}
	second := await(t, socket, func(s Status) bool { return s.State == Running && s.PID != first.PID })
	if second.Exits != 0 || !strings.HasPrefix(second.LastExit, "killed by SIGKILL") {
		t.Errorf("state after restart is %+v", second)
	}
	if err := Restart(socket, "nothing"); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("restart of an unknown service: %v", err)
	}
}

func TestAServiceWaitsForWhatItNeeds(t *testing.T) {
	target := filepath.Join(t.TempDir(), "needed.sock")
	s, socket := startSupervisor(t, Service{Name: "late", Args: []string{"/bin/sleep", "600"}, WaitFor: []string{"unix:" + target}})
	t.Cleanup(func() { _ = s.restart("late") })
	got := await(t, socket, func(s Status) bool { return s.WaitingFor != "" })
	if got.State != Waiting || got.WaitingFor != "unix:"+target {
		t.Errorf("state is %+v", got)
	}
	listener, err := net.Listen("unix", target)
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	await(t, socket, func(s Status) bool { return s.State == Running })
}

func TestProbeWantsStatus200(t *testing.T) {
	status := http.StatusServiceUnavailable
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) }))
	defer server.Close()
	if probe(server.Client(), server.URL+"/readyz") {
		t.Error("503 counts as ready")
	}
	status = http.StatusOK
	if !probe(server.Client(), server.URL+"/readyz") {
		t.Error("200 does not count as ready")
	}
}

func TestLogsAreKeptOverRestarts(t *testing.T) {
	s, socket := startSupervisor(t, Service{Name: "talker", Args: []string{"/bin/sh", "-c", "echo hello"}})
	await(t, socket, func(s Status) bool { return s.Exits >= 2 })
	data, err := os.ReadFile(filepath.Join(s.spec.Logs, "talker.log"))
	if err != nil || strings.Count(string(data), "hello\n") < 2 {
		t.Errorf("log is %q, %v", data, err)
	}
}

func TestWatchTellsWhenInitIsGone(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "init.sock")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		if conn, err := listener.Accept(); err == nil {
			_, _ = conn.Read(make([]byte, 64)) // the request: closed before it, the connection fails otherwise
			conn.Close()
		}
		listener.Close()
	}()
	if err := Watch(t.Context(), socket, func([]Status) error { return nil }); err == nil || !strings.Contains(err.Error(), "ended") {
		t.Errorf("got %v", err)
	}
}

func TestSpecSurvivesItsFile(t *testing.T) {
	want := &Spec{
		Name: "node-a", Hostname: "node-a", Root: "/s/root", ControlSocket: "/s/n0.sock", Logs: "/s/logs",
		Masks: map[string]string{"/a": "/b"}, Sysctls: map[string]string{"net/x": "1"},
		Services: []Service{{Name: "x", Args: []string{"/x", "-v"}, Env: []string{"A=b"}, WaitFor: []string{"unix:/y"}}},
	}
	path := filepath.Join(t.TempDir(), "sandbox.json")
	if err := want.Save(path); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, %v", got, err)
	}
}
