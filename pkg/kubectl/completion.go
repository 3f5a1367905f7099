// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"
)

// completionTimeout bounds how long a shell waits for names.
const completionTimeout = 3 * time.Second

// completion is what cobra asks for the values of an argument or flag.
type completion = func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective)

// completeNames offers names of the cluster for the first argument, or for a flag. Without an answer it offers none.
func completeNames(names func(ctx context.Context) ([]string, error)) completion {
	return func(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		ctx, cancel := context.WithTimeout(cmd.Context(), completionTimeout)
		defer cancel()
		list, err := names(ctx)
		if err != nil {
			cobra.CompDebugln(err.Error(), false)
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		slices.Sort(list)
		return slices.DeleteFunc(list, func(name string) bool { return slices.Contains(args, name) }), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeNodes offers the nodes that have GPUs.
func completeNodes(c connection) completion {
	names := completeNames(func(ctx context.Context) ([]string, error) {
		s, err := read(ctx, c, "", sliceKind)
		if err != nil {
			return nil, err
		}
		nodes, err := s.devices()
		var names []string
		for _, n := range nodes {
			names = append(names, n.Name)
		}
		return names, err
	})
	return func(cmd *cobra.Command, args []string, toComplete string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return names(cmd, args, toComplete)
	}
}

// completeGangs offers gangs as NAMESPACE/NAME.
func completeGangs(c connection) completion {
	return completeNames(func(ctx context.Context) ([]string, error) {
		s, err := read(ctx, c, "", gangKind)
		if err != nil {
			return nil, err
		}
		var names []string
		for _, g := range s.gangs {
			names = append(names, keyOf(g).String())
		}
		return names, nil
	})
}
