// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
)

// ReadNodes reads nodes from CSV with the columns sn (or name), cpu_milli, memory_mib, gpu and model, in any
// order; others are ignored. Its errors name the line, the column and what to do.
func ReadNodes(r io.Reader) ([]Node, error) {
	t, err := openTable(r, "sn|name", "cpu_milli", "memory_mib", "gpu", "model")
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	var nodes []Node
	err = t.each(func(row row) error {
		node := Node{
			Name:   row.name("sn|name"),
			CPU:    row.number("cpu_milli", math.MaxInt32, "milli-CPUs, for example 64000"),
			Memory: row.number("memory_mib", math.MaxInt32, "MiB, for example 262144"),
			GPUs:   int(row.number("gpu", MaxGPUs, "the number of GPUs, 0 if the node has none")),
			Model:  row.text("model"),
		}
		if node.GPUs > 0 && node.Model == "" {
			row.fail("model", "a node with GPUs needs their model, for example T4")
		}
		nodes = append(nodes, node)
		return row.err()
	})
	if err != nil {
		return nil, fmt.Errorf("read nodes: %w", err)
	}
	if len(nodes) == 0 {
		return nil, errors.New("read nodes: there is none below the header: add a line for each node")
	}
	return nodes, nil
}

// ReadTasks reads tasks from CSV with the columns name, cpu_milli, memory_mib, num_gpu and gpu_milli, in any
// order, and gpu_spec if tasks need particular GPU models; others are ignored. Its errors name the line, the
// column and what to do.
func ReadTasks(r io.Reader) ([]Task, error) {
	t, err := openTable(r, "name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli")
	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	var tasks []Task
	err = t.each(func(row row) error {
		task := Task{Name: row.name("name"), Kind: Kind{
			CPU:    row.number("cpu_milli", math.MaxInt32, "milli-CPUs, for example 4000"),
			Memory: row.number("memory_mib", math.MaxInt32, "MiB, for example 16384"),
			GPUs:   int(row.number("num_gpu", MaxGPUs, "the number of GPUs, 0 if the task needs none")),
			Milli:  int(row.number("gpu_milli", Whole, "thousandths of each GPU, 1000 for whole ones")),
			Spec:   row.text("gpu_spec"),
		}}
		switch {
		case task.GPUs == 0 && task.Milli > 0:
			row.fail("gpu_milli", "num_gpu is 0: write 0 here, or 1 in num_gpu")
		case task.GPUs > 0 && task.Milli == 0:
			row.fail("gpu_milli", "num_gpu is not 0: write 1000 for whole GPUs, or less for a part of one")
		case task.GPUs > 1 && task.Milli < Whole:
			row.fail("gpu_milli", "only a task with num_gpu 1 can take a part of a GPU: write 1000")
		}
		if task.GPUs == 0 {
			task.Spec = ""
		}
		if slices.Contains(task.Models(), "") {
			row.fail("gpu_spec", "there is an empty name: write models separated by |, for example T4|P100, or nothing")
		}
		tasks = append(tasks, task)
		return row.err()
	})
	if err != nil {
		return nil, fmt.Errorf("read tasks: %w", err)
	}
	if len(tasks) == 0 {
		return nil, errors.New("read tasks: there is none below the header: add a line for each task")
	}
	return tasks, nil
}
