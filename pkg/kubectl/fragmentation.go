// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/pkg/demand"
	"github.com/switchyard-dev/switchyard/pkg/fragmentation"
)

// fragmentationOptions are the flags of fragmentation.
type fragmentationOptions struct {
	output
	sizes []int
	mix   mixOptions
}

// maxGangSize bounds --sizes: the GPUs that the largest gang can have, 256 members with 32 each.
const maxGangSize = 256 * 32

func newFragmentation(c connection) *cobra.Command {
	o := fragmentationOptions{}
	cmd := &cobra.Command{
		Use:   "fragmentation",
		Short: "Show how many gangs the free GPUs are good for, and how many they would be good for together",
		Long: `Show how many gangs the free GPUs are good for, and how many they would be good for together.

A gang of a size needs so many GPUs in one NVSwitch domain. RUNNABLE of them fit now; WITHOUT FRAGMENTATION, with
all free GPUs in one domain, more would; LOST is the part that does not fit because of that. Free are GPUs that no claim has,
no gang's plan reserves and no taint keeps from new claims. GPUs without a domain count as free only.

The last line says how many GPUs are wanted together, by the claims and gangs that there are, and what weight that has in
background consolidation; the rest is that gangs of 2, 4 and 8 are worth the same.

With -o wide also the part of the free GPUs that such gangs cannot use (UNUSABLE), and the same for each product and node.`,
		Example: `  kubectl switchyard fragmentation
  kubectl switchyard fragmentation --sizes 4,8,16 -o wide`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(cmd.Context(), c, cmd.OutOrStdout())
		},
	}
	cmd.Flags().IntSliceVar(&o.sizes, "sizes", fragmentation.Sizes(), "Numbers of GPUs that gangs need in one domain.")
	o.mix.addFlags(cmd.Flags())
	c.addFlags(cmd)
	o.addFlags(cmd)
	return cmd
}

func (o *fragmentationOptions) validate() error {
	if len(o.sizes) == 0 {
		return fmt.Errorf("--sizes is empty: name at least one number of GPUs, such as 4")
	}
	for _, size := range o.sizes {
		if size < 1 || size > maxGangSize {
			return fmt.Errorf("--sizes: %d is not between 1 and %d", size, maxGangSize)
		}
	}
	o.sizes = slices.Compact(slices.Sorted(slices.Values(o.sizes)))
	return errors.Join(o.mix.validate(), o.output.validate())
}

// fragmentationView is what fragmentation prints.
type fragmentationView struct {
	Cluster  levelView   `json:"cluster"`
	Products []levelView `json:"products"`
	Nodes    []levelView `json:"nodes"`
	Mix      mixView     `json:"mix"`
	// Updating are nodes whose GPUs are in no number above: not all slices of the newest generation are there.
	Updating []string `json:"updating,omitempty"`
}

// levelView are the measures of the cluster, a product or a node. Field names are documented in
// docs/reference/kubectl.md.
type levelView struct {
	Name              string     `json:"name,omitempty"`
	Total             int        `json:"total"`
	Free              int        `json:"free"`
	InUse             int        `json:"inUse"`
	FreeWithoutDomain int        `json:"freeWithoutDomain"`
	Domains           int        `json:"domains"`
	WholeDomains      int        `json:"wholeDomains"`
	BrokenDomains     int        `json:"brokenDomains"`
	FullDomains       int        `json:"fullDomains"`
	LargestFreeBlock  int        `json:"largestFreeBlock"`
	LargestFreeDomain string     `json:"largestFreeDomain,omitempty"`
	Gangs             []gangSize `json:"gangs"`
}

// gangSize says what the free GPUs are worth to gangs of a size.
type gangSize struct {
	Size                 int     `json:"size"`
	Runnable             int     `json:"runnable"`
	WithoutFragmentation int     `json:"withoutFragmentation"`
	Lost                 float64 `json:"lost"`
	Unusable             float64 `json:"unusable"`
}

func newLevelView(name string, m fragmentation.Measures) levelView {
	v := levelView{
		Name: name, Total: m.Total, Free: m.Free, InUse: m.InUse, FreeWithoutDomain: m.FreeWithoutDomain,
		Domains: m.Domains, WholeDomains: m.Whole, BrokenDomains: m.Broken, FullDomains: m.Full,
		LargestFreeBlock: m.LargestFreeBlock, LargestFreeDomain: m.LargestFreeDomain,
	}
	for _, g := range m.Gangs {
		v.Gangs = append(v.Gangs, gangSize{g.Size, g.Runnable, g.WithoutFragmentation, round(g.Lost()), round(g.Fragmentation)})
	}
	return v
}

func (o *fragmentationOptions) run(ctx context.Context, c connection, out io.Writer) error {
	s, err := read(ctx, c, "", demandKinds...)
	if err != nil {
		return err
	}
	nodes, err := s.devices()
	if err != nil {
		return err
	}
	cluster := s.cluster(false)
	domains := cluster.Domains()
	report := fragmentation.Measure(domains, o.sizes)
	mix := s.mix(o.mix, cluster.Products(), c.clock())
	view := fragmentationView{Cluster: newLevelView("", report.Cluster), Mix: newMixView(mix)}
	for _, name := range slices.Sorted(maps.Keys(report.Products)) {
		view.Products = append(view.Products, newLevelView(name, report.Products[name]))
	}
	for _, name := range slices.Sorted(maps.Keys(report.Nodes)) {
		view.Nodes = append(view.Nodes, newLevelView(name, report.Nodes[name]))
	}
	for _, n := range nodes {
		if n.Updating {
			view.Updating = append(view.Updating, n.Name)
		}
	}
	return o.show(out, view, func(out io.Writer) error { return o.text(out, view, mix) })
}

func (o *fragmentationOptions) text(out io.Writer, view fragmentationView, mix demand.Mix) error {
	table := &metav1.Table{ColumnDefinitions: columns("Gang Size", "Runnable", "Without Fragmentation", "Lost", "+Unusable")}
	for _, g := range view.Cluster.Gangs {
		row(table, g.Size, g.Runnable, g.WithoutFragmentation, percent(g.Lost), percent(g.Unusable))
	}
	if err := o.table(out, table); err != nil {
		return err
	}
	summary := view.Cluster.summary()
	if len(view.Updating) > 0 {
		summary += "\nnot counted, since their slices are being updated: " + few(view.Updating)
	}
	if _, err := fmt.Fprintf(out, "%s\n%s\n", plain(summary), mixText(mix)); err != nil {
		return err
	}
	if !o.wide() {
		return nil
	}
	for _, level := range []struct {
		title string
		rows  []levelView
	}{{"Product", view.Products}, {"Node", view.Nodes}} {
		table := &metav1.Table{ColumnDefinitions: columns(level.title, "Free", "GPUs", "Domains", "Whole", "Broken", "Full", "Largest Block")}
		for _, size := range o.sizes {
			table.ColumnDefinitions = append(table.ColumnDefinitions, columns(fmt.Sprintf("Gangs of %d", size))...)
		}
		for _, l := range level.rows {
			cells := []any{orDash(l.Name), l.Free, l.Total, l.Domains, l.WholeDomains, l.BrokenDomains, l.FullDomains, l.LargestFreeBlock}
			for _, g := range l.Gangs {
				cells = append(cells, g.Runnable)
			}
			row(table, cells...)
		}
		if _, err := fmt.Fprintln(out); err != nil {
			return err
		}
		if err := o.table(out, table); err != nil {
			return err
		}
	}
	return nil
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", 100*part) }

// summary is the line below the table.
func (l levelView) summary() string {
	text := fmt.Sprintf("free %d of %d GPUs", l.Free, l.Total)
	if other := l.Total - l.Free - l.InUse; other > 0 {
		text += fmt.Sprintf(" (%d more tainted, reserved or for shares)", other)
	}
	text += fmt.Sprintf("; whole domains %d of %d", l.WholeDomains, l.Domains)
	if l.LargestFreeBlock > 0 {
		text += fmt.Sprintf("; largest free block %d (%s)", l.LargestFreeBlock, plainLine(l.LargestFreeDomain))
	}
	if l.FreeWithoutDomain > 0 {
		text += fmt.Sprintf("; %d of the free in no domain", l.FreeWithoutDomain)
	}
	return text
}
