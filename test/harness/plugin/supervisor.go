// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"fmt"
	"path/filepath"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/test/harness/process"
)

// SharedMemoryDir stands for /dev/shm/switchyard-mps.
func (n *Node) SharedMemoryDir() string { return filepath.Join(n.Dir, "shm") }

// StartSupervisor executes the MPS supervisor on the node. It does not wait for anything.
func (n *Node) StartSupervisor(binary string) (*process.Process, error) {
	p, err := process.Start(process.Options{
		Path: binary,
		Args: []string{
			"--plugin-dir=" + n.PluginDir(),
			"--shm-dir=" + n.SharedMemoryDir(),
			"--run-dir=" + filepath.Join(n.Dir, "run"),
			"--driver-root-mount=" + simulator.DriverRoot(n.SimDir()),
			"--boot-id-file=" + n.bootIDFile(),
		},
		LogFile: n.SupervisorLogFile(),
	})
	if err != nil {
		return nil, fmt.Errorf("start the MPS supervisor on node %s: %w", n.Name, err)
	}
	return p, nil
}
