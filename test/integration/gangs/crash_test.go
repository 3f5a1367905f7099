// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
)

var errCrash = errors.New("crashed by the test")

// crash stands for the death of the process: after the write that dies names, this controller says nothing more to the
// API server, and it ends.
type crash struct {
	mu     sync.Mutex
	dead   bool
	wrote  string
	cancel context.CancelFunc
}

// startCrashing runs a controller that dies after the first write for which dies returns true. The
// channel is closed when it is gone.
func (e *env) startCrashing(dies func(verb string) bool) (*crash, *runner) {
	e.t.Helper()
	c := &crash{}
	ready := make(chan struct{})
	r := e.start(func(config *controller.Config) {
		config.Client.Wrap(c.silence)
		config.Wrote = func(verb string) error {
			<-ready
			c.mu.Lock()
			defer c.mu.Unlock()
			if !c.dead && !dies(verb) {
				return nil
			}
			if !c.dead {
				c.dead, c.wrote = true, verb
			}
			c.cancel()
			return errCrash
		}
	})
	c.cancel = r.cancel
	close(ready)
	return c, r
}

// silence keeps a dead controller from the API server: it goes on for a moment until all of it has seen that it ends.
func (c *crash) silence(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(r *http.Request) (*http.Response, error) {
		c.mu.Lock()
		dead := c.dead
		c.mu.Unlock()
		if dead {
			return nil, errCrash
		}
		return next.RoundTrip(r)
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// diesAt lets a controller die at a write and waits until it is gone.
func (e *env) diesAt(verb string) {
	e.t.Helper()
	_, r := e.startCrashing(func(wrote string) bool { return wrote == verb })
	select {
	case <-r.done:
	case <-time.After(patience):
		e.t.Fatalf("waited %v for the controller to write %s", patience, verb)
	}
}

// dieAfterEachWrite runs one controller after the other until done: each makes one write and dies. It returns the
// writes.
func (e *env) dieAfterEachWrite(done func() bool) []string {
	e.t.Helper()
	var wrote []string
	for !done() {
		if len(wrote) > 60 {
			e.t.Fatalf("no end after the writes %v", wrote)
		}
		c, r := e.startCrashing(func(string) bool { return true })
		select {
		case <-r.done:
			wrote = append(wrote, c.wrote)
		case <-time.After(20 * time.Second):
			if err := r.stop(); err != nil {
				e.t.Fatal(err)
			}
			wrote = append(wrote, "nothing")
		}
	}
	e.t.Logf("the controllers wrote %v", wrote)
	return wrote
}

// Each controller of this test makes one write and dies; the next one goes on from there.
func TestControllerKilledAfterEveryWrite(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.gang("train", 2, 4)
	pods := e.members("train", 2)
	allRun := func() bool {
		for _, pod := range pods {
			if e.get(pod); pod.Status.Phase != corev1.PodRunning {
				return false
			}
		}
		return true
	}
	wrote := e.dieAfterEachWrite(allRun)
	e.together(pods, 4)
	for _, want := range []string{"AddFinalizer", "StatusFencing", "CreateRules", "TouchRules", "StatusQuiescing", "StatusReleasing", "CreateTemplate", "DeleteTemplate", "StatusStarting", "MarkReady"} {
		if !slices.Contains(wrote, want) {
			t.Errorf("no controller was killed after %s", want)
		}
	}
}

// The same for giving everything back.
func TestControllerKilledAfterEveryWriteOfATakeBack(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	e.job("train", 2) // allocated members are evicted, which needs an owner
	e.diesAt("CreateTemplate")
	for _, pod := range e.podsOf("train") {
		e.eventually("pod "+pod.Name+" is bound", func() error {
			if e.get(pod); pod.Spec.NodeName == "" {
				return errors.New("it is not")
			}
			return nil
		})
	}
	e.delete(gang)
	wrote := e.dieAfterEachWrite(func() bool { return !e.get(gang) })
	for _, want := range []string{"DeleteTemplate", "EvictPods", "NeutralizeRules", "DeleteRules", "RemoveFinalizer"} {
		if !slices.Contains(wrote, want) {
			t.Errorf("no controller was killed after %s", want)
		}
	}
	e.nothing(gang)
}

func lease(config *controller.Config) {
	config.Lease = &controller.Lease{
		Namespace: controlplane.PluginNamespace,
		Duration:  15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 500 * time.Millisecond,
	}
}

func TestOneOfTwoControllersWorksAndTheOtherTakesOver(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	first := e.start(lease)
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.PluginNamespace, Name: controller.Name}}
	holder := func() string {
		if !e.get(held) {
			return ""
		}
		return ptr.Deref(held.Spec.HolderIdentity, "")
	}
	e.eventually("the first controller leads", func() error {
		if holder() == "" {
			return errors.New("the lease has no holder")
		}
		return nil
	})
	leader := holder()
	e.start(lease)
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.reaches(gang, v1alpha1.StepQuiescing, v1alpha1.StepReleasing, v1alpha1.StepStarting, v1alpha1.StepHolding)
	if now := holder(); now != leader {
		t.Errorf("the leader is %s, want %s", now, leader)
	}
	if err := first.stop(); err != nil {
		t.Fatal(err)
	}
	e.running(pods...)
	e.together(pods, 4)
	e.eventually("the second controller leads", func() error {
		if now := holder(); now == "" || now == leader {
			return fmt.Errorf("the holder is %q", now)
		}
		return nil
	})
}

func TestAControllerThatLosesItsLeaseEnds(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	r := e.start(lease)
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.PluginNamespace, Name: controller.Name}}
	e.eventually("the controller leads", func() error {
		if !e.get(held) || ptr.Deref(held.Spec.HolderIdentity, "") == "" {
			return errors.New("the lease has no holder")
		}
		return nil
	})
	e.eventually("another one has the lease", func() error {
		e.get(held)
		held.Spec.HolderIdentity = ptr.To("someone else")
		held.Spec.LeaseDurationSeconds = ptr.To[int32](3600)
		return e.client.Update(t.Context(), held)
	})
	select {
	case <-r.done:
	case <-time.After(patience):
		t.Fatal("the controller goes on without the lease")
	}
	if r.err == nil || !strings.Contains(r.err.Error(), "leader election lost") {
		t.Errorf("the controller ended with %v, want that the lease was lost", r.err)
	}
	r.err = nil // as wanted
	e.delete(held)
}
