// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

func newDefrag(c connection) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "defrag",
		Short: "See which pods would have to move to make room for a gang, or are worth moving",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return errors.New("name a subcommand: plan")
		},
	}
	cmd.AddCommand(newDefragPlan(c))
	return cmd
}

// defragOptions are the flags of defrag plan.
type defragOptions struct {
	output
	gang   string
	limits defrag.Limits
	mix    mixOptions
}

func newDefragPlan(c connection) *cobra.Command {
	o := defragOptions{limits: defrag.DefaultLimits()}
	cmd := &cobra.Command{
		Use:   "plan [--gang [NAMESPACE/]NAME]",
		Short: "Show the cheapest moves after which a gang fits, or those that are worth most, and evict nothing",
		Long: `Show the cheapest moves after which a gang fits, and evict nothing. Without --gang, show what background consolidation
would do: the moves that make a domain whole and raise the number of runnable gangs most for each eviction, of pods with
the label switchyard.dev/movable=true only. Gangs of the sizes that are asked for count for more. Which these are is seen from the
claims and gangs that there are; the controller also knows those that are gone since it runs.

The planner is that of the controller, on the objects as they are now, whatever the gang's spec.defragmentation is. Its
limits are those that the controller has by default: name them here, too, if yours has others.`,
		Example: `  kubectl switchyard defrag plan --gang ml/llama-tp4
  kubectl switchyard defrag plan --gang llama-tp4 -n ml -o wide   # and which pods are left alone, and why
  kubectl switchyard defrag plan   # what is worth moving while no gang waits`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			if o.gang == "" && !cmd.Flags().Changed("gang") {
				if !cmd.Flags().Changed("max-moves") {
					o.limits.Moves = defrag.DefaultConsolidationMoves
				}
				return o.consolidate(cmd.Context(), c, cmd.OutOrStdout())
			}
			return o.run(cmd.Context(), c, cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&o.gang, "gang", "", "The GangClaim, as NAMESPACE/NAME or NAME. Without it: what is worth moving while no gang waits.")
	flags.IntVar(&o.limits.Moves, "max-moves", o.limits.Moves, fmt.Sprintf("How many pods are moved, at most; the controller's --defrag-max-moves. Without --gang: its --consolidation-max-moves, %d by default.", defrag.DefaultConsolidationMoves))
	flags.DurationVar(&o.limits.GracePeriod, "max-grace-period", o.limits.GracePeriod, "Pods that may take longer to end are not moved; the controller's --defrag-max-grace-period.")
	flags.IntVar(&o.limits.PerNamespaceHour, "namespace-evictions-per-hour", o.limits.PerNamespaceHour, "How many pods of a namespace may be evicted in an hour; the controller's --defrag-namespace-evictions-per-hour.")
	flags.DurationVar(&o.limits.Cooldown, "cooldown", o.limits.Cooldown, "How long a pod is left alone that came in place of an evicted one, and one that could not be evicted; the controller's --defrag-cooldown.")
	o.mix.addFlags(flags)
	if err := cmd.RegisterFlagCompletionFunc("gang", completeGangs(c)); err != nil {
		panic(err) // the flag does not exist
	}
	c.addFlags(cmd)
	o.addFlags(cmd)
	return cmd
}

func (o *defragOptions) validate() error {
	var errs []error
	if o.limits.Moves < 1 || o.limits.Moves > defrag.MaxMoves {
		errs = append(errs, fmt.Errorf("--max-moves %d is not between 1 and %d", o.limits.Moves, defrag.MaxMoves))
	}
	if o.limits.GracePeriod < 0 {
		errs = append(errs, fmt.Errorf("--max-grace-period %s is negative: use 0s or more", o.limits.GracePeriod))
	}
	if o.limits.PerNamespaceHour < 0 {
		errs = append(errs, fmt.Errorf("--namespace-evictions-per-hour %d is negative: use 0 or more", o.limits.PerNamespaceHour))
	}
	if o.limits.Cooldown < 0 {
		errs = append(errs, fmt.Errorf("--cooldown %s is negative: use 0s or more", o.limits.Cooldown))
	}
	return errors.Join(append(errs, o.mix.validate(), o.output.validate())...)
}

// defragView is what defrag plan prints. Field names are documented in docs/reference/kubectl.md.
type defragView struct {
	Gang string `json:"gang"`
	// Possible says that the gang fits after the moves.
	Possible bool           `json:"possible"`
	Reason   string         `json:"reason"`
	Message  string         `json:"message"`
	Domains  []string       `json:"domains,omitempty"`
	Cost     string         `json:"cost,omitempty"`
	Moves    []moveView     `json:"moves"`
	RuledOut []ruledOutView `json:"ruledOut,omitempty"`
}

// moveView is a pod that would be evicted, and where its replacement would fit.
type moveView struct {
	Pod                string      `json:"pod"`
	Claim              string      `json:"claim"`
	From               placeView   `json:"from"`
	To                 placeView   `json:"to"`
	Priority           int32       `json:"priority"`
	Created            metav1.Time `json:"created"`
	GracePeriodSeconds int64       `json:"gracePeriodSeconds,omitempty"`
	Budget             string      `json:"budget,omitempty"`
	DisruptionsAllowed *int32      `json:"disruptionsAllowed,omitempty"`
	Why                string      `json:"why"`
}

// placeView is a device.
type placeView struct {
	Node   string `json:"node"`
	Domain string `json:"domain,omitempty"`
	Device string `json:"device"`
	// Index is that of the GPU; absent for a partition of one.
	Index *int64 `json:"index,omitempty"`
}

func (p placeView) String() string {
	name := p.Device
	if p.Index != nil {
		name = fmt.Sprintf("GPU%d", *p.Index)
	}
	if p.Domain != "" {
		return p.Domain + "/" + name
	}
	return p.Node + "/" + name
}

// ruledOutView are pods that are left alone for one reason.
type ruledOutView struct {
	Reason  string `json:"reason"`
	Pods    int32  `json:"pods"`
	Example string `json:"example"`
}

func (o *defragOptions) run(ctx context.Context, c connection, out io.Writer) error {
	namespace, name, err := splitName(c, "--gang", o.gang)
	if err != nil {
		return err
	}
	s, err := read(ctx, c, "", planKinds...)
	if err != nil {
		return err
	}
	g, err := s.gangNamed(namespace, name)
	if err != nil {
		return err
	}
	a, err := s.plan(ctx, g, o.limits, c.clock())
	if err != nil {
		return err
	}
	view := s.defragView(g, a)
	return o.show(out, view, func(out io.Writer) error { return o.text(out, s, view) })
}

// splitName reads NAMESPACE/NAME or, in the namespace of the flags or the context, NAME.
func splitName(c connection, what, text string) (namespace, name string, err error) {
	namespace, name, both := strings.Cut(text, "/")
	if !both {
		name = namespace
		if namespace, err = c.namespace(); err != nil {
			return "", "", err
		}
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%s %q is no name: use NAME or NAMESPACE/NAME", what, text)
	}
	return namespace, name, nil
}

func (s *snapshot) gangNamed(namespace, name string) (*v1alpha1.GangClaim, error) {
	if g, there := find(s.gangs, namespace, name); there {
		return g, nil
	}
	var names []string
	for _, g := range s.gangs {
		names = append(names, keyOf(g).String())
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("GangClaim %s/%s does not exist, and no other does", namespace, name)
	}
	slices.Sort(names)
	return nil, fmt.Errorf("GangClaim %s/%s does not exist: there are %s", namespace, name, few(names))
}

func (s *snapshot) defragView(g *v1alpha1.GangClaim, a answer) defragView {
	v := defragView{Gang: keyOf(g).String(), Reason: a.reason, Message: a.message, Moves: []moveView{}}
	if a.room == nil {
		return v
	}
	v.Possible, v.Reason, v.Message = defrag.Found(a.room.Reason), a.room.Reason, a.room.Message
	v.Domains, v.Cost = a.room.Domains, a.room.Cost
	for _, r := range a.room.RuledOut {
		v.RuledOut = append(v.RuledOut, ruledOutView(r))
	}
	v.Moves = append(v.Moves, s.moveViews(a.room.Moves)...)
	return v
}

func (s *snapshot) moveViews(moves []v1alpha1.GangMove) []moveView {
	list := []moveView{}
	place := func(p v1alpha1.GangMovePlace) placeView {
		return placeView{Node: p.Node, Domain: p.Domain, Device: p.Device, Index: s.indexOf(p.Pool, p.Device)}
	}
	for _, m := range moves {
		view := moveView{
			Pod: m.Namespace + "/" + m.Pod, Claim: m.Namespace + "/" + m.Claim,
			From: place(m.From), To: place(m.To), GracePeriodSeconds: m.GracePeriodSeconds, Why: m.Why,
		}
		if pod, there := find(s.pods, m.Namespace, m.Pod); there {
			view.Priority, view.Created = ptr.Deref(pod.Spec.Priority, 0), pod.CreationTimestamp
			view.Budget, view.DisruptionsAllowed = s.budgetOf(pod)
		}
		list = append(list, view)
	}
	return list
}

// indexOf is the index of a GPU by its device; nil for what is no GPU.
func (s *snapshot) indexOf(pool, device string) *int64 { return s.place(pool, device).Index }

// place is a published device, as the newest slice that has it says.
func (s *snapshot) place(pool, device string) placeView {
	v, newest := placeView{Node: pool, Device: device}, int64(-1)
	for _, slice := range s.slices {
		if slice.Spec.Driver != v1alpha1.DriverName || slice.Spec.Pool.Name != pool || slice.Spec.Pool.Generation <= newest {
			continue
		}
		for _, d := range slice.Spec.Devices {
			if d.Name == device {
				newest = slice.Spec.Pool.Generation
				v.Node, v.Domain, v.Index = ptr.Deref(slice.Spec.NodeName, pool), stringOf(d, resourcemodel.AttributeNVSwitchDomain), d.Attributes[resourcemodel.AttributeIndex].IntValue
			}
		}
	}
	return v
}

// budgetOf is the PodDisruptionBudget of a pod, and what it allows; a pod in several is not moved.
func (s *snapshot) budgetOf(pod *corev1.Pod) (name string, allowed *int32) {
	for _, b := range s.budgets {
		selector, err := metav1.LabelSelectorAsSelector(b.Spec.Selector)
		if err == nil && b.Namespace == pod.Namespace && selector.Matches(labels.Set(pod.Labels)) {
			return b.Name, &b.Status.DisruptionsAllowed
		}
	}
	return "", nil
}

func (o *defragOptions) text(out io.Writer, s *snapshot, v defragView) error {
	return o.movesText(out, s, v.Moves, v.summary(), v.RuledOut)
}

// movesText shows moves, a line about them and, where wide, who is left alone.
func (o *defragOptions) movesText(out io.Writer, s *snapshot, moves []moveView, summary string, ruledOut []ruledOutView) error {
	if len(moves) > 0 {
		table := &metav1.Table{ColumnDefinitions: columns("Evict", "From", "Fits", "Priority", "Age", "Budget", "+Grace Period", "+Why")}
		for _, m := range moves {
			budget := "-"
			if m.DisruptionsAllowed != nil {
				budget = fmt.Sprintf("%s allows %d", m.Budget, *m.DisruptionsAllowed)
			}
			row(table, m.Pod, m.From.String(), m.To.String(), m.Priority, age(s.now, m.Created), budget, fmt.Sprintf("%ds", m.GracePeriodSeconds), m.Why)
		}
		if err := o.table(out, table); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintln(out, plain(summary)); err != nil {
		return err
	}
	if !o.wide() || len(ruledOut) == 0 {
		return nil
	}
	table := &metav1.Table{ColumnDefinitions: columns("Left Alone", "Pods", "Example")}
	for _, r := range ruledOut {
		row(table, r.Reason, r.Pods, r.Example)
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return o.table(out, table)
}

// summary is the line below the moves.
func (v defragView) summary() string {
	if !v.Possible {
		return fmt.Sprintf("gang %s: no moves. %s: %s", v.Gang, v.Reason, v.Message)
	}
	text := fmt.Sprintf("gang %s then gets %s", v.Gang, plainLine(few(v.Domains)))
	if v.Cost != "" {
		text += "   cost: " + v.Cost
	}
	return text
}
