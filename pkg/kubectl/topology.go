// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func newTopology(c connection) *cobra.Command {
	o := output{}
	cmd := &cobra.Command{
		Use:   "topology [NODE]",
		Short: "Show the NVSwitch domains of nodes, which GPUs are free, and who has the others",
		Long: `Show the NVSwitch domains of nodes, which GPUs are free, and who has the others.

With the name of a node also how its GPUs are connected, as nvidia-smi topo -m shows it. What is known is what the
node plugin publishes in ResourceSlices; nothing runs on the node.

  □ free   ■ in use   ▣ reserved for a gang   ◫ for shares, none taken yet   ✕ tainted, and so not for new claims`,
		Example: `  kubectl switchyard topology
  kubectl switchyard topology node-b
  kubectl switchyard topology node-b -o json`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: completeNodes(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return o.topology(cmd.Context(), c, cmd.OutOrStdout(), args)
		},
	}
	c.addFlags(cmd)
	o.addFlags(cmd)
	return cmd
}

// topologyView is what topology prints.
type topologyView struct {
	Nodes []nodeView `json:"nodes"`
}

func (o *output) topology(ctx context.Context, c connection, out io.Writer, args []string) error {
	s, err := read(ctx, c, "", deviceKinds...)
	if err != nil {
		return err
	}
	nodes, err := s.devices()
	if err != nil {
		return err
	}
	if len(args) > 0 {
		node, err := nodeNamed(nodes, args[0])
		if err != nil {
			return err
		}
		node.Links = links(node.GPUs)
		nodes = []nodeView{node}
	}
	return o.show(out, topologyView{nodes}, func(out io.Writer) error {
		for i, n := range nodes {
			if i > 0 && o.wide() {
				if _, err := fmt.Fprintln(out); err != nil {
					return err
				}
			}
			if err := o.node(out, n); err != nil {
				return err
			}
		}
		return nil
	})
}

// node prints a node.
func (o *output) node(out io.Writer, n nodeView) error {
	if _, err := lipgloss.Fprint(out, picture(n)); err != nil {
		return err
	}
	if n.Links != nil {
		if _, err := lipgloss.Fprint(out, "\n"+matrix(n, !o.noHeaders)); err != nil {
			return err
		}
	}
	if !o.wide() {
		return nil
	}
	table := &metav1.Table{ColumnDefinitions: columns("GPU", "Device", "UUID", "PCI", "State", "Holder", "Reserved For", "Taints")}
	for _, g := range n.GPUs {
		var holders []string
		for _, h := range g.Holders {
			holders = append(holders, h.text())
		}
		row(table, g.Index, g.Device, orDash(g.UUID), orDash(g.PCIBusID), g.State, orDash(strings.Join(holders, ",")), orDash(g.ReservedFor), orDash(strings.Join(g.Taints, ",")))
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return o.table(out, table)
}

func orDash(text string) string { return cmp.Or(text, "-") }

var (
	bold   = lipgloss.NewStyle().Bold(true)
	faint  = lipgloss.NewStyle().Faint(true)
	yellow = lipgloss.NewStyle().Foreground(lipgloss.Yellow)
	cyan   = lipgloss.NewStyle().Foreground(lipgloss.Cyan)
	red    = lipgloss.NewStyle().Foreground(lipgloss.Red)
)

// paint renders text in a style, unless NO_COLOR is set (no-color.org): then not even where colours are forced.
func paint(style lipgloss.Style, text string) string {
	if os.Getenv("NO_COLOR") != "" {
		return text
	}
	return style.Render(text)
}

// symbol is a GPU in the picture.
func (g *gpuView) symbol() string {
	switch g.State {
	case stateInUse:
		return paint(yellow, "■")
	case stateReserved:
		return paint(cyan, "▣")
	case stateTainted:
		return paint(red, "✕")
	case stateShared:
		return paint(cyan, "◫")
	default:
		return paint(faint, "□")
	}
}

// picture draws the node: a line for itself and one for each domain.
func picture(n nodeView) string {
	var b strings.Builder
	about := []string{paint(bold, n.Name), plainLine(products(n.GPUs))}
	if n.DriverVersion != "" {
		about = append(about, "driver "+n.DriverVersion)
	}
	if text := nvlinks(n.GPUs); text != "" {
		about = append(about, text)
	}
	if n.Updating {
		about = append(about, paint(red, "slices are being updated: nothing is allocated meanwhile"))
	}
	b.WriteString(strings.Join(about, "   ") + "\n")
	nameWidth, gpuWidth, rangeWidth, numaWidth := 0, 0, 0, 0
	for _, d := range n.Domains {
		nameWidth = max(nameWidth, len(d.title()))
		gpuWidth = max(gpuWidth, len(d.GPUs))
		rangeWidth = max(rangeWidth, len(ranges(d.GPUs)))
		numaWidth = max(numaWidth, len(ranges(d.NUMANodes)))
	}
	for _, d := range n.Domains {
		symbols := make([]string, gpuWidth)
		for i := range symbols {
			symbols[i] = " "
			if i < len(d.list) {
				symbols[i] = d.list[i].symbol()
			}
		}
		line := fmt.Sprintf("  %-*s  %s   GPU %-*s   NUMA %-*s   %d of %d free", nameWidth, d.title(), strings.Join(symbols, " "),
			rangeWidth, ranges(d.GPUs), numaWidth, orDash(ranges(d.NUMANodes)), d.Free, len(d.GPUs))
		if notes := d.notes(); notes != "" {
			line += "   (" + notes + ")"
		}
		b.WriteString(line + "\n")
	}
	return b.String()
}

func (d domainView) title() string { return cmp.Or(plainLine(d.Name), "no domain") }

// products counts GPUs by product.
func products(gpus []gpuView) string {
	count := map[string]int{}
	var names []string
	for _, g := range gpus {
		name := cmp.Or(g.Product, "GPU")
		if count[name]++; count[name] == 1 {
			names = append(names, name)
		}
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%d × %s", count[name], name)
	}
	return strings.Join(names, ", ")
}

// nvlinks says how many NVLinks the GPUs have, where all have as many.
func nvlinks(gpus []gpuView) string {
	for _, g := range gpus {
		if g.NVLinks != gpus[0].NVLinks {
			return ""
		}
	}
	if gpus[0].NVLinks == 0 {
		return "no NVLink"
	}
	return fmt.Sprintf("NVLink %d per GPU", gpus[0].NVLinks)
}

// notes says who has the GPUs that are not free, and what else is with them.
func (d domainView) notes() string {
	var texts []string
	indexes := map[string][]int64{}
	for _, g := range d.list {
		var about []string
		for _, h := range g.Holders {
			about = append(about, h.text())
		}
		if g.ReservedFor != "" && g.State != stateInUse {
			about = append(about, "reserved for "+g.ReservedFor)
		}
		for _, t := range g.Taints {
			about = append(about, "taint "+t)
		}
		if g.Domain != d.Name {
			about = append(about, "not in the domain any more")
		}
		if len(about) == 0 {
			continue
		}
		text := strings.Join(about, ", ")
		if indexes[text] == nil {
			texts = append(texts, text)
		}
		indexes[text] = append(indexes[text], g.Index)
	}
	for i, text := range texts {
		texts[i] = ranges(indexes[text]) + ": " + text
	}
	return strings.Join(texts, "  ")
}

// text names who has the GPU: the pods, or the claim where there are none.
func (h holderView) text() string {
	text := "claim " + h.Claim
	if len(h.Pods) > 0 {
		text = strings.Join(h.Pods, "+")
	}
	if h.Partition != "" {
		text += " " + h.Partition
	}
	if h.Memory != "" {
		text += " share of " + h.Memory
	}
	return text
}

// ranges writes numbers in short: 0-3,6.
func ranges(numbers []int64) string {
	sorted := slices.Sorted(slices.Values(numbers))
	var parts []string
	for i := 0; i < len(sorted); {
		last := i
		for last+1 < len(sorted) && sorted[last+1] == sorted[last]+1 {
			last++
		}
		part := strconv.FormatInt(sorted[i], 10)
		if last > i {
			part += "-" + strconv.FormatInt(sorted[last], 10)
		}
		parts = append(parts, part)
		i = last + 1
	}
	return strings.Join(parts, ",")
}
