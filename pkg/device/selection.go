// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Selection says which GPUs of a node something is for. The zero value is for all.
type Selection struct {
	none   bool
	only   []string
	except []Selection
}

// The words for all GPUs and for none.
const (
	selectAll  = "all"
	selectNone = "none"
)

// ParseSelection reads "all", "none" or a list such as "0,3,GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c" of
// indexes and UUIDs.
func ParseSelection(text string) (Selection, error) {
	switch text {
	case selectAll:
		return Selection{}, nil
	case selectNone:
		return Selection{none: true}, nil
	}
	var s Selection
	for entry := range strings.SplitSeq(text, ",") {
		entry = strings.TrimSpace(entry)
		index, err := strconv.Atoi(entry)
		switch {
		case entry == "":
			return Selection{}, errors.New(`is empty, or has an empty entry: use "all", "none", or indexes and UUIDs separated by commas`)
		case err == nil && index < 0, err != nil && !v1alpha1.IsGPUUUID(entry):
			return Selection{}, fmt.Errorf(`%q is neither the index nor the UUID of a GPU (nvidia-smi -L), nor "all" or "none"`, entry)
		case err == nil:
			entry = strconv.Itoa(index) // "00" is 0
		}
		s.only = append(s.only, entry)
	}
	return s, nil
}

// Selects reports whether the GPU is one of the selected ones.
func (s Selection) Selects(g GPU) bool {
	if slices.ContainsFunc(s.except, func(other Selection) bool { return other.Selects(g) }) {
		return false
	}
	if s.none || len(s.only) == 0 {
		return !s.none
	}
	return slices.ContainsFunc(s.only, func(entry string) bool {
		return entry == strconv.Itoa(g.Index) || strings.EqualFold(entry, g.UUID)
	})
}

// Except returns the selection without what another selects.
func (s Selection) Except(other Selection) Selection {
	s.except = append(slices.Clone(s.except), other)
	return s
}

// String is what ParseSelection reads, but for a selection with exceptions, which is for people.
func (s Selection) String() string {
	switch {
	case len(s.except) > 0:
		names := make([]string, len(s.except))
		for i, other := range s.except {
			names[i] = other.String()
		}
		s.except = nil
		return s.String() + " except " + strings.Join(names, ",")
	case s.none:
		return selectNone
	case len(s.only) == 0:
		return selectAll
	default:
		return strings.Join(s.only, ",")
	}
}
