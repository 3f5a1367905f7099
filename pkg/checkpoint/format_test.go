// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "rewrite the golden file of the current version")

// goldenV1 is what testdata/v1.json holds.
func goldenV1() Record {
	return Record{
		ClaimUID: "7a1d1b5e-5d0c-4f5e-9c0b-0e6c5a3f9d11", Namespace: "ml", Name: "llama-tp4-gpus",
		BootID: "0b3c7c5a-3f0e-4a55-a6a5-6f6a3d1d6f7e", State: Prepared,
		Devices: []Device{
			{Request: "gpus", Pool: "node-a", Name: "gpu-4404041a-04cf-1ccf-9e70-f139a9b1e23c", UUID: "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"},
			{Request: "any/mig", Pool: "node-a", Name: "gpu-9c2f0f6e-3a55-7f0b-8e1d-1c5a1f0b7a42", UUID: "GPU-9c2f0f6e-3a55-7f0b-8e1d-1c5a1f0b7a42", ShareID: "b5e2f1d0-6c0a-4f38-93a1-2f0c9f1f5e77"},
			{Request: "monitor", Pool: "node-a", Name: "gpu-4404041a-04cf-1ccf-9e70-f139a9b1e23c", UUID: "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c", AdminAccess: true},
		},
	}
}

// Every version that a release wrote is read for ever.
func TestGoldenVersion1(t *testing.T) {
	const path = "testdata/v1.json"
	current, err := encode(goldenV1())
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(path, current, 0o644); err != nil { //nolint:gosec // A test file.
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	got, err := decode(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(goldenV1(), got); diff != "" {
		t.Errorf("record (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(string(golden), string(current)); diff != "" {
		t.Errorf("what is written has changed (-golden +now); a change of meaning needs a new version:\n%s", diff)
	}
}

// An upgrade added a field, and every old file was "corrupt": the checksum was over the decoded value.
func TestFieldCase04_UpgradeAddsCheckpointField(t *testing.T) {
	t.Run("an old release reads what a new one wrote, and loses nothing", func(t *testing.T) {
		data, err := os.ReadFile("testdata/v1-with-later-fields.json")
		if err != nil {
			t.Fatal(err)
		}
		got, err := decode(data)
		if err != nil {
			t.Fatal(err)
		}
		want := goldenV1()
		want.Unknown = map[string]json.RawMessage{"gang": json.RawMessage(`{"uid":"g-1"}`)}
		want.Devices[1].Unknown = map[string]json.RawMessage{"sharing": json.RawMessage(`{"strategy":"MPS"}`)}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("record (-want +got):\n%s", diff)
		}
		again, err := encode(got)
		if err != nil {
			t.Fatal(err)
		}
		if reread, err := decode(again); err != nil || !cmp.Equal(got, reread) {
			t.Errorf("rewritten: %v\n%s", err, cmp.Diff(got, reread))
		}
	})
	t.Run("a new release reads what an old one wrote", func(t *testing.T) {
		// A release that knows one field more than the file has: as if AdminAccess were new.
		data, err := os.ReadFile("testdata/v1.json")
		if err != nil {
			t.Fatal(err)
		}
		r, err := decode(data)
		if err != nil {
			t.Fatal(err)
		}
		if r.Devices[0].AdminAccess || r.Devices[0].ShareID != "" {
			t.Errorf("fields that the file does not have are %+v, want their zero values", r.Devices[0])
		}
	})
	t.Run("the checksum is over bytes, not over what they mean", func(t *testing.T) {
		data, err := encode(goldenV1())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decode(bytes.Replace(data, []byte(`"ml",`), []byte(`"ml" ,`), 1)); err == nil {
			t.Error("a changed byte passed")
		}
	})
}

// FuzzDecode: no file panics or is believed in part, and what is believed can be written again.
func FuzzDecode(f *testing.F) {
	for _, path := range []string{"testdata/v1.json", "testdata/v1-with-later-fields.json"} {
		data, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		f.Add(data[:len(data)/2])
		f.Add(data[bytes.IndexByte(data, '\n')+1:])
	}
	f.Add([]byte{})
	f.Add([]byte("{}\n{}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		checkDecode(t, data)
		// The same as a record under a right header: a checksum keeps the fuzzer out otherwise.
		checkDecode(t, seal(t, data))
	})
}

func checkDecode(t *testing.T, data []byte) {
	t.Helper()
	first, err := decode(data)
	if err != nil {
		if _, ok := err.(*damageError); !ok { //nolint:errorlint // It must be this type itself.
			t.Fatalf("error is a %T: %v", err, err)
		}
		return
	}
	encoded, err := encode(first)
	if err != nil {
		t.Fatal(err)
	}
	second, err := decode(encoded)
	if err != nil {
		t.Fatalf("decode again: %v\n%s", err, encoded)
	}
	// Unknown fields may be spelt another way the first time ("<" as \u003c), the known ones may not.
	firstKnown, secondKnown := first.clone(), second.clone()
	for _, r := range []*Record{&firstKnown, &secondKnown} {
		r.Unknown = nil
		for i := range r.Devices {
			r.Devices[i].Unknown = nil
		}
	}
	if diff := cmp.Diff(firstKnown, secondKnown); diff != "" {
		t.Errorf("known fields (-first +second):\n%s", diff)
	}
	again, err := encode(second)
	if err != nil || !bytes.Equal(encoded, again) {
		t.Errorf("not stable (%v):\n%s", err, cmp.Diff(string(encoded), string(again)))
	}
}
