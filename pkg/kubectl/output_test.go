// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// A script that reads half an answer must be told.
func TestOutputThatCannotBeWrittenIsAnError(t *testing.T) {
	c := journey(t).with(budget(1)).with(together()...)
	for _, line := range []string{
		"topology", "topology node-b", "fragmentation", "gangs", "explain gang llama-tp4", "explain pod same-domain", "defrag plan --gang llama-tp4",
		strings.Join(traceArgs("--seeds", "1"), " "),
	} {
		for _, format := range formats {
			args := append(strings.Fields(line), "-o", format)
			t.Run(strings.Join(args, " "), func(t *testing.T) {
				connection := c.connection(t, interceptor.Funcs{})
				write := func(limit int) (int, error) {
					out := &writer{limit: limit}
					cmd := newCommand(connection)
					cmd.SetArgs(slices.Clone(args))
					cmd.SetOut(out)
					err := cmd.ExecuteContext(t.Context())
					return out.written, err
				}
				size, err := write(1 << 20)
				if err != nil {
					t.Fatal(err)
				}
				for _, limit := range []int{0, size - 1} {
					if _, err := write(limit); !errors.Is(err, io.ErrShortWrite) {
						t.Errorf("%d of %d bytes could be written: got error %v", limit, size, err)
					}
				}
			})
		}
	}
}

// writer takes only so many bytes.
type writer struct{ written, limit int }

func (w *writer) Write(text []byte) (int, error) {
	if w.written+len(text) > w.limit {
		return 0, io.ErrShortWrite
	}
	w.written += len(text)
	return len(text), nil
}

// What nodes publish and users write must not reach the terminal as something to do.
func TestTerminalIsNotControlledByWhatIsShown(t *testing.T) {
	t.Setenv("CLICOLOR_FORCE", "1") // as if it were a terminal
	const evil = "\x1b]0;owned\x07\rnode-z   8 × free"
	c := journey(t)
	for _, o := range c {
		switch o := o.(type) {
		case *resourceapi.ResourceSlice:
			for _, d := range o.Spec.Devices {
				d.Attributes["productName"] = resourceapi.DeviceAttribute{StringValue: ptr.To("H100" + evil)}
				if old := d.Attributes["nvswitchDomain"].StringValue; old != nil {
					d.Attributes["nvswitchDomain"] = resourceapi.DeviceAttribute{StringValue: ptr.To(*old + evil + "\nnode-y")}
				}
			}
		case *corev1.Pod:
			for i := range o.Status.Conditions {
				o.Status.Conditions[i].Message += evil
			}
		}
	}
	c = c.with(waitingGang("odd", 1, 1, func(g *v1alpha1.GangClaim) {
		g.Spec.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: "device. " + evil}}}
	})...)
	for _, line := range []string{
		"topology", "topology node-b", "fragmentation", "gangs", "explain gang llama-tp4", "explain gang odd", "explain pod llama-tp4-0", "defrag plan --gang llama-tp4",
	} {
		for _, format := range formats {
			out, _, err := c.run(t, append(strings.Fields(line), "-o", format)...)
			if err != nil {
				t.Fatal(err)
			}
			if strings.ContainsAny(out, "\r") || strings.Contains(out, "\x1b]") || strings.Contains(out, "\nnode-y") {
				t.Errorf("%s -o %s prints %q", line, format, out)
			}
		}
	}
}
