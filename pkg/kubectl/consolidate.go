// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/gang"
)

// consolidationView is what defrag plan prints without a gang. Field names are documented in docs/reference/kubectl.md.
type consolidationView struct {
	// Possible says that there is something worth moving.
	Possible bool   `json:"possible"`
	Reason   string `json:"reason"`
	Message  string `json:"message"`
	// Waiting are gangs that wait: consolidation does nothing until they have a place.
	Waiting  []string       `json:"waiting,omitempty"`
	Domain   string         `json:"domain,omitempty"`
	Gangs    []gainView     `json:"gangs,omitempty"`
	Cost     string         `json:"cost,omitempty"`
	Moves    []moveView     `json:"moves"`
	RuledOut []ruledOutView `json:"ruledOut,omitempty"`
	// Mix is what is asked for, by which gangs were weighed.
	Mix mixView `json:"mix"`
}

// gainView is how many gangs of a size are runnable before and after.
type gainView struct {
	Size   int `json:"size"`
	Before int `json:"before"`
	After  int `json:"after"`
}

func (o *defragOptions) consolidate(ctx context.Context, c connection, out io.Writer) error {
	s, err := read(ctx, c, "", planKinds...)
	if err != nil {
		return err
	}
	found, err := s.consolidation(ctx, o, c.clock())
	if err != nil {
		return err
	}
	view := consolidationView{
		Possible: found.Found(), Reason: found.Reason, Message: found.Message, Waiting: s.waiting(),
		Domain: found.Domain, Cost: found.Cost, Moves: s.moveViews(found.Moves), Mix: newMixView(found.Mix),
	}
	for _, g := range found.Gain {
		view.Gangs = append(view.Gangs, gainView(g))
	}
	for _, r := range found.RuledOut {
		view.RuledOut = append(view.RuledOut, ruledOutView(r))
	}
	return o.show(out, view, func(out io.Writer) error {
		return o.movesText(out, s, view.Moves, view.summary()+"\n"+mixText(found.Mix), view.RuledOut)
	})
}

// consolidation asks what is worth moving.
func (s *snapshot) consolidation(ctx context.Context, o *defragOptions, clk clock.PassiveClock) (*defrag.Consolidation, error) {
	maker := defrag.NewMaker(o.limits, clk)
	each(s.budgets, maker.SetBudget)
	each(s.gangs, maker.SetGang)
	cluster := s.cluster(true)
	mix := s.mix(o.mix, cluster.Products(), clk)
	for range planRounds {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("look for pods to move: %w", err)
		}
		if found := maker.Consolidate(ctx, cluster, o.limits.Moves, mix); found.Reason != defrag.ReasonPlanning {
			return found, nil
		}
	}
	return nil, fmt.Errorf("look for pods to move: their claims' selectors could not be evaluated on all devices in %d rounds: the controller has no answer either", planRounds)
}

// waiting are the gangs that wait for a place or are being started.
func (s *snapshot) waiting() []string {
	var names []string
	for _, g := range s.gangs {
		if _, waits := gang.Plannable(s.observe(g)); waits || gang.Starting(g) {
			names = append(names, keyOf(g).String())
		}
	}
	slices.Sort(names)
	return names
}

// summary is the line below the moves.
func (v consolidationView) summary() string {
	var text string
	if v.Possible {
		var gangs []string
		for _, g := range v.Gangs {
			gangs = append(gangs, fmt.Sprintf("%d: %d → %d", g.Size, g.Before, g.After))
		}
		text = fmt.Sprintf("domain %s is whole then   runnable gangs of %s   cost: %s", v.Domain, strings.Join(gangs, ", of "), v.Cost)
	} else {
		text = fmt.Sprintf("no moves. %s: %s", v.Reason, v.Message)
	}
	if len(v.Waiting) > 0 {
		text += fmt.Sprintf("\nnothing is moved for this while gangs wait or start: %s", few(v.Waiting))
	}
	return text
}
