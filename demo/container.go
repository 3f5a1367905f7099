// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"

	"k8s.io/dynamic-resource-allocation/api/metadata"
	metadatav1 "k8s.io/dynamic-resource-allocation/api/metadata/v1beta1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/topology"
	"github.com/switchyard-dev/switchyard/pkg/topology/smi"
)

// sight is what a container sees: a device node and its attributes for each GPU, and the links between them.
type sight struct {
	gpus   []seenGPU
	matrix *smi.Matrix
}

type seenGPU struct {
	node   string // "/dev/nvidia3"
	uuid   string
	domain string
	minor  int64
}

// look goes into the pod's container: the device nodes are listed there, nvidia-smi is asked there, and the attributes
// are read from the device metadata file of the request, which is mounted there (KEP-5304).
func (d *demo) look(ctx context.Context, pod, request string) (*sight, error) {
	listing, err := d.cluster.Exec(ctx, "demo", pod, "sh", "-c", "ls /dev/nvidia[0-9]*")
	if err != nil {
		return nil, err
	}
	topo, err := d.cluster.Exec(ctx, "demo", pod, "nvidia-smi", "topo", "-m")
	if err != nil {
		return nil, err
	}
	matrix, _, err := smi.Parse(strings.NewReader(topo))
	if err != nil {
		return nil, fmt.Errorf("read nvidia-smi topo -m of pod %s: %w", pod, err)
	}
	nodes := strings.Fields(listing)
	slices.Sort(nodes)
	file := path.Join(metadata.ContainerDir, metadata.ResourceClaimTemplatesSubDir, "gpus", request, metadata.MetadataFileName(v1alpha1.DriverName))
	raw, err := d.cluster.Exec(ctx, "demo", pod, "cat", file)
	if err != nil {
		return nil, err
	}
	var meta metadatav1.DeviceMetadata
	if err := json.NewDecoder(strings.NewReader(raw)).Decode(&meta); err != nil {
		return nil, fmt.Errorf("read %s in pod %s: %w", file, pod, err)
	}
	seen := &sight{matrix: matrix}
	for _, request := range meta.Requests {
		for _, dev := range request.Devices {
			g := seenGPU{uuid: *dev.Attributes["uuid"].StringValue, minor: *dev.Attributes["minor"].IntValue}
			if v, ok := dev.Attributes["nvswitchDomain"]; ok {
				g.domain = *v.StringValue
			}
			g.node = fmt.Sprintf("/dev/nvidia%d", g.minor)
			if !slices.Contains(nodes, g.node) {
				return nil, fmt.Errorf("pod %s: the metadata names %s, and the container has only %v", pod, g.node, nodes)
			}
			seen.gpus = append(seen.gpus, g)
		}
	}
	if len(nodes) != len(seen.gpus) || len(nodes) != matrix.Graph.Len() {
		return nil, fmt.Errorf("pod %s: the container has %v, the metadata names %d GPUs and nvidia-smi %d", pod, nodes, len(seen.gpus), matrix.Graph.Len())
	}
	slices.SortFunc(seen.gpus, func(a, b seenGPU) int { return int(a.minor - b.minor) })
	return seen, nil
}

// shows reports whether the container sees exactly these GPUs.
func (s *sight) shows(held picture) bool {
	want, have := map[string]string{}, map[string]string{}
	for _, g := range held {
		want[g.uuid] = g.domain
	}
	for _, g := range s.gpus {
		have[g.uuid] = g.domain
	}
	if len(want) != len(have) || len(s.gpus) != len(held) {
		return false
	}
	for uuid, domain := range want {
		if have[uuid] != domain {
			return false
		}
	}
	return true
}

// allLinked reports whether every pair of the container's GPUs is connected by NVLink.
func (s *sight) allLinked() bool {
	domains := topology.Domains(s.matrix.Graph)
	return len(domains) == 1 && len(domains[0]) == len(s.gpus)
}

// draw gives the matrix that nvidia-smi topo -m prints in the container, without what surrounds the GPUs.
func (s *sight) draw() []string {
	lines := []string{"       "}
	for i, row := range s.matrix.Graph.Cells() {
		lines[0] += fmt.Sprintf(" %-5s", fmt.Sprintf("GPU%d", i))
		line := fmt.Sprintf("  %-5s", fmt.Sprintf("GPU%d", i))
		for _, cell := range row {
			style := subject
			if !strings.HasPrefix(cell, "NV") {
				style = taken
			}
			if cell == "X" {
				style = faint
			}
			line += style.Render(fmt.Sprintf(" %-5s", cell))
		}
		lines = append(lines, line+"  "+s.gpus[i].node+"  "+s.gpus[i].domain)
	}
	return append([]string{"inside the container, nvidia-smi topo -m:"}, lines...)
}

func (s *sight) String() string {
	words := make([]string, 0, len(s.gpus))
	for _, g := range s.gpus {
		words = append(words, fmt.Sprintf("%s (%s)", g.node, g.domain))
	}
	return strings.Join(words, ", ")
}
