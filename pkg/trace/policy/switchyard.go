// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/trace"
	"github.com/switchyard-dev/switchyard/pkg/trace/cluster"
	"github.com/switchyard-dev/switchyard/pkg/trace/packing"
)

// Weights are what Switchyard's policy weighs, in GPUs.
type Weights struct {
	// Left is the price of an idle GPU that a node has after the placement: fuller nodes first.
	Left float64
	// Pressure is the price of a GPU of a model that is twice as sought after as the mean.
	Pressure float64
	// Floor and Scarce are the prices of the room for a task with several GPUs: see demand.Prices.
	Floor, Scarce float64
	// MoveGain is what a move must be worth at least if no others are saved up. None is made while more than
	// the part MoveBelow of the cluster's GPUs is idle: what arrives still fills the holes by itself.
	MoveGain, MoveBelow float64
}

// DefaultWeights are what the published numbers were measured with.
var DefaultWeights = Weights{Left: 0.02, Pressure: 0.3, Floor: 0.005, Scarce: demand.Scarce, MoveGain: 0.3, MoveBelow: 0.1}

// switchyard takes the place after which fewest GPUs are expected to stay idle, with a reserve of whole
// nodes for tasks with several GPUs and of GPU models that others cannot do without.
type switchyard struct {
	cluster   *cluster.Cluster
	weights   Weights
	estimator *packing.Estimator
	reserve   *packing.Reserve
	pressure  []float64 // by model
	// nodes has what is known of each node, rated the last rating of each node, by request.
	nodes []nodeRating
	stock demand.Stock
	rated [][]placeRating
	// leaving has the last rating of what leaves each node.
	leaving []departures
	// settled is the version of the cluster for which no move was worth it.
	settled int
}

// nodeRating is what a node is worth as it is.
type nodeRating struct {
	version uint32 // of the node, plus 1: 0 is none
	idle    float64
	rooms   demand.Rooms
}

// placeRating is what a request would change on a node.
type placeRating struct {
	version uint32
	options []placeOption
}

type placeOption struct {
	gpus cluster.GPUSet
	// change is how many fewer GPUs are expected to stay idle, less what the model is sought after; gain
	// is that, less the price of what is left. Both are without the price of the rooms that are lost.
	change, gain float64
	lost         demand.Rooms
	// loses is whether any are.
	loses bool
}

func newSwitchyard(e Env) *switchyard {
	mix := packing.NewMix(e.Tasks, e.Catalog)
	weights := DefaultWeights
	if e.Cluster.Domain > 0 {
		// Without domains it would cost up to 0.3 points of what is allocated when demand is more than the cluster has.
		weights.Floor = demand.DomainFloor
	}
	return &switchyard{
		cluster:   e.Cluster,
		weights:   weights,
		estimator: packing.NewEstimator(e.Cluster, mix, packing.DefaultOptions, e.Streams),
		reserve:   packing.NewReserve(e.Cluster, mix),
		pressure:  mix.Pressure(e.Cluster),
		nodes:     make([]nodeRating, len(e.Cluster.Nodes)),
		leaving:   make([]departures, len(e.Cluster.Nodes)),
		settled:   -1,
	}
}

// Choose implements Policy.
func (p *switchyard) Choose(r *cluster.Request) (cluster.Placement, bool) {
	p.refresh()
	idle := float64(p.cluster.Capacity-p.cluster.Used) / trace.Whole
	prices := p.reserve.Prices(&p.stock, idle, p.weights.Floor, p.weights.Scarce)
	ratings := p.ratingsOf(r)
	best, found := 0.0, false
	var chosen cluster.Placement
	for i := range ratings {
		for j := range p.optionsOf(ratings, i, r) {
			option := &ratings[i].options[j]
			score := option.gain
			if option.loses {
				score -= option.lost.Dot(&prices)
			}
			if !found || score > best || score == best && p.cluster.Nodes[i].Rank < p.cluster.Nodes[chosen.Node].Rank {
				best, found, chosen = score, true, cluster.Placement{Node: i, GPUs: option.gpus}
			}
		}
	}
	return chosen, found
}

// ratingsOf are the last ratings of a request by node.
func (p *switchyard) ratingsOf(r *cluster.Request) []placeRating {
	for len(p.rated) <= r.ID {
		p.rated = append(p.rated, nil)
	}
	if p.rated[r.ID] == nil {
		p.rated[r.ID] = make([]placeRating, len(p.cluster.Nodes))
	}
	return p.rated[r.ID]
}

// optionsOf rates a node anew if it changed.
func (p *switchyard) optionsOf(ratings []placeRating, node int, r *cluster.Request) []placeOption {
	n, rating := &p.cluster.Nodes[node], &ratings[node]
	if rating.version != n.Version+1 {
		rating.version = n.Version + 1
		rating.options = p.rate(rating.options[:0], node, r)
	}
	return rating.options
}

// refresh rates the nodes that changed.
func (p *switchyard) refresh() {
	for i := range p.nodes {
		n, rating := &p.cluster.Nodes[i], &p.nodes[i]
		if rating.version == n.Version+1 {
			continue
		}
		rooms := p.reserve.Rooms(&n.State)
		p.stock.Change(&rating.rooms, &rooms)
		*rating = nodeRating{version: n.Version + 1, idle: p.estimator.Idle(n.State), rooms: rooms}
	}
}

// rate rates the choices of GPUs of a node, none if the request does not fit.
func (p *switchyard) rate(options []placeOption, node int, r *cluster.Request) []placeOption {
	n, before := &p.cluster.Nodes[node], &p.nodes[node]
	if !p.cluster.Fits(&n.State, r) {
		return options
	}
	var sets [trace.MaxGPUs]cluster.GPUSet
	for _, gpus := range p.cluster.Options(sets[:0], &n.State, r) {
		after := n.After(r, gpus)
		option := placeOption{gpus: gpus, change: before.idle - p.estimator.Idle(after) - p.pressureOf(n, r)}
		option.gain = option.change - p.weights.Left*float64(after.Idle())/(8*trace.Whole)
		rooms := p.reserve.Rooms(&after)
		for group := range rooms {
			option.lost[group] = before.rooms[group] - rooms[group]
			option.loses = option.loses || option.lost[group] != 0
		}
		options = append(options, option)
	}
	return options
}

// pressureOf is the price of the node's GPU model for a request.
func (p *switchyard) pressureOf(n *cluster.Node, r *cluster.Request) float64 {
	if r.GPUs == 0 {
		return 0
	}
	return p.weights.Pressure * p.pressure[p.cluster.Shapes[n.Shape].Model] * float64(r.Demand()) / trace.Whole
}
