// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"os"
	"slices"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// silencing is a Partitioner of which some GPUs do not answer.
type silencing struct {
	Partitioner
	mu     sync.Mutex
	silent string
	calls  int // for the silent GPU
}

func (s *silencing) Instances(ctx context.Context, gpu string) ([]mig.Instance, error) {
	s.mu.Lock()
	silent := gpu == s.silent
	if silent {
		s.calls++
	}
	s.mu.Unlock()
	if silent {
		return nil, &nvml.UnavailableError{Reason: nvml.ReasonNotResponding, Message: "no answer in time"}
	}
	return s.Partitioner.Instances(ctx, gpu)
}

func TestAGPUThatHangsHoldsUpTheSpecsOfItsOwnClaimsOnly(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 2)
	hardware := &silencing{}
	p := m.boot(func(c *Config) { hardware.Partitioner, c.Partitions = c.Partitions, hardware })
	var own, others []*resourceapi.ResourceClaim
	for i, name := range []string{"a", "b", "c"} {
		own = append(own, m.claim(name+"-silent", p.partition(0, "1g.10gb", i)))
		others = append(others, m.claim(name+"-well", p.partition(1, "1g.10gb", i)))
	}
	others = append(others, m.claim("whole", p.discovery.known.GPUs[2].Name()))
	both := m.claim("both", p.partition(0, "1g.10gb", 4), p.partition(1, "1g.10gb", 4))
	for _, claim := range slices.Concat(own, others, []*resourceapi.ResourceClaim{both}) {
		p.mustPrepare(claim)
	}
	for _, entry := range must[[]os.DirEntry](t)(os.ReadDir(p.config.CDIDir)) {
		if err := os.Remove(p.config.CDIDir + "/" + entry.Name()); err != nil {
			t.Fatal(err)
		}
	}

	hardware.silent = p.discovery.known.GPUs[0].Name()
	err := p.reconciler.ensureSpecs(p.ctx)
	if err == nil || !containsAll(err.Error(), []string{"-silent", "no answer in time"}) {
		t.Errorf("ensureSpecs = %v, want that the GPU does not answer", err)
	}
	// One of its own claims, and the one of both GPUs if that came first.
	if hardware.calls == 0 || hardware.calls > 2 {
		t.Errorf("the GPU that does not answer is asked %d times in one round", hardware.calls)
	}
	written := func() []types.UID { return must[[]types.UID](t)(p.config.Specs.Claims()) }
	for _, claim := range others {
		if !slices.Contains(written(), claim.UID) {
			t.Errorf("claim %s has no CDI spec", claim.Name)
		}
	}

	hardware.silent = ""
	if err := p.reconciler.ensureSpecs(p.ctx); err != nil {
		t.Error(err)
	}
	if got, want := len(written()), len(own)+len(others)+1; got != want {
		t.Errorf("when it answers again %d claims have CDI specs, want %d", got, want)
	}
}
