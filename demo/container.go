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
)

// sight is what a container sees: a device node and its attributes for each GPU.
type sight []seenGPU

type seenGPU struct {
	node   string // "/dev/nvidia3"
	uuid   string
	domain string
	minor  int64
}

// look goes into the pod's container: the device nodes are listed there, and the attributes are read from the
// device metadata file that is mounted there (KEP-5304).
func (d *demo) look(ctx context.Context, pod string) (sight, error) {
	listing, err := d.cluster.Exec(ctx, "demo", pod, "sh", "-c", "ls /dev/nvidia[0-9]*")
	if err != nil {
		return nil, err
	}
	nodes := strings.Fields(listing)
	slices.Sort(nodes)
	file := path.Join(metadata.ContainerDir, metadata.ResourceClaimTemplatesSubDir, "gpus", "gpus", metadata.MetadataFileName(v1alpha1.DriverName))
	raw, err := d.cluster.Exec(ctx, "demo", pod, "cat", file)
	if err != nil {
		return nil, err
	}
	var meta metadatav1.DeviceMetadata
	if err := json.NewDecoder(strings.NewReader(raw)).Decode(&meta); err != nil {
		return nil, fmt.Errorf("read %s in pod %s: %w", file, pod, err)
	}
	var seen sight
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
			seen = append(seen, g)
		}
	}
	if len(nodes) != len(seen) {
		return nil, fmt.Errorf("pod %s: the container has %v, and the metadata names %d GPUs", pod, nodes, len(seen))
	}
	slices.SortFunc(seen, func(a, b seenGPU) int { return int(a.minor - b.minor) })
	return seen, nil
}

// shows reports whether the container sees exactly these GPUs.
func (s sight) shows(held picture) bool {
	want, have := map[string]string{}, map[string]string{}
	for _, g := range held {
		want[g.uuid] = g.domain
	}
	for _, g := range s {
		have[g.uuid] = g.domain
	}
	if len(want) != len(have) || len(s) != len(held) {
		return false
	}
	for uuid, domain := range want {
		if have[uuid] != domain {
			return false
		}
	}
	return true
}

func (s sight) String() string {
	words := make([]string, 0, len(s))
	for _, g := range s {
		words = append(words, fmt.Sprintf("%s (%s)", g.node, g.domain))
	}
	return strings.Join(words, ", ")
}
