// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
)

// Mover is a policy that can also improve where tasks run.
type Mover interface {
	Policy
	// Move returns the move of a running task that is worth most, or false if none is worth its while. saved
	// is how many moves may be made: the more, the less must one be worth.
	Move(saved float64) (Move, bool)
}

// Move takes a running task to another node.
type Move struct {
	Task, From int
	To         cluster.Placement
}

// departure is what a node would be worth without one of its tasks.
type departure struct {
	task    int
	request *cluster.Request
	// gain is without the worth of the rooms that are won.
	gain float64
	won  demand.Rooms
}

// departures are those of a node, one for each different task.
type departures struct {
	version uint32
	options []departure
}

// arrival is the best place for a request.
type arrival struct {
	gain  float64
	place cluster.Placement
}

// halfSaved is how many saved moves halve what a move must be worth.
const halfSaved = 20

// Move implements Mover. A move is worth what fewer GPUs are expected to stay idle after it, with the reserve
// for tasks with several GPUs and the pressure on models.
func (p *switchyard) Move(saved float64) (Move, bool) {
	idle := float64(p.cluster.Capacity-p.cluster.Used) / trace.Whole
	if idle > p.weights.MoveBelow*float64(p.cluster.Capacity)/trace.Whole {
		return Move{}, false
	}
	if p.settled == p.cluster.Version {
		return Move{}, false
	}
	p.refresh()
	prices := p.reserve.Prices(&p.stock, idle, p.weights.Floor, p.weights.Scarce)
	places := map[*cluster.Request][2]arrival{}
	best, found := p.weights.MoveGain/(1+saved/halfSaved), false
	var move Move
	for node := range p.cluster.Nodes {
		for i := range p.departuresOf(node) {
			d := &p.leaving[node].options[i]
			out := d.gain + d.won.Dot(&prices)
			top, known := places[d.request]
			if !known {
				top = p.bestPlaces(d.request, &prices)
				places[d.request] = top
			}
			in := top[0]
			if in.place.Node == node {
				in = top[1]
			}
			if gain := out + in.gain; in.place.Node >= 0 && gain > best {
				best, found, move = gain, true, Move{Task: d.task, From: node, To: in.place}
			}
		}
	}
	if !found {
		p.settled = p.cluster.Version
	}
	return move, found
}

// departuresOf rates the departures of a node if it changed.
func (p *switchyard) departuresOf(node int) []departure {
	n, leaving := &p.cluster.Nodes[node], &p.leaving[node]
	if leaving.version == n.Version+1 {
		return leaving.options
	}
	leaving.version, leaving.options = n.Version+1, leaving.options[:0]
	type leave struct {
		request *cluster.Request
		after   cluster.State
	}
	seen := map[leave]bool{}
	for _, run := range n.Tasks {
		after := n.Before(run)
		same := leave{run.Request, p.cluster.Canonical(after)}
		if seen[same] {
			continue
		}
		seen[same] = true
		d := departure{task: run.ID, request: run.Request, gain: p.nodes[node].idle - p.estimator.Idle(after)}
		d.gain += p.pressureOf(n, run.Request)
		rooms := p.reserve.Rooms(&after)
		for group := range rooms {
			d.won[group] = rooms[group] - p.nodes[node].rooms[group]
		}
		leaving.options = append(leaving.options, d)
	}
	return leaving.options
}

// bestPlaces are the two best nodes for a request; Node is -1 where there is none.
func (p *switchyard) bestPlaces(r *cluster.Request, prices *demand.Rooms) [2]arrival {
	best := [2]arrival{{place: cluster.Placement{Node: -1}}, {place: cluster.Placement{Node: -1}}}
	ratings := p.ratingsOf(r)
	for node := range ratings {
		at := arrival{place: cluster.Placement{Node: -1}}
		for i := range p.optionsOf(ratings, node, r) {
			option := &ratings[node].options[i]
			gain := option.change - option.lost.Dot(prices)
			if at.place.Node < 0 || gain > at.gain {
				at = arrival{gain, cluster.Placement{Node: node, GPUs: option.gpus}}
			}
		}
		switch {
		case at.place.Node < 0:
		case best[0].place.Node < 0 || at.gain > best[0].gain:
			best[0], best[1] = at, best[0]
		case best[1].place.Node < 0 || at.gain > best[1].gain:
			best[1] = at
		}
	}
	return best
}
