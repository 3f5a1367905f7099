// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/mig"
	"github.com/switchyard-dev/switchyard/pkg/nvml"
)

// silencing is a Partitioner of which a GPU does not answer.
type silencing struct {
	Partitioner
	mu     sync.Mutex
	silent string
	calls  int // for the silent GPU
	// patience is closed when those who wait for it give up; nil is at once.
	patience chan struct{}
	// destroyed gets every GPU of which an instance is destroyed, unless it is nil.
	destroyed chan string
}

func (s *silencing) answer(ctx context.Context, gpu string) error {
	s.mu.Lock()
	silent := gpu == s.silent
	if silent {
		s.calls++
	}
	s.mu.Unlock()
	if !silent {
		return nil
	}
	if s.patience != nil {
		select {
		case <-s.patience:
		case <-ctx.Done():
		}
	}
	return &nvml.UnavailableError{Reason: nvml.ReasonNotResponding, Message: "no answer in time"}
}

func (s *silencing) Instances(ctx context.Context, gpu string) ([]mig.Instance, error) {
	if err := s.answer(ctx, gpu); err != nil {
		return nil, err
	}
	return s.Partitioner.Instances(ctx, gpu)
}

func (s *silencing) DestroyComputeInstances(ctx context.Context, ref device.PartitionRef) error {
	if err := s.answer(ctx, ref.GPU); err != nil {
		return err
	}
	return s.Partitioner.DestroyComputeInstances(ctx, ref)
}

func (s *silencing) DestroyGPUInstance(ctx context.Context, ref device.PartitionRef) error {
	err := s.Partitioner.DestroyGPUInstance(ctx, ref)
	if s.destroyed != nil {
		s.destroyed <- ref.GPU
	}
	return err
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
	if hardware.calls != 1 {
		t.Errorf("the GPU that does not answer is asked %d times in one round", hardware.calls)
	}
	written := func() []types.UID { return must[[]types.UID](t)(p.config.Specs.Claims()) }
	for _, claim := range others {
		if !slices.Contains(written(), claim.UID) {
			t.Errorf("claim %s has no CDI spec", claim.Name)
		}
	}

	hardware.silent = ""
	p.partitions.silent.forget()
	if err := p.reconciler.ensureSpecs(p.ctx); err != nil {
		t.Error(err)
	}
	if got, want := len(written()), len(own)+len(others)+1; got != want {
		t.Errorf("when it answers again %d claims have CDI specs, want %d", got, want)
	}
}

func TestAGPUThatHangsIsWaitedForOnceInARound(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 2)
	hardware := &silencing{}
	p := m.boot(func(c *Config) { hardware.Partitioner, c.Partitions = c.Partitions, hardware })
	held := m.claim("held", p.partition(0, "1g.10gb", 3))
	p.mustPrepare(held)
	for gpu := range 2 {
		for start := range 3 {
			claim := m.claim(fmt.Sprintf("lost-%d-%d", gpu, start), p.partition(gpu, "1g.10gb", start))
			p.mustPrepare(claim)
			if err := p.store.Delete(claim.UID); err != nil {
				t.Fatal(err)
			}
		}
	}

	hardware.silent = p.discovery.known.GPUs[0].Name()
	hardware.patience, hardware.destroyed = make(chan struct{}), make(chan string, 6)
	ctx, cancel := context.WithTimeout(p.ctx, reconcileTimeout)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- p.reconciler.removeOrphanPartitions(ctx) }()
	for range 3 {
		select {
		case <-hardware.destroyed:
		case err := <-done:
			t.Fatalf("the partitions of the other GPU were not destroyed while one hangs: %v", err)
		}
	}
	close(hardware.patience)
	if err := <-done; err != nil {
		t.Errorf("removeOrphanPartitions = %v, want them to be left for later", err)
	}
	m.mustHave("in the round in which it hangs", "0:19@0+", "0:19@1+", "0:19@2+", "0:19@3+")
	if err := p.reconciler.ensureSpecs(p.ctx); err == nil || !containsAll(err.Error(), []string{"claim default/held", "no answer in time"}) {
		t.Errorf("ensureSpecs = %v, want that the GPU does not answer", err)
	}
	if hardware.calls != 1 {
		t.Errorf("the GPU that hangs is asked %d times in one round", hardware.calls)
	}

	p.reconciler.reconcile(p.ctx)
	if hardware.calls != 2 {
		t.Errorf("the GPU that hangs is asked %d times in two rounds", hardware.calls)
	}
	hardware.silent = ""
	p.reconciler.reconcile(p.ctx)
	m.mustHave("when it answers again", "0:19@3+")
}

func TestUnprepareWaitsOnceForAGPUThatHangs(t *testing.T) {
	m := newMIGMachine(t, "hgx-h100", 1)
	hardware := &silencing{}
	p := m.boot(func(c *Config) { hardware.Partitioner, c.Partitions = c.Partitions, hardware })
	both := m.claim("both", p.partition(0, "1g.10gb", 0), p.partition(0, "1g.10gb", 1))
	p.mustPrepare(both)
	hardware.silent = p.discovery.known.GPUs[0].Name()
	p.mustUnprepare(both)
	if hardware.calls != 1 {
		t.Errorf("the GPU that hangs is asked %d times", hardware.calls)
	}
	hardware.silent = ""
	p.reconciler.reconcile(p.ctx)
	m.mustHave("when it answers again")
}
