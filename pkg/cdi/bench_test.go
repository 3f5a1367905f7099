// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"context"
	"fmt"
	"testing"
)

func BenchmarkRefresh(b *testing.B) {
	s := newSimulated(b, "dgx-a100", func(o *Options) { o.HookPath = "/usr/bin/nvidia-cdi-hook" })
	inv := s.inventory(b)
	for b.Loop() {
		if err := s.Refresh(context.Background(), inv); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkWriteClaim(b *testing.B) {
	for _, count := range []int{1, 8} {
		for _, remove := range []bool{true, false} {
			b.Run(fmt.Sprintf("devices=%d/new=%t", count, remove), func(b *testing.B) {
				s := newSimulated(b, "dgx-a100", func(o *Options) { o.HookPath = "/usr/bin/nvidia-cdi-hook" })
				devices := devicesOf(s.refreshed(b)[:count]...)
				for b.Loop() {
					if _, err := s.WriteClaim("a", devices); err != nil {
						b.Fatal(err)
					}
					if remove {
						if err := s.RemoveClaim("a"); err != nil {
							b.Fatal(err)
						}
					}
				}
			})
		}
	}
}
