// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

const (
	steeringNodes = 100
	// steeringLoad is how many of the 800 GPUs the pods of the trace want.
	steeringLoad = 640
	// steeringTogether pods arrive at once, and steeringChanges arrive after the cluster has filled up.
	steeringTogether, steeringChanges = 10, 150
	// steeringWaiting pods want what no node has, beside the trace: they pay for whatever wakes the scheduler.
	steeringWaiting = 4
	// steeringInterval is the least time between two writes of a node's slice, as in deployments/manifests/steering.
	steeringInterval = 2 * time.Second
)

// steeringSide is a way to choose GPUs for pods with one.
type steeringSide struct {
	name, about string
	// publish says when and what a node publishes of its free GPUs.
	publish steeringPublication
	// request is how pods with one GPU ask for it.
	request steeringRequest
	// mostAllocated chooses the profile of the scheduler that prefers nodes of which more is requested.
	mostAllocated bool
}

type steeringPublication int

const (
	nothingFree steeringPublication = iota
	orderByFree                     // the fuller of two domains comes first, at once
	freeCounts                      // attributes, once in steeringInterval
)

type steeringRequest int

const (
	plainClaim    steeringRequest = iota
	listByDomain                  // firstAvailable by nvswitchDomainFree: 1, 2, 3, 4, any
	admittedClaim                 // as deployments/manifests/steering change it
	extendedName                  // an extended resource
)

var steeringSides = []steeringSide{
	{name: "stock", about: "nothing"},
	{name: "order", about: "the device order follows what is free", publish: orderByFree},
	{name: "list", about: "a list by the domain's free GPUs", publish: freeCounts, request: listByDomain},
	{name: "admission", about: "the list of deployments/manifests/steering", publish: freeCounts, request: admittedClaim},
	{name: "most-allocated", about: "a scheduler that prefers nodes in use", mostAllocated: true},
	{name: "extended", about: "the same and an extended resource", request: extendedName, mostAllocated: true},
	{name: "both", about: "that scheduler and the admission", publish: freeCounts, request: admittedClaim, mostAllocated: true},
}

// plannerSide is the planner alone.
const plannerSide = "planner"

func steeringSeries(side, what string) string { return "steering-" + side + "-" + what }

// steering measures what becomes of the free GPUs when pods with one GPU are steered, on the real scheduler, and what it
// costs. All sides have the same pods, which arrive and leave in the same order.
func steering() []Benchmark {
	var series []Series
	add := func(side, what, unit string, better Direction) {
		series = append(series, Series{Name: steeringSeries(side, what), Unit: unit, Better: better, Statistics: []Statistic{Median}})
	}
	gains := func(side string) {
		add(side, "rejected", "% of GPUs asked for", Lower)
		add(side, "allocated", "% of GPUs", Higher)
		for _, size := range []string{"4", "8"} {
			add(side, "runnable-"+size, "gangs", Higher)
			add(side, "runnable-"+size+"-end", "gangs", Higher)
			add(side, "fragmentation-"+size, "% of free GPUs", Lower)
			add(side, "lost-"+size, "% of GPUs", Lower)
		}
		add(side, "whole-domains", "domains", Higher)
	}
	gains(plannerSide)
	for _, side := range steeringSides {
		gains(side.name)
		add(side.name, "latency", "ms", Lower)
		add(side.name, "writes", "slices/pod", Lower)
		add(side.name, "attempts", "per pod", Lower)
		add(side.name, "wakeups", "per pod", Lower)
		add(side.name, "scheduler-cpu", "ms/pod", Lower)
	}
	return []Benchmark{{
		Name: "steering",
		About: fmt.Sprintf("pods with 1, 2, 4 and 8 GPUs arrive on and leave %d nodes, at %d %% load, and the real scheduler places them: runnable gangs, fragmentation and whole domains by how pods with one GPU are steered, and what that costs the scheduler",
			steeringNodes, 100*steeringLoad/(8*steeringNodes)),
		Series: series,
		Run:    measureSteering,
	}}
}

func measureSteering(ctx context.Context, lab *Lab, samples Samples) error {
	steps := traffic(rand.New(rand.NewPCG(1, 5)))
	planSteering(ctx, steps, samples)
	for _, side := range steeringSides {
		start := time.Now()
		if err := lab.steer(ctx, side, steps, samples); err != nil {
			return fmt.Errorf("%s: %w", side.name, err)
		}
		fmt.Fprintf(lab.log, " %s %.0fs", side.name, time.Since(start).Seconds())
	}
	return nil
}

// freeGPUs is what is free: by domain, of four GPUs, and by node, of eight.
type freeGPUs struct{ domains, nodes fragmentation.Measures }

// measureFree measures nodes of two domains, of which so many GPUs are in use each.
func measureFree(inUse [][2]int) freeGPUs {
	var domains, nodes []fragmentation.Domain
	for i, used := range inUse {
		node := fmt.Sprint(i)
		for d, n := range used {
			domains = append(domains, fragmentation.Domain{Name: fmt.Sprintf("%d.%d", i, d), Node: node, Total: 4, Free: 4 - n, InUse: n})
		}
		nodes = append(nodes, fragmentation.Domain{Name: node, Node: node, Total: 8, Free: 8 - used[0] - used[1], InUse: used[0] + used[1]})
	}
	return freeGPUs{fragmentation.Measure(domains, []int{4}).Cluster, fragmentation.Measure(nodes, []int{8}).Cluster}
}

// sample adds what is free after a step.
func (f freeGPUs) sample(samples Samples, side string) {
	add := func(what string, value float64) { samples.Add(steeringSeries(side, what), value) }
	for _, m := range []fragmentation.Measures{f.domains, f.nodes} {
		gang, total := m.Gangs[0], float64(m.Total)
		add(fmt.Sprintf("runnable-%d", gang.Size), float64(gang.Runnable))
		add(fmt.Sprintf("fragmentation-%d", gang.Size), 100*gang.Fragmentation)
		add(fmt.Sprintf("lost-%d", gang.Size), 100*float64(m.Free-gang.Size*gang.Runnable)/total)
	}
	add("whole-domains", float64(f.domains.Whole))
	add("allocated", 100*float64(f.domains.InUse)/float64(f.domains.Total))
}

// end adds what is free at the end, and which part of the GPUs was asked for in vain.
func (f freeGPUs) end(samples Samples, side string, rejected float64) {
	samples.Add(steeringSeries(side, "runnable-4-end"), float64(f.domains.Gangs[0].Runnable))
	samples.Add(steeringSeries(side, "runnable-8-end"), float64(f.nodes.Gangs[0].Runnable))
	samples.Add(steeringSeries(side, "rejected"), 100*rejected)
}
