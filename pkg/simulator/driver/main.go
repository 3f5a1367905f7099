// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// The programs that this one stands for.
const (
	ControlProgram = "nvidia-cuda-mps-control"
	smiProgram     = "nvidia-smi"
)

// Main is the program whose name the first argument is.
func Main(args []string, in io.Reader, out io.Writer) error {
	switch filepath.Base(args[0]) {
	case ControlProgram:
		if len(args) == 1 {
			return client(pipeDirectory(), in, out)
		}
		if len(args) == 2 && args[1] == "-f" {
			return serve()
		}
		return errors.New("the simulated nvidia-cuda-mps-control knows -f, or nothing and commands on standard input")
	case smiProgram:
		return computePolicy(args[1:], out)
	}
	return fmt.Errorf("%s stands for %s and %s, and is called by these names", filepath.Base(args[0]), ControlProgram, smiProgram)
}

// nodeDir is the directory of the simulated node whose driver root this program is in: it is <dir>/root/usr/bin/<name>.
func nodeDir() (string, error) {
	program, err := os.Executable()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(filepath.Dir(filepath.Dir(filepath.Dir(program))))
	if _, err := os.Stat(filepath.Join(dir, "state.json")); err != nil {
		return "", fmt.Errorf("%s is not in the driver root of a simulated node: %w", program, err)
	}
	return dir, nil
}

func pipeDirectory() string {
	if dir := os.Getenv("CUDA_MPS_PIPE_DIRECTORY"); dir != "" {
		return dir
	}
	return "/tmp/nvidia-mps"
}

// computePolicy is nvidia-smi compute-policy -i UUID --set-timeslice N.
func computePolicy(args []string, out io.Writer) error {
	if len(args) != 5 || args[0] != "compute-policy" || args[1] != "-i" || args[3] != "--set-timeslice" {
		return errors.New("the simulated nvidia-smi of this program knows: compute-policy -i UUID --set-timeslice N")
	}
	slice, err := strconv.Atoi(args[4])
	if err != nil || slice < 0 || slice > 3 {
		return fmt.Errorf("timeslice %q is not 0 (default), 1 (short), 2 (medium) or 3 (long)", args[4])
	}
	dir, err := nodeDir()
	if err != nil {
		return err
	}
	node, err := readHardware(dir)
	if err != nil {
		return err
	}
	if !node.visible(args[2]) {
		return fmt.Errorf("No devices were found of the name %s", args[2]) //nolint:staticcheck // nvidia-smi's words
	}
	// Volta brought time slices that can be set.
	if architecture := node.Profile.Product.Architecture; strings.EqualFold(architecture, "Kepler") || strings.EqualFold(architecture, "Maxwell") || strings.EqualFold(architecture, "Pascal") {
		return fmt.Errorf("Timeslice is not supported on GPU %s", args[2]) //nolint:staticcheck // nvidia-smi's words
	}
	if err := setTimeSlice(dir, args[2], slice); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "Successfully set timeslice for GPU %s\n", args[2])
	return err
}
