// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
)

const guide = "../../docs/guide/kubectl.md"

// The examples of the guide are what the commands print.
func TestGuideShowsWhatIsPrinted(t *testing.T) {
	c := journey(t).with(budget(1)).with(together(func(_ *corev1.Pod, claim *resourceapi.ResourceClaim) {
		claim.Spec.Devices.Requests[0].Exactly.Count = 8
	})...)
	text, err := os.ReadFile(guide)
	if err != nil {
		t.Fatal(err)
	}
	const start, end, prompt = "```console\n", "```", "$ kubectl switchyard "
	var want strings.Builder
	examples := 0
	rest := string(text)
	for {
		before, block, found := strings.Cut(rest, start)
		want.WriteString(before)
		if !found {
			break
		}
		block, rest, _ = strings.Cut(block, end)
		line, _, _ := strings.Cut(block, "\n")
		arguments, is := strings.CutPrefix(line, prompt)
		if !is {
			t.Fatalf("an example begins with %q, want %q", line, prompt)
		}
		out, _, err := c.run(t, strings.Fields(arguments)...)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		want.WriteString(start + line + "\n" + out + end)
		examples++
	}
	if examples < 5 {
		t.Errorf("the guide has %d examples", examples)
	}
	if *update {
		if err := os.WriteFile(guide, []byte(want.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(want.String(), string(text)); diff != "" {
		t.Errorf("the guide differs (-want +got); go test ./pkg/kubectl -update writes it:\n%s", diff)
	}
}

// The reference names every field of -o json.
func TestReferenceNamesEveryField(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/kubectl.md")
	if err != nil {
		t.Fatal(err)
	}
	sections := map[string]string{}
	for _, section := range strings.Split(string(text), "\n## ")[1:] {
		title, body, _ := strings.Cut(section, "\n")
		sections[title] = body
	}
	for _, view := range []struct {
		title string
		value any
	}{
		{"topology", topologyView{}},
		{"fragmentation", fragmentationView{}},
		{"gangs", gangsView{}},
		{"explain", explanation{}},
		{"defrag plan", defragView{}},
		{"defrag plan", consolidationView{}},
		{"simulate", simulation{}},
	} {
		title, fields := view.title, jsonFields(reflect.TypeOf(view.value))
		if len(fields) < 3 {
			t.Errorf("%s has the fields %v", title, fields)
		}
		for _, field := range fields {
			if body := sections[title]; !strings.Contains(body, "`"+field+"`") && !strings.Contains(body, "."+field+"`") {
				t.Errorf("section %s does not name the field %s", title, field)
			}
		}
	}
}

// jsonFields are the names of all fields of a type and of its parts.
func jsonFields(of reflect.Type) []string {
	switch of.Kind() {
	case reflect.Slice, reflect.Pointer:
		return jsonFields(of.Elem())
	case reflect.Struct:
		if !strings.HasPrefix(of.PkgPath(), "github.com/switchyard-dev/switchyard/") {
			return nil
		}
		var names []string
		for field := range of.Fields() {
			name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
			if name != "" {
				names = append(append(names, name), jsonFields(field.Type)...)
			}
		}
		return names
	default:
		return nil
	}
}
