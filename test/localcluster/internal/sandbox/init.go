// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/cgroup"
)

// Descriptors that the launcher hands to init.
const (
	readyFD = 3 // init writes a report and closes it
	goFD    = 4 // the launcher writes one byte once the network is wired
)

// report is what init tells its launcher.
type report struct {
	Error string `json:"error,omitempty"`
}

// RunInit is the whole life of a machine's first process. It returns only
// when the machine could not be set up; the launcher has been told why.
func RunInit(specPath string) error {
	spec, err := Load(specPath)
	if err != nil {
		return tell(err)
	}
	listener, err := setUp(spec)
	if err != nil {
		return tell(err)
	}
	if err := tell(nil); err != nil {
		return err
	}
	// A launcher that dies before the network is wired closes the pipe; so
	// does this machine, rather than be half of one.
	gate := os.NewFile(goFD, "go")
	if _, err := io.ReadFull(gate, make([]byte, 1)); err != nil {
		return fmt.Errorf("launcher went away before machine %s was wired: %w", spec.Name, err)
	}
	gate.Close()

	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	supervisor := newSupervisor(spec, log)
	go serve(listener, supervisor, log)
	supervisor.run(context.Background())
	return nil
}

func setUp(spec *Spec) (net.Listener, error) {
	if os.Getpid() != 1 {
		return nil, errors.New("the machine's init must be the first process of a PID namespace: it is started by `localcluster up`, not by hand")
	}
	tree, err := cgroup.Host(spec.Cluster)
	if err != nil {
		return nil, err
	}
	if err := tree.Join(spec.Name, 0); err != nil {
		return nil, err
	}
	// The socket is made first: the machine's mounts might hide its folder.
	if err := os.Remove(spec.ControlSocket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove old control socket: %w", err)
	}
	listener, err := net.Listen("unix", spec.ControlSocket)
	if err != nil {
		return nil, fmt.Errorf("open control socket: %w", err)
	}
	if err := os.MkdirAll(spec.Logs, 0o755); err != nil {
		return nil, fmt.Errorf("create log folder: %w", err)
	}
	hostname := spec.Hostname
	if len(hostname) > 64 {
		hostname = hostname[:64]
	}
	if err := unix.Sethostname([]byte(hostname)); err != nil {
		return nil, fmt.Errorf("set host name %s: %w", hostname, err)
	}
	if err := setUpMounts(spec); err != nil {
		return nil, err
	}
	if err := setSysctls(spec.Sysctls); err != nil {
		return nil, err
	}
	return listener, nil
}

// tell reports to the launcher and returns the error it reported.
func tell(err error) error {
	ready := os.NewFile(readyFD, "ready")
	defer ready.Close()
	var r report
	if err != nil {
		r.Error = err.Error()
	}
	if werr := json.NewEncoder(ready).Encode(r); werr != nil && err == nil {
		return fmt.Errorf("report to launcher: %w", werr)
	}
	return err
}

func openLog(dir, service string) (*os.File, error) {
	f, err := os.OpenFile(filepath.Join(dir, service+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("open log of %s: %w", service, err)
	}
	return f, nil
}
