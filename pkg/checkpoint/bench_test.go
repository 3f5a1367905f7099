// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"context"
	"fmt"
	"testing"
)

func benchmarkStore(b *testing.B, records int) *Store {
	s, err := Open(context.Background(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	s.files = unsyncedFiles{} // The disk's fsync is not ours to measure.
	for i := range records {
		if err := s.Put(record(fmt.Sprintf("other-%d", i), fmt.Sprintf("gpu-other-%d", i))); err != nil {
			b.Fatal(err)
		}
	}
	s.files = osFiles{}
	return s
}

type unsyncedFiles struct{ osFiles }

func (f unsyncedFiles) create(target string) (pendingFile, error) {
	pending, err := f.osFiles.create(target)
	return unsyncedPending{pending}, err
}

func (unsyncedFiles) syncDir(string) error { return nil }

type unsyncedPending struct{ pendingFile }

func (unsyncedPending) Sync() error { return nil }

// The cost of a prepare must not grow with the number of claims.
func BenchmarkPutDelete(b *testing.B) {
	for _, sync := range []bool{true, false} {
		for _, records := range []int{0, 200} {
			b.Run(fmt.Sprintf("fsync=%t/records=%d", sync, records), func(b *testing.B) {
				s := benchmarkStore(b, records)
				if !sync {
					s.files = unsyncedFiles{}
				}
				r := record("a", "gpu-0", "gpu-1", "gpu-2", "gpu-3", "gpu-4", "gpu-5", "gpu-6", "gpu-7")
				for b.Loop() {
					if err := s.Put(r); err != nil {
						b.Fatal(err)
					}
					if err := s.Delete(r.ClaimUID); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

func BenchmarkGet(b *testing.B) {
	s := benchmarkStore(b, 200)
	for b.Loop() {
		if _, ok := s.Get("other-100"); !ok {
			b.Fatal("no record")
		}
	}
}

func BenchmarkOpen(b *testing.B) {
	s := benchmarkStore(b, 200)
	for b.Loop() {
		again, err := Open(context.Background(), s.dir)
		if err != nil {
			b.Fatal(err)
		}
		_ = again.Close()
	}
}
