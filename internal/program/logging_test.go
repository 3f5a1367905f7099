// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"bytes"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

func TestJSONLog(t *testing.T) {
	state := klog.CaptureState() //nolint:logcheck // Others log too.
	defer state.Restore()
	l := NewLogging()
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	l.AddFlags(fs)
	if err := fs.Parse([]string{"--logging-format=json", "--v=2"}); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := l.Apply(&out); err != nil {
		t.Fatal(err)
	}
	logger := klog.LoggerWithValues(klog.Background(), "node", "node-a")
	logger.Info("Prepared", "claim", klog.KRef("default", "a"), "took", 1500*time.Millisecond)
	logger.V(2).Info("Detail")
	logger.V(3).Info("Too much detail")
	logger.Error(errors.New("disk full"), "Failed")
	klog.InfoS("Without a logger") //nolint:logcheck // Libraries do.

	var lines []map[string]any
	for line := range strings.Lines(out.String()) {
		fields := make(map[string]any)
		if err := json.Unmarshal([]byte(line), &fields); err != nil {
			t.Fatalf("line %q: %v", line, err)
		}
		if _, err := time.Parse(time.RFC3339Nano, fields["ts"].(string)); err != nil {
			t.Errorf("ts: %v", err)
		}
		if caller, _ := fields["caller"].(string); !strings.Contains(caller, "logging_test.go:") {
			t.Errorf("caller is %q, not this file", caller)
		}
		delete(fields, "ts")
		delete(fields, "caller")
		lines = append(lines, fields)
	}
	got, err := json.Marshal(lines)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[{"claim":{"name":"a","namespace":"default"},"msg":"Prepared","node":"node-a","took":"1.5s","v":0},` +
		`{"msg":"Detail","node":"node-a","v":2},` +
		`{"err":"disk full","level":"ERROR","msg":"Failed","node":"node-a"},` +
		`{"msg":"Without a logger","v":0}]`
	if string(got) != want {
		t.Errorf("logged\n%s\nwant\n%s", got, want)
	}
}
