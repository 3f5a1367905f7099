// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"errors"
	"io"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
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
