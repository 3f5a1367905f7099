// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import "testing"

func TestEmbeddedProfilesAreValid(t *testing.T) {
	for _, name := range Names() {
		t.Run(name, func(t *testing.T) {
			p, err := Load(name)
			if err != nil {
				t.Fatal(err)
			}
			if p.Name != name {
				t.Errorf("the file %s.yaml holds a profile called %q", name, p.Name)
			}
			if len(p.Sources) == 0 {
				t.Error("a profile names its sources")
			}
		})
	}
}
