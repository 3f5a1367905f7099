// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"io"
	"strings"

	"charm.land/lipgloss/v2"
	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
)

// Kinds that can be explained.
const (
	kindGang  = "gang"
	kindPod   = "pod"
	kindClaim = "claim"
)

// shortNames are other words for the kinds, as kubectl knows them.
var shortNames = map[string]string{
	kindGang: kindGang, "gangs": kindGang, "gangclaim": kindGang, "gangclaims": kindGang,
	kindPod: kindPod, "pods": kindPod, "po": kindPod,
	kindClaim: kindClaim, "claims": kindClaim, "resourceclaim": kindClaim, "resourceclaims": kindClaim,
}

func newExplain(c connection) *cobra.Command {
	o := output{}
	cmd := &cobra.Command{
		Use:   "explain gang|pod|claim NAME",
		Short: "Say in a few lines why something waits for GPUs, where the best place is, and what would help",
		Long: `Say in a few lines why something waits for GPUs, where the best place is, and what would help.

The planner is that of the controller, on the objects as they are now. For a pod or a ResourceClaim without a gang it
says where kube-scheduler would find the devices; it understands claims with one request for a number of devices, and
at most one matchAttribute.`,
		Example: `  kubectl switchyard explain gang llama-tp4 -n ml
  kubectl switchyard explain pod ml/train-0
  kubectl switchyard explain claim train-0-gpus -n ml -o json`,
		Args:              explainArgs,
		ValidArgsFunction: completeExplain(c),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.validate(); err != nil {
				return err
			}
			return o.explain(cmd.Context(), c, cmd.OutOrStdout(), args[0], args[1])
		},
	}
	c.addFlags(cmd)
	o.addFlags(cmd)
	return cmd
}

// explainArgs wants a kind and a name.
func explainArgs(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("it takes a kind and a name: %s gang|pod|claim [NAMESPACE/]NAME", cmd.CommandPath())
	}
	return nil
}

// explanation is what explain prints. Field names are documented in docs/reference/kubectl.md.
type explanation struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
	// State is where it stands in one word; Reason is why, where it waits.
	State  string `json:"state"`
	Reason string `json:"reason,omitempty"`
	// Message says what is missing, and where the best place is.
	Message string `json:"message,omitempty"`
	// Help says what would help.
	Help string `json:"help,omitempty"`
	// Scheduler is what kube-scheduler says.
	Scheduler string `json:"scheduler,omitempty"`
	// Blocking are pods that have devices of the next best place.
	Blocking []string `json:"blocking,omitempty"`
	// Claims are those of the pod, or the claim itself.
	Claims []claimView `json:"claims,omitempty"`
}

// claimView is a claim of a pod.
type claimView struct {
	// Request is its name in the pod, Claim that of the ResourceClaim.
	Request string      `json:"request,omitempty"`
	Claim   string      `json:"claim,omitempty"`
	State   string      `json:"state"`
	Message string      `json:"message,omitempty"`
	Devices []placeView `json:"devices,omitempty"`
}

func (o *output) explain(ctx context.Context, c connection, out io.Writer, word, text string) error {
	kind, known := shortNames[strings.ToLower(word)]
	if !known {
		return fmt.Errorf("%q cannot be explained: use gang, pod or claim", word)
	}
	namespace, name, err := splitName(c, kind, text)
	if err != nil {
		return err
	}
	s, err := read(ctx, c, "", explainKinds...)
	if err != nil {
		return err
	}
	x := explainer{snapshot: s, connection: c}
	var e explanation
	switch kind {
	case kindGang:
		e, err = x.gang(ctx, namespace, name)
	case kindPod:
		e, err = x.pod(ctx, namespace, name)
	default:
		e, err = x.claim(ctx, namespace, name)
	}
	if err != nil {
		return err
	}
	return o.show(out, e, func(out io.Writer) error { return o.explained(out, e) })
}

func (o *output) explained(out io.Writer, e explanation) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s: %s\n", e.Kind, paint(bold, e.Namespace+"/"+e.Name), e.State)
	for _, line := range []struct{ title, text string }{{"", e.Message}, {"Help: ", e.Help}, {"kube-scheduler: ", e.Scheduler}} {
		if line.text != "" {
			fmt.Fprintf(&b, "  %s%s\n", line.title, strings.ReplaceAll(plain(line.text), "\n", "\n  ")) // a CEL error has lines
		}
	}
	if _, err := lipgloss.Fprint(out, b.String()); err != nil {
		return err
	}
	if !o.wide() || len(e.Claims) == 0 {
		return nil
	}
	table := &metav1.Table{ColumnDefinitions: columns("Request", "Claim", "State", "Devices", "Message")}
	for _, c := range e.Claims {
		var devices []string
		for _, d := range c.Devices {
			devices = append(devices, d.String())
		}
		row(table, orDash(c.Request), orDash(c.Claim), c.State, orDash(strings.Join(devices, ",")), orDash(c.Message))
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	return o.table(out, table)
}

// explainer explains objects of a snapshot.
type explainer struct {
	*snapshot

	connection connection
}

// gang explains a GangClaim.
func (x *explainer) gang(ctx context.Context, namespace, name string) (explanation, error) {
	g, err := x.gangNamed(namespace, name)
	if err != nil {
		return explanation{}, err
	}
	a, err := x.plan(ctx, g, defrag.DefaultLimits(), x.connection.clock())
	if err != nil {
		return explanation{}, err
	}
	e := explanation{Kind: kindGang, Namespace: namespace, Name: name, State: "Unknown", Reason: a.reason, Message: a.message}
	if running := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.ConditionRunning); running != nil {
		e.State = running.Reason
	}
	for _, pod := range a.blocking {
		e.Blocking = append(e.Blocking, pod.String())
	}
	e.Help = x.helpForGang(g, a)
	return e, nil
}

// helpForGang says what would help a gang.
func (x *explainer) helpForGang(g *v1alpha1.GangClaim, a answer) string {
	switch {
	case a.reason == reasonHasPlan:
		return ""
	case a.reason == reasonHasPlace:
		return "if it stays like this, see whether switchyard-controller runs: kubectl get leases -A"
	case a.room == nil:
		return ""
	case !defrag.Found(a.room.Reason):
		return "moving pods does not: " + a.room.Message
	}
	var moves []string
	for _, m := range x.defragView(g, a).Moves {
		moves = append(moves, fmt.Sprintf("%s (%s → %s)", m.Pod, m.From, m.To))
	}
	text := fmt.Sprintf("evict %s; the gang then gets %s. ", few(moves), few(a.room.Domains))
	if g.Spec.Defragmentation == v1alpha1.DefragmentationEvict {
		return text + "The controller does so, within its limits; status.defragmentation says when"
	}
	return text + "spec.defragmentation: Evict has it done"
}

// completeExplain offers the kinds, and then the names.
func completeExplain(c connection) completion {
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		switch len(args) {
		case 0:
			return []string{kindGang, kindPod, kindClaim}, cobra.ShellCompDirectiveNoFileComp
		case 1:
			wanted, names := kind{}, func(*snapshot) (names []string) { return nil }
			switch shortNames[strings.ToLower(args[0])] {
			case kindGang:
				wanted, names = gangKind, func(s *snapshot) []string { return namesOf(s.gangs) }
			case kindPod:
				wanted, names = podKind, func(s *snapshot) []string { return namesOf(s.pods) }
			case kindClaim:
				wanted, names = claimKind, func(s *snapshot) []string { return namesOf(s.claims) }
			default:
				return nil, cobra.ShellCompDirectiveNoFileComp
			}
			return completeNames(func(ctx context.Context) ([]string, error) {
				namespace, err := c.namespace()
				if err != nil {
					return nil, err
				}
				s, err := read(ctx, c, namespace, wanted)
				if err != nil {
					return nil, err
				}
				return names(s), nil
			})(cmd, nil, toComplete)
		default:
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
	}
}
