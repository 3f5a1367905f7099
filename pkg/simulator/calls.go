// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
)

// callLog has a line with the function's name for every NVML call, in the order of the calls of one
// process; lines of several processes mix whole.
const callLog = "nvml-calls.log"

// callRecorder counts this process's calls and, when asked to, writes them down for others.
type callRecorder struct {
	path string

	mu          sync.Mutex
	counts      map[string]int
	unsimulated map[string]bool
	file        *os.File
}

func (r *callRecorder) count(function string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.counts == nil {
		r.counts = map[string]int{}
	}
	r.counts[function]++
}

// write appends the call to the log. The file stays open; it is in append mode, so that another process
// may empty it.
func (r *callRecorder) write(function string) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.file == nil {
		file, err := os.OpenFile(r.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
		if err != nil {
			return err
		}
		r.file = file
	}
	_, err := r.file.WriteString(function + "\n")
	return err
}

// first says whether this is the first call of a function that is not simulated.
func (r *callRecorder) first(function string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.unsimulated[function] {
		return false
	}
	if r.unsimulated == nil {
		r.unsimulated = map[string]bool{}
	}
	r.unsimulated[function] = true
	return true
}

// Calls returns how often this process has called each NVML function of the node, by its C name, mostly
// without version: "nvmlDeviceGetName". Functions of the library that are not simulated have go-nvml's
// name: "Interface.UnitGetCount".
func (n *Node) Calls() map[string]int {
	n.calls.mu.Lock()
	defer n.calls.mu.Unlock()
	counts := map[string]int{}
	maps.Copy(counts, n.calls.counts)
	return counts
}

// Unsimulated returns the functions that this process has called and that are not simulated, sorted.
func (n *Node) Unsimulated() []string {
	n.calls.mu.Lock()
	defer n.calls.mu.Unlock()
	names := make([]string, 0, len(n.calls.unsimulated))
	for name := range n.calls.unsimulated {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// SetRecordCalls has every process that uses the node write its NVML calls down for RecordedCalls, or
// stop doing so. Starting forgets what was written before.
func (n *Node) SetRecordCalls(record bool) error {
	return n.Update(func(s *State) error {
		if record {
			// Emptied in place: other processes have it open.
			if err := os.WriteFile(filepath.Join(n.dir, callLog), nil, 0o644); err != nil {
				return err
			}
		}
		s.RecordCalls = record
		return nil
	})
}

// RecordedCalls returns the NVML calls that all processes wrote down, oldest first.
func (n *Node) RecordedCalls() ([]string, error) {
	file, err := os.Open(filepath.Join(n.dir, callLog))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read NVML calls: %w", err)
	}
	defer func() { _ = file.Close() }()
	var calls []string
	scanner := bufio.NewScanner(file)
	for scanner.Scan() {
		calls = append(calls, strings.TrimSpace(scanner.Text()))
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read NVML calls: %w", err)
	}
	return calls, nil
}
