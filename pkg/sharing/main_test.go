// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/simulator/driver"
)

// TestMain makes the test's program what the supervisor starts: itself, as launcher, and the driver's program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "launch" {
		fmt.Fprintln(os.Stderr, Launch(os.Args[2:]))
		os.Exit(1)
	}
	switch filepath.Base(os.Args[0]) {
	case driver.ControlProgram, "nvidia-smi":
		if err := driver.Main(os.Args, os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stdout, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}
