// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/build"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/config"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/image"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/sandbox"
)

// baseImages are the archives every node gets.
func (c *Cluster) baseImages() []string {
	return []string{filepath.Join(c.Bin(), "images", "pause.tar"), filepath.Join(c.Bin(), "images", "busybox.tar")}
}

// buildImages packs the images anew each time: that takes a fraction of a
// second, and an update of busybox arrives.
func (c *Cluster) buildImages() error {
	pause, busybox := c.baseImages()[0], c.baseImages()[1]
	if err := image.WritePause(pause, config.PauseImage, filepath.Join(c.Bin(), build.PauseProgram)); err != nil {
		return err
	}
	return image.WriteBusybox(busybox, config.BusyboxImage, build.Busybox())
}

// hasImages reports whether a node has all base images. One that an
// interrupted `up` has started may lack them.
func (c *Cluster) hasImages(shape config.Cluster, node string) (bool, error) {
	args := sandbox.ExecArgs(c.init(node).PID, filepath.Join(shape.Bin, "ctr"), "--address", config.ContainerdSocket, "--namespace", "k8s.io", "images", "list", "--quiet")
	output, err := exec.Command(args[0], args[1:]...).Output()
	if err != nil {
		return false, fmt.Errorf("list images of %s: %w", node, err)
	}
	have := strings.Fields(string(output))
	return slices.Contains(have, config.PauseImage) && slices.Contains(have, config.BusyboxImage), nil
}

// importImage loads an archive into a node's containerd. It is streamed, so
// it may lie where the node cannot see it.
func (c *Cluster) importImage(shape config.Cluster, node, archive string) error {
	f, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("load image into %s: %w", node, err)
	}
	defer f.Close()
	id := c.init(node)
	if !id.Alive() {
		return fmt.Errorf("load image %s into %s: the node is stopped: start it with `localcluster node start %s`", archive, node, node)
	}
	args := sandbox.ExecArgs(id.PID, filepath.Join(shape.Bin, "ctr"), "--address", config.ContainerdSocket, "--namespace", "k8s.io", "images", "import", "--local", "-")
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Stdin = f
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("load image %s into %s: %w: %s", archive, node, err, strings.TrimSpace(output.String()))
	}
	return nil
}
