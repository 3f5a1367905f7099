// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/retry"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
)

// onWrite has do run once, at the first write of the verb, which is before whatever follows from it.
func onWrite(verb string, do func() error) func(*controller.Config) {
	var once sync.Once
	return func(config *controller.Config) {
		config.Wrote = func(wrote string) (err error) {
			if wrote == verb {
				once.Do(func() { err = do() })
			}
			return err
		}
	}
}

// The resource claim controller believes for a while that a claim that it made, and that is gone at once,
// exists: the member is touched until it has another.
func TestAMembersClaimIsDeletedAsSoonAsItIsMade(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	watcher, err := client.NewWithWatch(e.plane.ConfigFor(e.plane.AdminToken()), client.Options{Scheme: e.client.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	claims, err := watcher.Watch(t.Context(), &resourceapi.ResourceClaimList{}, client.InNamespace(e.namespace))
	if err != nil {
		t.Fatal(err)
	}
	deleted := make(chan error, 1)
	go func() {
		defer claims.Stop()
		for event := range claims.ResultChan() {
			if claim, ok := event.Object.(*resourceapi.ResourceClaim); ok {
				deleted <- e.client.Delete(t.Context(), claim)
				return
			}
		}
		deleted <- errors.New("the watch ended")
	}()
	e.start()
	e.gang("train", 2, 4)
	pods := e.members("train", 2)
	select {
	case err := <-deleted:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(patience):
		t.Fatal("no claim was made")
	}
	e.running(pods...)
	e.together(pods, 4)
}

// A quota that is made after the plan refuses the second claim: nobody starts, and nothing is held once the
// plan was taken back.
func TestAQuotaThatIsMadeBetweenPlanAndRelease(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	e.job("train", 2)
	e.diesAt("StatusQuiescing")
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: "claims"},
		Spec:       corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{"count/resourceclaims.resource.k8s.io": resource.MustParse("1")}},
	}
	e.create(quota)
	e.eventually("the quota counts", func() error {
		if e.get(quota); len(quota.Status.Hard) == 0 {
			return errors.New("its status is empty")
		}
		return nil
	})
	e.start()
	e.waits(gang, "QuotaExceeded")
	e.nothing(gang)
	for _, pod := range e.podsOf("train") {
		if pod.Status.Phase == corev1.PodRunning {
			t.Errorf("pod %s runs without the others", pod.Name)
		}
	}
	e.eventually("the quota is raised", func() error {
		e.get(quota)
		quota.Spec.Hard["count/resourceclaims.resource.k8s.io"] = resource.MustParse("4")
		return e.client.Update(t.Context(), quota)
	})
	e.together(e.jobRuns("train", 2), 4)
}

func TestTheDeviceClassDoesNotSelectThePlannedDevicesAnyMore(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	class := &resourceapi.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}
	selects := func(expression string) []resourceapi.DeviceSelector {
		return []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{Expression: expression}}}
	}
	class.Spec.Selectors = selects(`device.driver == "gpu.switchyard.dev"`)
	e.create(class)
	defer func() { e.delete(class) }()
	gang := e.gang("train", 1, 4, func(g *v1alpha1.GangClaim) { g.Spec.DeviceClassName = e.namespace })
	pods := e.members("train", 1)
	e.diesAt("StatusQuiescing")
	e.get(gang)
	planned := plannedDomain(t, gang)
	other := fmt.Sprintf("%s.%d", e.nodes[0], 1-domainNumber(t, planned))
	class.Spec.Selectors = selects(fmt.Sprintf(`device.driver == "gpu.switchyard.dev" && device.attributes["gpu.switchyard.dev"].nvswitchDomain == %q`, other))
	if err := e.client.Update(t.Context(), class); err != nil {
		t.Fatal(err)
	}
	e.start()
	e.running(pods...)
	e.together(pods, 4)
	if now := e.domainsOf(pods[0]); len(now) != 1 || now[0] != other {
		t.Errorf("the member is in %v, want %s, which alone the class selects", now, other)
	}
}

// Another pod takes the memory, or here the CPU, of the planned node between plan and release.
func TestTheNodeIsFullBetweenPlanAndRelease(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4", "a100-2x4")
	gang := e.gang("train", 2, 4)
	e.job("train", 2)
	e.diesAt("StatusQuiescing")
	e.get(gang)
	full := gang.Status.Plan.Placements[0].Node
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: full}}
	e.get(node)
	greedy := e.pod("greedy", "")
	greedy.Spec.ResourceClaims = nil
	greedy.Spec.NodeName = full
	memory := node.Status.Allocatable[corev1.ResourceMemory]
	cpu := node.Status.Allocatable[corev1.ResourceCPU]
	greedy.Spec.Containers[0].Resources = corev1.ResourceRequirements{Requests: corev1.ResourceList{
		corev1.ResourceMemory: memory, corev1.ResourceCPU: cpu,
	}}
	e.create(greedy)
	e.start()
	pods := e.jobRuns("train", 2)
	e.together(pods, 4)
	for _, pod := range pods {
		if pod.Spec.NodeName == full {
			t.Errorf("pod %s runs on the node that is full", pod.Name)
		}
	}
}

// An invalid spec that the API server takes is told, with the field.
func TestAnInvalidGangSaysSo(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	e.start()
	gang := e.gang("train", 2, 4, func(g *v1alpha1.GangClaim) {
		g.Spec.Config = []resourceapi.DeviceClaimConfiguration{{DeviceConfiguration: resourceapi.DeviceConfiguration{
			Opaque: &resourceapi.OpaqueDeviceConfiguration{Driver: v1alpha1.DriverName},
		}}}
		g.Spec.Config[0].Opaque.Parameters.Raw = []byte(`{"apiVersion":"gpu.switchyard.dev/v1alpha1","kind":"Unheard"}`)
	})
	pods := e.members("train", 2)
	planned := e.waits(gang, "InvalidSpec")
	t.Log(planned.Message)
	e.event(gang, "InvalidSpec")
	e.event(pods[0], "InvalidSpec")
}

// The first controller loses its lease after it has written that the gang is released; another goes on.
func TestTheLeaseIsLostWithAGangInFlight(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	held := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.PluginNamespace, Name: controller.Name}}
	first := e.start(lease, onWrite("StatusReleasing", func() error {
		return retry.RetryOnConflict(retry.DefaultBackoff, func() error {
			if err := e.client.Get(t.Context(), client.ObjectKeyFromObject(held), held); err != nil {
				return err
			}
			held.Spec.HolderIdentity = ptr.To("someone else")
			return e.client.Update(t.Context(), held)
		})
	}))
	select {
	case <-first.done:
	case <-time.After(patience):
		t.Fatal("the controller goes on without the lease")
	}
	first.err = nil // the lease was lost, as wanted
	e.delete(held)
	e.start(lease)
	e.running(pods...)
	e.together(pods, 4)
	e.reaches(gang, v1alpha1.StepHolding)
}
