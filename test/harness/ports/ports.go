// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package ports finds TCP ports for programs that are about to listen.
package ports

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
)

// The ports that are given out. Linux gives those from 32768 on to outgoing connections (ip_local_port_range): such a
// port may be taken before the program listens.
const first, last = 10000, 32767

var (
	mu    sync.Mutex
	given = map[int]bool{}
)

// Free returns n ports of 127.0.0.1 that nobody listens on, and that this process was not given before.
func Free(n int) ([]int, error) {
	mu.Lock()
	defer mu.Unlock()
	ports := make([]int, 0, n)
	for tries := 0; len(ports) < n; tries++ {
		if tries > 10*(n+100) {
			return nil, errors.New("no free port of 127.0.0.1 was found")
		}
		port := first + rand.IntN(last-first+1)
		if given[port] {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err != nil {
			continue // somebody has it
		}
		if err := l.Close(); err != nil {
			return nil, fmt.Errorf("free port %d: %w", port, err)
		}
		given[port] = true
		ports = append(ports, port)
	}
	return ports, nil
}
