// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// gangsOptions are the flags of gangs.
type gangsOptions struct {
	output
	allNamespaces bool
}

func newGangs(c connection) *cobra.Command {
	o := gangsOptions{}
	cmd := &cobra.Command{
		Use:   "gangs",
		Short: "List gangs: which run, which wait, and for how long",
		Example: `  kubectl switchyard gangs -A
  kubectl switchyard gangs -n ml -o wide   # and why they wait`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return o.run(cmd.Context(), c, cmd.OutOrStdout(), cmd.ErrOrStderr())
		},
	}
	cmd.Flags().BoolVarP(&o.allNamespaces, "all-namespaces", "A", false, "List the gangs of all namespaces.")
	c.addFlags(cmd)
	o.addFlags(cmd)
	return cmd
}

// gangsView is what gangs prints.
type gangsView struct {
	Gangs []gangView `json:"gangs"`
}

// gangView is a gang. Field names are documented in docs/reference/kubectl.md.
type gangView struct {
	Namespace        string       `json:"namespace"`
	Name             string       `json:"name"`
	Members          int32        `json:"members"`
	DevicesPerMember int32        `json:"devicesPerMember"`
	Ready            string       `json:"ready,omitempty"`
	Domains          []string     `json:"domains,omitempty"`
	Status           string       `json:"status,omitempty"`
	Reason           string       `json:"reason,omitempty"`
	Message          string       `json:"message,omitempty"`
	Defragmentation  string       `json:"defragmentation,omitempty"`
	WaitingSince     *metav1.Time `json:"waitingSince,omitempty"`
	Created          metav1.Time  `json:"created"`

	// short is what a table has of the domains.
	short string
}

func newGangView(g *v1alpha1.GangClaim) gangView {
	v := gangView{
		Namespace: g.Namespace, Name: g.Name, Members: g.Spec.Members, DevicesPerMember: g.Spec.DevicesPerMember,
		Ready: g.Status.Ready, Defragmentation: string(g.Spec.Defragmentation), Created: g.CreationTimestamp,
	}
	if v.short = orDash(g.Status.Domains); v.short != "-" && g.Status.Plan != nil {
		v.Domains = places(g.Status.Plan) // status.domains names a few only
	}
	if running := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionRunning); running != nil {
		v.Status, v.Message = running.Reason, running.Message
	}
	if planned := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionPlanned); planned != nil {
		v.Reason, v.Message = planned.Reason, planned.Message
	}
	if since := g.Status.WaitingSince; since != nil {
		v.WaitingSince = &metav1.Time{Time: since.Time}
	}
	return v
}

func (o *gangsOptions) run(ctx context.Context, c connection, out, errs io.Writer) error {
	namespace := ""
	if !o.allNamespaces {
		var err error
		if namespace, err = c.namespace(); err != nil {
			return err
		}
	}
	s, err := read(ctx, c, namespace, gangKind)
	if err != nil {
		return err
	}
	view := gangsView{Gangs: []gangView{}}
	for _, g := range s.gangs {
		view.Gangs = append(view.Gangs, newGangView(g))
	}
	slices.SortFunc(view.Gangs, func(a, b gangView) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
	return o.show(out, view, func(out io.Writer) error {
		if len(view.Gangs) == 0 {
			where := "in any namespace"
			if namespace != "" {
				where = fmt.Sprintf("in namespace %s; -A looks in all", namespace)
			}
			_, err := fmt.Fprintln(errs, "No GangClaims "+where+".")
			return err
		}
		return o.table(out, o.list(view.Gangs, s.now))
	})
}

func (o *gangsOptions) list(gangs []gangView, now time.Time) *metav1.Table {
	table := &metav1.Table{ColumnDefinitions: columns("Name", "Members", "Per Member", "Ready", "Domains", "Status", "Age", "+Waiting", "+Reason", "+Message")}
	if o.allNamespaces {
		table.ColumnDefinitions = append(columns("Namespace"), table.ColumnDefinitions...)
	}
	for _, g := range gangs {
		waiting := "-"
		if g.WaitingSince != nil {
			waiting = age(now, *g.WaitingSince)
		}
		cells := []any{
			g.Name, g.Members, g.DevicesPerMember, orDash(g.Ready), g.short, cmp.Or(g.Status, "Unknown"),
			age(now, g.Created), waiting, orDash(g.Reason), orDash(g.Message),
		}
		if o.allNamespaces {
			cells = append([]any{g.Namespace}, cells...)
		}
		row(table, cells...)
	}
	return table
}

// age is how long ago something was, as kubectl writes it.
func age(now time.Time, then metav1.Time) string {
	if then.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(now.Sub(then.Time))
}
