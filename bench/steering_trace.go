// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import "math/rand/v2"

// steeringMix is how many tasks of the openb trace multigpu50 ask for so many whole GPUs: two fifths of the
// GPUs are asked for by tasks with one, and nearly half by tasks with eight (pkg/trace says where it is from).
var steeringMix = []weighted{{1, 3911}, {2, 222}, {4, 206}, {8, 556}}

// steeringCPUs are the CPUs per GPU that these tasks ask for, in percent of them.
var steeringCPUs = []weighted{{11, 35}, {8, 16}, {12, 12}, {3, 11}, {16, 7}, {19, 6}, {15, 5}, {10, 4}, {4, 4}}

type weighted struct{ value, weight int }

func draw(random *rand.Rand, from []weighted) int {
	total := 0
	for _, w := range from {
		total += w.weight
	}
	at := random.IntN(total)
	for _, w := range from {
		if at -= w.weight; at < 0 {
			return w.value
		}
	}
	panic("the weights do not add up")
}

// trafficStep is what happens before the next look at the cluster: pods leave, then others arrive.
type trafficStep struct {
	leave  []int // numbers of pods that arrived earlier, whether or not they got a place
	arrive []arrival
}

// arrival is a pod that wants whole GPUs of one node, in one domain where a domain has as many.
type arrival struct{ number, gpus, cpus int }

// traffic makes steps of steeringTogether arrivals each: until the pods want steeringLoad GPUs, and steeringChanges
// more, for which as many leave, by lot, as are in the way.
func traffic(random *rand.Rand) []trafficStep {
	var steps []trafficStep
	var live []arrival
	wanted, number, full := 0, 0, false
	for changes := 0; changes < steeringChanges; {
		var step trafficStep
		before := len(live)
		for range steeringTogether {
			a := arrival{number: number, gpus: draw(random, steeringMix)}
			a.cpus = a.gpus * draw(random, steeringCPUs)
			for wanted+a.gpus > steeringLoad {
				full = true
				before--
				at := random.IntN(before + 1) // who arrives in this step stays
				step.leave = append(step.leave, live[at].number)
				wanted -= live[at].gpus
				live[at] = live[before]
				live = append(live[:before], live[before+1:]...)
			}
			step.arrive = append(step.arrive, a)
			live = append(live, a)
			wanted += a.gpus
			number++
		}
		if full {
			changes += steeringTogether
		}
		steps = append(steps, step)
	}
	return steps
}

// gpusAskedFor is how many GPUs all pods ask for.
func gpusAskedFor(steps []trafficStep) float64 {
	total := 0
	for _, step := range steps {
		for _, a := range step.arrive {
			total += a.gpus
		}
	}
	return float64(total)
}
