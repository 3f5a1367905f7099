// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health_test

import (
	"encoding/csv"
	"os"
	"strconv"
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/health"
)

// catalogRow is a row of testdata/xids.csv.
type catalogRow struct {
	first, last    uint64
	action, effect string
	fatal          bool
}

func catalog(t *testing.T) []catalogRow {
	t.Helper()
	file, err := os.Open("testdata/xids.csv")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	reader := csv.NewReader(file)
	reader.Comment = '#'
	records, err := reader.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	number := func(text string) uint64 {
		n, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	var rows []catalogRow
	for _, r := range records[1:] {
		rows = append(rows, catalogRow{number(r[0]), number(r[1]), r[2], r[3], r[4] == "yes"})
	}
	return rows
}

func TestEveryXIDOfTheCatalogHasItsEffect(t *testing.T) {
	listed := map[uint64]bool{}
	for _, row := range catalog(t) {
		for code := row.first; code <= row.last; code++ {
			listed[code] = true
			keepsAway := health.Policy{}.XIDEffect(code) >= health.NoSchedule
			if keepsAway != (row.effect == "NoSchedule") {
				t.Errorf("XID %d (%s): effect %s, want %s", code, row.action, health.Policy{}.XIDEffect(code), row.effect)
			}
			evicts := health.Policy{EvictFatal: true}.XIDEffect(code) == health.NoExecute
			if evicts != row.fatal {
				t.Errorf("XID %d evicts: %v, want %v", code, evicts, row.fatal)
			}
			if xid := health.Classify(code); xid.Code != code || xid.Meaning == "" {
				t.Errorf("XID %d is %+v", code, xid)
			}
		}
	}
	for _, xid := range health.XIDs() {
		if !listed[xid.Code] {
			t.Errorf("XID %d is not in the catalog", xid.Code)
		}
		delete(listed, xid.Code)
	}
	for code := range listed {
		t.Errorf("XID %d of the catalog has no row", code)
	}
}

func TestClassesFollowTheImmediateAction(t *testing.T) {
	for _, row := range catalog(t) {
		var want []health.Class
		switch row.action {
		case "RESTART_APP", "WORKFLOW_XID_45":
			want = []health.Class{health.ClassApplication}
		case "IGNORE":
			want = []health.Class{health.ClassInformational, health.ClassDeferred}
		case "RESET_GPU", "RESTART_BM", "RESTART_VM", "CONTACT_SUPPORT", "CHECK_MECHANICALS":
			want = []health.Class{health.ClassDevice}
		default:
			continue // decided one by one, see xidTable
		}
		for code := row.first; code <= row.last; code++ {
			got := health.Classify(code).Class
			found := false
			for _, class := range want {
				found = found || class == got
			}
			if !found {
				t.Errorf("XID %d (%s) is of class %s, want %s", code, row.action, got, want)
			}
		}
	}
}

func TestUnknownXIDKeepsPodsAwayAndIsLeftToTheGPU(t *testing.T) {
	for _, code := range []uint64{1, 42, 87, 167, 169, 173, 999} {
		xid := health.Classify(code)
		if xid.Class != health.ClassUnknown || !xid.Summarised || xid.Fatal || xid.Meaning == "" {
			t.Errorf("XID %d is %+v", code, xid)
		}
		if effect := (health.Policy{EvictFatal: true}).XIDEffect(code); effect != health.NoSchedule {
			t.Errorf("XID %d has effect %s", code, effect)
		}
	}
}
