// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package policy decides on which node a task runs, and on which of its GPUs: the policies that the openb
// results were published with, and Switchyard's own.
//
// It imports the other packages of trace and the standard library. It promises that a policy names only
// places where the task fits, and that the choice depends on nothing but the cluster, the tasks that the
// policy was made with, and the randomness it was given.
package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// Policy decides where tasks run. It is made for one cluster and not safe for concurrent use.
type Policy interface {
	// Choose returns where the task should run, or false if it fits nowhere. The cluster is not changed.
	Choose(r *cluster.Request) (cluster.Placement, bool)
}

// Env is what a policy is made from.
type Env struct {
	Cluster *cluster.Cluster
	// Catalog has the requests of all tasks that will arrive.
	Catalog *cluster.Catalog
	// Tasks are the trace that arrivals are drawn from: the mix that a policy may expect.
	Tasks []trace.Task
	// Random serves the policy that chooses at random.
	Random trace.Rand
	// Streams draws what packing.Estimator rolls through nodes. It is the same for all seeds.
	Streams trace.Rand
}

// constructors are the policies by name, in the order in which Names has them.
var constructors = []struct {
	name string
	make func(Env) Policy
}{
	{"random", newRandom},
	{"bestfit", func(e Env) Policy { return newRanked(e, bestFit{e.Cluster}) }},
	{"dotprod", func(e Env) Policy { return newRanked(e, dotProduct{e.Cluster}) }},
	{"gpupacking", func(e Env) Policy { return newRanked(e, gpuPacking{e.Cluster}) }},
	{"gpuclustering", func(e Env) Policy { return newRanked(e, gpuClustering{e.Cluster}) }},
	{"fgd", func(e Env) Policy { return newRanked(e, newGradientDescent(e)) }},
	{Switchyard, func(e Env) Policy { return newSwitchyard(e) }},
}

// Switchyard is the name of our own policy.
const Switchyard = "switchyard"

// Moves reports whether the policy of the name can move tasks that run.
func Moves(name string) bool { return name == Switchyard }

// Names are the names of the policies.
func Names() []string {
	names := make([]string, 0, len(constructors))
	for _, c := range constructors {
		names = append(names, c.name)
	}
	return names
}

// Check reports whether there is a policy of the name.
func Check(name string) error {
	if !slices.Contains(Names(), name) {
		return fmt.Errorf("policy %q is unknown: use one of %s", name, strings.Join(Names(), ", "))
	}
	return nil
}

// New returns the policy of the name.
func New(name string, env Env) (Policy, error) {
	for _, c := range constructors {
		if c.name == name {
			return c.make(env), nil
		}
	}
	return nil, Check(name)
}
