// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"bytes"
	_ "embed"
	"fmt"
	"text/template"
)

//go:embed nvidia-smi.sh.tmpl
var smiText string

// smiTemplate is the program that containers find as nvidia-smi. It knows the node and shows of it the
// GPUs whose device nodes it finds.
var smiTemplate = template.Must(template.New("nvidia-smi").Parse(smiText))

type smiGPU struct {
	Minor int
	UUID  string
	BusID string
	CPUs  string
	NUMA  string
	// To is the connection to each GPU, by minor number, as nvidia-smi topo -m spells it.
	To []string
}

type smiNode struct {
	Product   string
	Driver    string
	CUDA      string
	MemoryMiB uint64
	GPUs      []smiGPU
}

func smiScript(s State) ([]byte, error) {
	snap := newSnapshot(s)
	node := smiNode{
		Product:   s.Profile.Product.Name,
		Driver:    s.Profile.Driver.Version,
		CUDA:      s.Profile.Driver.CUDAVersion,
		MemoryMiB: s.Profile.Product.MemoryMiB,
	}
	for i, gpu := range s.GPUs {
		at := s.Profile.GPUs[i]
		row := smiGPU{Minor: gpu.Minor, UUID: gpu.UUID, BusID: "0000" + at.BusID, CPUs: at.CPUs, NUMA: "N/A"}
		if at.NUMANode != nil {
			row.NUMA = fmt.Sprint(*at.NUMANode)
		}
		for j := range s.GPUs {
			row.To = append(row.To, snap.connection(i, j))
		}
		node.GPUs = append(node.GPUs, row)
	}
	var script bytes.Buffer
	if err := smiTemplate.Execute(&script, node); err != nil {
		return nil, err
	}
	return script.Bytes(), nil
}

// connection is what nvidia-smi topo -m prints for two GPUs: NV and the number of links if they reach
// each other over NVLink, else the PCIe distance.
func (s *snapshot) connection(a, b int) string {
	if s.peers(a, b) {
		if links := min(s.linksToward(a, b), s.linksToward(b, a)); links > 0 {
			return fmt.Sprintf("NV%d", links)
		}
	}
	return s.Profile.Distance(a, b).String()
}
