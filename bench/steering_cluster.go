// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	mostAllocatedProfile = "most-allocated"
	extendedGPU          = "nvidia.com/gpu"
	// secondThoughts is how long a pod without a place may still get one.
	secondThoughts = 150 * time.Millisecond
)

// steeringProfiles are the scheduler's own profile and one that prefers nodes of which more is requested. The
// guide has the same.
const steeringProfiles = `{
  "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
  "clientConnection": {"kubeconfig": %q, "qps": 2000, "burst": 4000}, "leaderElection": {"leaderElect": false},
  "profiles": [{"schedulerName": "default-scheduler"}, {
    "schedulerName": "most-allocated",
    "pluginConfig": [{"name": "NodeResourcesFit", "args": {"scoringStrategy": {"type": "MostAllocated", "resources": [
      {"name": "cpu", "weight": 1}, {"name": "nvidia.com/gpu", "weight": 5}]}}}]
  }]}`

// steeringRun is one side on one cluster.
type steeringRun struct {
	*gangCluster
	*steeringPublisher
	side      steeringSide
	namespace string

	seen   sync.Mutex
	pods   map[string]podSeen
	claims map[string][]string // devices by claim
}

// podSeen is where a pod is, and since when; or that it has no place.
type podSeen struct {
	node          string
	bound         time.Time
	unschedulable bool
}

// steer measures one side.
func (l *Lab) steer(ctx context.Context, side steeringSide, steps []trafficStep, samples Samples) error {
	c, err := l.gangCluster(ctx, gangSetup{nodes: steeringNodes, rates: unlimitedRates, schedulerConfig: steeringProfiles})
	if err != nil {
		return err
	}
	err = c.steer(ctx, side, steps, samples)
	if err != nil {
		l.gangs = nil
		return errors.Join(err, c.Abandon())
	}
	return nil
}

func (c *gangCluster) steer(ctx context.Context, side steeringSide, steps []trafficStep, samples Samples) error {
	if err := c.Apply(ctx, manifests+"/steering"); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	publisher, err := newSteeringPublisher(ctx, c.Client(), side.publish)
	if err != nil {
		return err
	}
	defer publisher.stop()
	r := &steeringRun{gangCluster: c, steeringPublisher: publisher, side: side, pods: map[string]podSeen{}, claims: map[string][]string{}}
	if r.namespace, err = c.namespace(ctx, "steering"); err != nil {
		return err
	}
	if err := errors.Join(r.setUp(ctx), r.follow(ctx)); err != nil {
		return err
	}
	if err := r.run(ctx, steps, samples); err != nil {
		return err
	}
	return c.empty(ctx, r.namespace)
}

// setUp makes what the side's pods need.
func (r *steeringRun) setUp(ctx context.Context) error {
	namespace := &corev1.Namespace{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: r.namespace}, namespace); err != nil {
		return err
	}
	if r.side.request == admittedClaim {
		namespace.Labels["switchyard.dev/steering"] = "enabled"
		if err := r.client.Update(ctx, namespace); err != nil {
			return err
		}
	}
	class := &resourceapi.DeviceClass{}
	if err := r.client.Get(ctx, client.ObjectKey{Name: v1alpha1.DriverName}, class); err != nil {
		return err
	}
	if class.Spec.ExtendedResourceName = nil; r.side.request == extendedName {
		class.Spec.ExtendedResourceName = ptr.To(extendedGPU)
	}
	if err := r.client.Update(ctx, class); err != nil {
		return err
	}
	for _, gpus := range []int{2, 4, 8} {
		if err := r.createTemplate(ctx, r.namespace, steeringTemplate(gpus), int64(gpus)); err != nil {
			return err
		}
	}
	one, none := r.template(steeringTemplate(1)), r.template("none")
	if r.side.request == listByDomain {
		one.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{designList()}
	}
	none.Spec.Spec.Devices.Requests[0].Exactly.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
		Expression: `device.attributes["gpu.switchyard.dev"].?productName.orValue("") == "none"`,
	}}}
	if err := errors.Join(r.client.Create(ctx, one), r.client.Create(ctx, none)); err != nil {
		return err
	}
	return inParallel(steeringWaiting, func(i int) error {
		return r.client.Create(ctx, gpuPod(r.namespace, fmt.Sprintf("waiting-%d", i), "none"))
	})
}

func steeringTemplate(gpus int) string { return fmt.Sprintf("gpus-%d", gpus) }

// template is for one GPU.
func (r *steeringRun) template(name string) *resourceapi.ResourceClaimTemplate {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: name}}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName}}}
	return template
}

// designList asks for a GPU of a domain with one free, then with two, and so on.
func designList() resourceapi.DeviceRequest {
	request := resourceapi.DeviceRequest{Name: "gpus"}
	for free := 1; free <= gpusPerDomain+1; free++ {
		entry := resourceapi.DeviceSubRequest{Name: fmt.Sprintf("free-%d", free), DeviceClassName: v1alpha1.DriverName}
		if free <= gpusPerDomain {
			entry.Selectors = []resourceapi.DeviceSelector{{CEL: &resourceapi.CELDeviceSelector{
				Expression: fmt.Sprintf(`device.attributes["gpu.switchyard.dev"].?nvswitchDomainFree.orValue(0) == %d`, free),
			}}}
		}
		request.FirstAvailable = append(request.FirstAvailable, entry)
	}
	return request
}

func (r *steeringRun) pod(a arrival) *corev1.Pod {
	pod := gpuPod(r.namespace, podName(a.number), steeringTemplate(a.gpus))
	resources := &pod.Spec.Containers[0].Resources
	resources.Requests = corev1.ResourceList{corev1.ResourceCPU: *resource.NewQuantity(int64(a.cpus), resource.DecimalSI)}
	if r.side.mostAllocated {
		pod.Spec.SchedulerName = mostAllocatedProfile
	}
	if r.side.request == extendedName && a.gpus == 1 {
		pod.Spec.ResourceClaims, resources.Claims = nil, nil
		one := resource.MustParse("1")
		resources.Requests[extendedGPU], resources.Limits = one, corev1.ResourceList{extendedGPU: one}
	}
	return pod
}

func podName(number int) string { return fmt.Sprintf("pod-%d", number) }

// follow notes what becomes of the pods and claims, until ctx ends.
func (r *steeringRun) follow(ctx context.Context) error {
	factory := informers.NewSharedInformerFactoryWithOptions(r.Client(), 0, informers.WithNamespace(r.namespace))
	pods, claims := factory.Core().V1().Pods().Informer(), factory.Resource().V1().ResourceClaims().Informer()
	_, err := pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    r.seePod,
		UpdateFunc: func(_, o any) { r.seePod(o) },
	})
	_, err2 := claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(o any) { r.seeClaim(o, false) },
		UpdateFunc: func(_, o any) { r.seeClaim(o, false) },
		DeleteFunc: func(o any) { r.seeClaim(o, true) },
	})
	if err := errors.Join(err, err2); err != nil {
		return err
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), pods.HasSynced, claims.HasSynced) {
		return ctx.Err()
	}
	return nil
}

func (r *steeringRun) seePod(object any) {
	pod := object.(*corev1.Pod)
	r.seen.Lock()
	defer r.seen.Unlock()
	seen := r.pods[pod.Name]
	if seen.node == "" && pod.Spec.NodeName != "" {
		seen.node, seen.bound = pod.Spec.NodeName, time.Now()
	}
	for _, c := range pod.Status.Conditions {
		seen.unschedulable = seen.unschedulable || c.Type == corev1.PodScheduled && c.Reason == corev1.PodReasonUnschedulable
	}
	r.pods[pod.Name] = seen
}

func (r *steeringRun) seeClaim(object any, gone bool) {
	if tombstone, ok := object.(cache.DeletedFinalStateUnknown); ok {
		object = tombstone.Obj
	}
	claim := object.(*resourceapi.ResourceClaim)
	var devices []string
	if !gone && claim.Status.Allocation != nil {
		for _, result := range claim.Status.Allocation.Devices.Results {
			devices = append(devices, result.Device)
		}
	}
	r.seen.Lock()
	before := r.claims[claim.Name]
	r.claims[claim.Name] = devices
	r.seen.Unlock()
	switch {
	case len(before) == 0 && len(devices) > 0:
		r.set(devices, true)
	case len(before) > 0 && len(devices) == 0:
		r.set(before, false)
	}
}

func (r *steeringRun) look(number int) podSeen {
	r.seen.Lock()
	defer r.seen.Unlock()
	return r.pods[podName(number)]
}
