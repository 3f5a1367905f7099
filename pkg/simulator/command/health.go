// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
)

func parseRecoveryAction(args []string) (change, error) {
	if !slices.Contains(simulator.RecoveryActions(), args[0]) {
		return nil, fmt.Errorf("recovery action %q is none of %q", args[0], simulator.RecoveryActions())
	}
	return func(node *simulator.Node, gpu int) error { return node.SetRecoveryAction(gpu, args[0]) }, nil
}

func parseECC(args []string) (change, error) {
	count, err := strconv.ParseUint(args[0], 10, 32)
	if err != nil {
		return nil, fmt.Errorf("count of errors %q must be a whole number from 0 to %d", args[0], uint32(math.MaxUint32))
	}
	return func(node *simulator.Node, gpu int) error { return node.AddECCErrors(gpu, count) }, nil
}

func parseRemap(args []string) (change, error) {
	words := []string{"none", "pending", "failure"}
	if !slices.Contains(words, args[0]) {
		return nil, fmt.Errorf("row remapping %q is none of %q", args[0], words)
	}
	return func(node *simulator.Node, gpu int) error {
		return node.SetRowRemap(gpu, args[0] == "pending", args[0] == "failure")
	}, nil
}

// faultsText is what a GPU says of its health, for people; empty for one that is well.
func faultsText(f simulator.Faults) string {
	var parts []string
	if f.RecoveryAction != 0 {
		name := fmt.Sprint(f.RecoveryAction)
		if names := simulator.RecoveryActions(); int(f.RecoveryAction) < len(names) {
			name = names[f.RecoveryAction]
		}
		parts = append(parts, "recovery action "+name)
	}
	if f.UncorrectableECC > 0 {
		parts = append(parts, fmt.Sprintf("%d uncorrected errors", f.UncorrectableECC))
	}
	if f.RowRemapPending {
		parts = append(parts, "row remapping pending")
	}
	if f.RowRemapFailure {
		parts = append(parts, "row remapping failed")
	}
	return strings.Join(parts, ", ")
}
