// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"reflect"
	"strings"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/health"
)

func TestParsePolicy(t *testing.T) {
	for name, test := range map[string]struct {
		effect string
		xids   map[string]string
		want   health.Policy
	}{
		"nothing said is the default":      {"", nil, health.Policy{}},
		"NoSchedule is the default":        {"NoSchedule", map[string]string{}, health.Policy{}},
		"NoExecute evicts":                 {"NoExecute", nil, health.Policy{EvictFatal: true}},
		"an XID may have any of 4 effects": {"", map[string]string{"31": "NoSchedule", "48": "NoExecute", "63": "Ignore", "94": "None"}, health.Policy{XIDs: map[uint64]health.Effect{31: health.NoSchedule, 48: health.NoExecute, 63: health.Ignore, 94: health.Inform}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := health.ParsePolicy(test.effect, test.xids)
			if err != nil || !reflect.DeepEqual(got, test.want) {
				t.Errorf("ParsePolicy = %+v, %v, want %+v", got, err, test.want)
			}
		})
	}
	for name, test := range map[string]struct {
		effect string
		xids   map[string]string
		want   []string
	}{
		"an effect that is none":             {"Evict", nil, []string{`"Evict"`, "NoSchedule", "NoExecute"}},
		"an effect that would hide lost GPU": {"None", nil, []string{`"None"`}},
		"a code of letters":                  {"", map[string]string{"ecc": "Ignore"}, []string{`XID "ecc"`}},
		"code 0":                             {"", map[string]string{"0": "Ignore"}, []string{`XID "0"`}},
		"every wrong entry is named":         {"", map[string]string{"48": "Kill", "79": ""}, []string{`XID 48: effect "Kill"`, `XID 79: effect ""`}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := health.ParsePolicy(test.effect, test.xids)
			if err == nil || !reflect.DeepEqual(got, health.Policy{}) {
				t.Fatalf("ParsePolicy = %+v, %v, want an error", got, err)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("the error %q does not say %q", err, part)
				}
			}
		})
	}
}

func TestEffectNames(t *testing.T) {
	for _, effect := range []health.Effect{health.Ignore, health.Inform, health.NoSchedule, health.NoExecute} {
		if got, err := health.ParseEffect(effect.String()); err != nil || got != effect {
			t.Errorf("ParseEffect(%q) = %v, %v", effect, got, err)
		}
	}
	if got := health.Effect(7).String(); got != "Effect(7)" {
		t.Errorf("an effect that is none is %q", got)
	}
}

func TestRecoveryActionNames(t *testing.T) {
	for action, want := range map[health.RecoveryAction]string{0: "None", 1: "GPUReset", 4: "DrainAndReset", 7: "SystemReboot", 12: "Action12"} {
		if got := action.String(); got != want {
			t.Errorf("action %d is %q, want %q", uint32(action), got, want)
		}
	}
}
