// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"strings"
	"testing"
)

func TestNew(t *testing.T) {
	tests := []struct{ name, state, wantErr string }{
		{"the default is fine", "/var/tmp/switchyard", ""},
		{"a relative path becomes absolute", "state", ""},
		{"an empty path is not the current folder", "", "must not be empty"},
		{"the root is refused", "/", "must not be /"},
		{"a folder that nodes hide is refused", "/var/lib/switchyard", "below /var/lib"},
		{"a folder whose name only begins like one that nodes hide is fine", "/runner/state", ""},
		{"blanks and colons are fine", "/tmp/it's mine: state", ""},
		{"a comma is refused", "/tmp/a,b", "comma"},
		{"a path too long for sockets is refused", "/" + strings.Repeat("x", 100), "7 bytes too long"},
		{"the longest path is fine", "/" + strings.Repeat("x", 93), ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := New(tt.state)
			if tt.wantErr == "" {
				if err != nil || !strings.HasPrefix(l.State, "/") {
					t.Errorf("got %+v, %v", l, err)
				}
			} else if err == nil || !strings.Contains(err.Error(), tt.wantErr) {
				t.Errorf("got error %v, want one with %q", err, tt.wantErr)
			}
		})
	}
}

func TestControlSocketFitsWhateverTheNodeIsCalled(t *testing.T) {
	l, err := New("/" + strings.Repeat("x", 93))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(l.ControlSocket("n63")); n > 107 {
		t.Errorf("socket path has %d bytes", n)
	}
}
