// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"os/exec"
	"strconv"
	"strings"
	"time"
)

// SMI sets what NVML has no call for, by the driver's nvidia-smi.
type SMI struct {
	// DriverRoot is where this process sees the root of the driver's files.
	DriverRoot string
	// LibraryDir is a directory of this SMI's own, which it fills with links to the driver's libraries.
	LibraryDir string
}

// SetTimeSlice sets how long a process keeps a GPU before the next one gets it: 0 for the driver's own choice, 1 to
// 3 for short to long (nvidia-smi compute-policy --set-timeslice). A GPU that has none to set is an error.
func (s SMI) SetTimeSlice(ctx context.Context, gpuUUID string, interval int) error {
	program, err := findProgram(s.DriverRoot, "nvidia-smi")
	if err != nil {
		return err
	}
	libraries, err := linkLibraries(s.DriverRoot, s.LibraryDir)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program, "compute-policy", "-i", gpuUUID, "--set-timeslice", strconv.Itoa(interval))
	cmd.Env = environment(program, libraries)
	cmd.WaitDelay = time.Second
	if _, err := run(cmd); err != nil {
		return fmt.Errorf("nvidia-smi compute-policy --set-timeslice %d of GPU %s: %w", interval, gpuUUID, err)
	}
	return nil
}

// run runs a program to its end and returns what it answers. Warnings are no part of that. An error says what the
// program said last, which programs of the driver do in their answer.
func run(cmd *exec.Cmd) (string, error) {
	var answer, complaints bounded
	cmd.Stdout, cmd.Stderr = &answer, &complaints
	err := cmd.Run()
	if err = cmp.Or(answer.err, complaints.err, err); err != nil {
		return "", fmt.Errorf("%w: %s", err, cmp.Or(lastLine(answer.String()), lastLine(complaints.String())))
	}
	return strings.TrimSpace(answer.String()), nil
}

// maxAnswer is far above what programs of the driver say. What a daemon's control program says comes through a directory that
// containers write to.
const maxAnswer = 64 << 10

// bounded keeps what a program says, until that is too much.
type bounded struct {
	said bytes.Buffer
	err  error
}

// Write implements io.Writer.
func (b *bounded) Write(data []byte) (int, error) {
	if b.said.Len()+len(data) > maxAnswer {
		b.err = fmt.Errorf("it says more than %d bytes", maxAnswer)
		return 0, b.err
	}
	return b.said.Write(data)
}

func (b *bounded) String() string { return b.said.String() }

// lastLine is what a program said last, bounded.
func lastLine(output string) string {
	text := strings.TrimSpace(output)
	if i := strings.LastIndexByte(text, '\n'); i >= 0 {
		text = text[i+1:]
	}
	return text[:min(len(text), 500)]
}
