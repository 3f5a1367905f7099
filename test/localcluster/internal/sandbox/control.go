// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sandbox

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"time"
)

// The control protocol: the client sends one request, a JSON object on a line;
// init answers with one line, or for "watch" with one at every change.
type request struct {
	Op      string `json:"op"` // status, watch, restart
	Service string `json:"service,omitempty"`
}

type answer struct {
	Services []Status `json:"services,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func serve(listener net.Listener, s *supervisor, log *slog.Logger) {
	for {
		conn, err := listener.Accept()
		if err != nil {
			log.Error("control socket failed", "err", err)
			return
		}
		go func() {
			defer conn.Close()
			if err := serveOne(conn, s); err != nil && !errors.Is(err, io.EOF) {
				log.Info("control connection ended", "err", err)
			}
		}()
	}
}

func serveOne(conn net.Conn, s *supervisor) error {
	line, err := bufio.NewReader(io.LimitReader(conn, 4096)).ReadBytes('\n')
	if err != nil {
		return err
	}
	var r request
	if err := json.Unmarshal(line, &r); err != nil {
		return err
	}
	out := json.NewEncoder(conn)
	switch r.Op {
	case "status":
		all, _ := s.snapshot()
		return out.Encode(answer{Services: all})
	case "watch":
		for {
			all, changed := s.snapshot()
			if err := out.Encode(answer{Services: all}); err != nil {
				return err
			}
			<-changed
		}
	case "restart":
		var a answer
		if err := s.restart(r.Service); err != nil {
			a.Error = err.Error()
		}
		return out.Encode(a)
	default:
		return out.Encode(answer{Error: fmt.Sprintf("unknown request %q", r.Op)})
	}
}

const controlTimeout = 5 * time.Second

// Services asks a machine's init for the states of its services.
func Services(socket string) ([]Status, error) {
	a, err := call(socket, request{Op: "status"})
	return a.Services, err
}

// Restart kills one service with SIGKILL; init starts it again. Pods live on.
func Restart(socket, service string) error {
	_, err := call(socket, request{Op: "restart", Service: service})
	return err
}

func call(socket string, r request) (answer, error) {
	conn, err := dial(socket, r)
	if err != nil {
		return answer{}, err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(controlTimeout)); err != nil {
		return answer{}, fmt.Errorf("ask init at %s: %w", socket, err)
	}
	var a answer
	if err := json.NewDecoder(conn).Decode(&a); err != nil {
		return answer{}, fmt.Errorf("ask init at %s: %w", socket, err)
	}
	if a.Error != "" {
		return answer{}, errors.New(a.Error)
	}
	return a, nil
}

// Watch calls visit with the services' states now and at every change, until
// visit returns an error, the context ends, or init dies.
func Watch(ctx context.Context, socket string, visit func([]Status) error) error {
	conn, err := dial(socket, request{Op: "watch"})
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	in := json.NewDecoder(conn)
	for {
		var a answer
		if err := in.Decode(&a); err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return fmt.Errorf("init at %s ended: %w", socket, err)
		}
		if err := visit(a.Services); err != nil {
			return err
		}
	}
}

func dial(socket string, r request) (net.Conn, error) {
	conn, err := net.DialTimeout("unix", socket, controlTimeout)
	if err != nil {
		return nil, fmt.Errorf("reach init: %w", err)
	}
	if err := json.NewEncoder(conn).Encode(r); err != nil {
		conn.Close()
		return nil, fmt.Errorf("ask init at %s: %w", socket, err)
	}
	return conn, nil
}
