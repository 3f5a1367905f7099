// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package topology

import (
	"reflect"
	"strings"
	"testing"
)

var self = Connection{Level: Self}

func nv(n int) Connection { return Connection{Level: NVLink, NVLinks: n} }

func TestNewGraphRejects(t *testing.T) {
	sys := Connection{Level: SYS}
	tests := map[string]struct {
		matrix [][]Connection
		ports  []Port
		want   string
	}{
		"a short row":                     {[][]Connection{{self, sys}, {sys}}, nil, "row 1 has 1 entries"},
		"a diagonal that is not self":     {[][]Connection{{sys}}, nil, "GPUs 0 and 0: a GPU's connection to itself must be X, not SYS"},
		"self off the diagonal":           {[][]Connection{{self, self}, {self, self}}, nil, "GPUs 0 and 1: level X is not one between two GPUs"},
		"a level out of range":            {[][]Connection{{self, {Level: 99}}, {{Level: 99}, self}}, nil, "level Level(99)"},
		"a negative level":                {[][]Connection{{self, {Level: -1}}, {{Level: -1}, self}}, nil, "level Level(-1)"},
		"a negative number of links":      {[][]Connection{{self, {Level: SYS, NVLinks: -1}}, {sys, self}}, nil, "-1 NVLinks: expected 0 to 64"},
		"too many links":                  {[][]Connection{{self, nv(65)}, {nv(65), self}}, nil, "65 NVLinks"},
		"NVLink without links":            {[][]Connection{{self, nv(0)}, {nv(0), self}}, nil, "needs at least one NVLink"},
		"different levels in the mirror":  {[][]Connection{{self, sys}, {{Level: PIX}, self}}, nil, "GPUs 0 and 1: SYS from 0 but PIX from 1"},
		"different links in the mirror":   {[][]Connection{{self, nv(4)}, {nv(2), self}}, nil, "GPUs 0 and 1: NV4 from 0 but NV2 from 1"},
		"ports of another number of GPUs": {[][]Connection{{self}}, []Port{{}, {}}, "2 ports given"},
		"a negative number of active links": {
			[][]Connection{{self}}, []Port{{ActiveNVLinks: -2}}, "GPU 0: negative number of active NVLinks -2",
		},
		"more GPUs than sets can hold": {make([][]Connection, 65), nil, "at most 64"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := NewGraph(test.matrix, test.ports)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error = %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestGraphCopiesItsInput(t *testing.T) {
	matrix := [][]Connection{{self, nv(4)}, {nv(4), self}}
	ports := []Port{{Switched: true}, {}}
	g, err := NewGraph(matrix, ports)
	if err != nil {
		t.Fatal(err)
	}
	matrix[0][1], ports[0].Switched = Connection{Level: SYS}, false
	if g.Connection(0, 1) != nv(4) || !g.Switched(0) {
		t.Error("the graph changed with the slices it was made from")
	}
}

func TestHasNVLink(t *testing.T) {
	g := graphOf(t, 5, []Port{{}, {}, {ActiveNVLinks: 4}, {Switched: true}, {}}, link{0, 1, 2})
	for gpu, want := range []bool{true, true, true, true, false} {
		if got := g.HasNVLink(gpu); got != want {
			t.Errorf("HasNVLink(%d) = %t, want %t", gpu, got, want)
		}
	}
}

func TestCellsAreThoseOfNvidiaSMI(t *testing.T) {
	unknown := Connection{}
	g, err := NewGraph([][]Connection{
		{self, {Level: PHB, NVLinks: 12}, unknown},
		{{Level: PHB, NVLinks: 12}, self, {NVLinks: 2}},
		{unknown, nv(2), self},
	}, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"X", "NV12", "N/A"}, {"NV12", "X", "NV2"}, {"N/A", "NV2", "X"}}
	if got := g.Cells(); !reflect.DeepEqual(got, want) {
		t.Errorf("Cells = %v, want %v", got, want)
	}
}

func TestParseConnection(t *testing.T) {
	for cell, want := range map[string]Connection{
		"X": self, "NV1": nv(1), "NV18": nv(18), "PIX": {Level: PIX}, "PXB": {Level: PXB},
		"PHB": {Level: PHB}, "NODE": {Level: NODE}, "SYS": {Level: SYS}, "SOC": {Level: SYS},
	} {
		got, err := ParseConnection(cell)
		if err != nil || got != want {
			t.Errorf("ParseConnection(%q) = %v, %v, want %v", cell, got, err, want)
		}
		if s := got.String(); s != cell && cell != "SOC" {
			t.Errorf("ParseConnection(%q).String() = %q", cell, s)
		}
	}
	for _, cell := range []string{"", "x", "NV", "NV0", "NV-1", "NV+4", "NV04", "NV65", "NV12x", "nv12", "OK", "N/A", "NVL", "PIX "} {
		if got, err := ParseConnection(cell); err == nil {
			t.Errorf("ParseConnection(%q) = %v, want an error", cell, got)
		} else if !strings.Contains(err.Error(), "expected X, NV1 to NV64, PIX, PXB, PHB, NODE or SYS") {
			t.Errorf("ParseConnection(%q): error %q does not say what is expected", cell, err)
		}
	}
}

func TestLevelNames(t *testing.T) {
	for level, want := range map[Level]string{Unknown: "N/A", Self: "X", NVLink: "NVL", PIX: "PIX", SYS: "SYS", SYS + 1: "Level(8)", -1: "Level(-1)"} {
		if got := level.String(); got != want {
			t.Errorf("Level %d = %q, want %q", int(level), got, want)
		}
	}
}
