// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1beta1 "k8s.io/api/scheduling/v1beta1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	crlog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
	"github.com/switchyard-dev/switchyard/test/harness/ports"
	"github.com/switchyard-dev/switchyard/test/harness/process"
)

const (
	// gangPatience is how long anything may take that happens by itself, on a machine that is busy.
	gangPatience = 3 * time.Minute
	// writers is how many requests of a benchmark's own set-up are under way at once.
	writers = 16
	// twoDomains is the profile of the nodes.
	twoDomains = "a100-2x4"
	// gpusPerDomain is what a member of a gang asks for: a whole domain.
	gpusPerDomain = 4
	controllerApp = "switchyard-controller"
)

// gangCluster is a control plane with nodes, and the controller.
type gangCluster struct {
	*controlplane.ControlPlane
	setup      gangSetup
	dir        string
	lab        *Lab
	client     client.Client // as administrator
	nodes      []string
	controller *process.Process
}

func (c *gangCluster) prepare(ctx context.Context) error {
	crlog.SetLogger(klog.Background())
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		return err
	}
	var err error
	if c.client, err = client.New(c.ConfigFor(c.AdminToken()), client.Options{Scheme: scheme}); err != nil {
		return err
	}
	// Nobody would run their pods.
	for _, object := range []client.Object{
		&appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.PluginNamespace, Name: controlplane.PluginServiceAccount}},
		&appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Namespace: controlplane.PluginNamespace, Name: controllerApp}},
	} {
		if err := c.client.Delete(ctx, object, client.PropagationPolicy(metav1.DeletePropagationBackground)); err != nil {
			return err
		}
	}
	for i := range c.setup.nodes {
		c.nodes = append(c.nodes, fmt.Sprintf("node-%04d", i))
	}
	if err := inParallel(len(c.nodes), func(i int) error {
		return fleet.Add(ctx, c.Client(), fleet.Node{Name: c.nodes[i], Profile: twoDomains, CPU: "192"})
	}); err != nil {
		return err
	}
	if c.setup.controller {
		return c.startController(ctx)
	}
	return nil
}

// Err tells of a program that has ended by itself.
func (c *gangCluster) Err() error {
	if c.controller == nil {
		return c.ControlPlane.Err()
	}
	return errors.Join(c.ControlPlane.Err(), c.controller.Err())
}

// Close ends everything. What had ended by itself is an error.
func (c *gangCluster) Close() error {
	err := c.stopController()
	return errors.Join(err, stopCluster(c.ControlPlane, c.dir))
}

// Abandon ends everything after a failure, and says where the logs are.
func (c *gangCluster) Abandon() error {
	return errors.Join(c.stopController(), c.Stop(), fmt.Errorf("logs of the cluster: %s", c.dir))
}

func (c *gangCluster) stopController() error {
	if c.controller == nil {
		return nil
	}
	err := c.controller.Err()
	c.controller.Kill()
	return err
}

// startController runs the controller as its Deployment does, with the rights of the manifests, and waits until its caches
// are filled.
func (c *gangCluster) startController(ctx context.Context) error {
	token, err := c.controllerToken(ctx)
	if err != nil {
		return err
	}
	kubeconfig := filepath.Join(c.dir, "controller.kubeconfig")
	if err := c.WriteKubeconfig(kubeconfig, token); err != nil {
		return err
	}
	free, err := ports.Free(1)
	if err != nil {
		return err
	}
	address := fmt.Sprintf("127.0.0.1:%d", free[0])
	c.controller, err = process.Start(process.Options{
		Path: controllerProgram,
		Args: []string{
			"-v=2", "--kubeconfig=" + kubeconfig, "--metrics-address=" + address,
			"--leader-elect-namespace=" + controlplane.PluginNamespace,
		},
		LogFile: filepath.Join(c.dir, "controller.log"),
	})
	if err != nil {
		return err
	}
	return c.until(ctx, "the controller is ready", func(ctx context.Context) error {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+"/readyz", nil)
		if err != nil {
			return err
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		defer response.Body.Close()
		if response.StatusCode != http.StatusOK {
			return errors.New(response.Status)
		}
		return nil
	})
}

// controllerToken is what the controller's pod would have.
func (c *gangCluster) controllerToken(ctx context.Context) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](7200)}}
	response, err := c.Client().CoreV1().ServiceAccounts(controlplane.PluginNamespace).CreateToken(ctx, controllerApp, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request the controller's token: %w", err)
	}
	return response.Status.Token, nil
}

// namespace makes a namespace in which pods can be created at once.
func (c *gangCluster) namespace(ctx context.Context, prefix string) (string, error) {
	c.lab.namespaces++
	name := fmt.Sprintf("%s-%d", prefix, c.lab.namespaces)
	if err := c.client.Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		return "", err
	}
	// The controller manager makes it too, a little later.
	err := c.client.Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "default"}})
	if apierrors.IsAlreadyExists(err) {
		err = nil
	}
	return name, err
}

// until polls what happens by itself: check returns nil, or what is missing.
func (c *gangCluster) until(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, gangPatience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if dead := c.Err(); dead != nil {
			return dead
		}
		if pause(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("waited until %s: %w", what, err)
		}
	}
}

// pause lets time pass.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// inParallel calls do for 0 to count-1, some of them at the same time.
func inParallel(count int, do func(i int) error) error {
	var group errgroup.Group
	group.SetLimit(writers)
	for i := range count {
		group.Go(func() error { return do(i) })
	}
	return group.Wait()
}

// empty deletes everything in namespaces and waits until no claim of theirs and no gang's fence is left. Pods go at once, as they
// do when a kubelet has ended them.
func (c *gangCluster) empty(ctx context.Context, namespaces ...string) error {
	kinds := []client.Object{&v1alpha1.GangClaim{}, &corev1.Pod{}, &resourceapi.ResourceClaimTemplate{}, &resourceapi.ResourceClaim{}}
	if c.setup.native {
		kinds = append(kinds, &schedulingv1beta1.PodGroup{})
	}
	for _, namespace := range namespaces {
		for _, kind := range kinds {
			if err := c.client.DeleteAllOf(ctx, kind, client.InNamespace(namespace), client.GracePeriodSeconds(0)); err != nil {
				return fmt.Errorf("empty namespace %s: %w", namespace, err)
			}
		}
	}
	return c.until(ctx, "nothing is left", func(ctx context.Context) error {
		for _, namespace := range namespaces {
			for _, list := range []client.ObjectList{&v1alpha1.GangClaimList{}, &resourceapi.ResourceClaimList{}} {
				if err := c.none(ctx, list, client.InNamespace(namespace)); err != nil {
					return err
				}
			}
		}
		return c.none(ctx, &resourceapi.DeviceTaintRuleList{}, client.HasLabels{v1alpha1.GangLabel})
	})
}

func (c *gangCluster) none(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	if err := c.client.List(ctx, list, options...); err != nil {
		return err
	}
	if n := meta.LenList(list); n > 0 {
		return fmt.Errorf("there are %d %T", n, list)
	}
	return nil
}

// createGang makes a GangClaim, of members with a domain each, and its pods.
func (c *gangCluster) createGang(ctx context.Context, namespace, name string, members int) error {
	if err := c.createGangClaim(ctx, namespace, name, members, 0); err != nil {
		return err
	}
	return c.createMembers(ctx, namespace, name, members)
}

// createGangClaim makes a GangClaim; a timeout of 0 lets it wait for ever.
func (c *gangCluster) createGangClaim(ctx context.Context, namespace, name string, members int, timeout time.Duration) error {
	gang := &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Spec: v1alpha1.GangClaimSpec{
			Members: int32(members), DevicesPerMember: gpusPerDomain, SchedulingTimeout: &metav1.Duration{Duration: timeout},
		},
	}
	if err := c.client.Create(ctx, gang); err != nil {
		return fmt.Errorf("create gang %s: %w", name, err)
	}
	return nil
}

// createMembers makes the pods of a gang, whatever keeps that together, in no order.
func (c *gangCluster) createMembers(ctx context.Context, namespace, template string, members int, change ...func(*corev1.Pod)) error {
	return inParallel(members, func(i int) error {
		pod := gpuPod(namespace, fmt.Sprintf("%s-%d", template, i), template)
		for _, c := range change {
			c(pod)
		}
		return c.client.Create(ctx, pod)
	})
}

// createTemplate makes the template of users without gangs; several GPUs are in one domain, if one has as many.
func (c *gangCluster) createTemplate(ctx context.Context, namespace, name string, gpus int64) error {
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	devices := &template.Spec.Spec.Devices
	devices.Requests = []resourceapi.DeviceRequest{{Name: "gpus", Exactly: &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: gpus,
	}}}
	if gpus > 1 && gpus <= gpusPerDomain {
		devices.Constraints = []resourceapi.DeviceConstraint{{
			MatchAttribute: ptr.To(resourceapi.FullyQualifiedName(v1alpha1.DriverName + "/nvswitchDomain")),
		}}
	}
	if err := c.client.Create(ctx, template); err != nil {
		return fmt.Errorf("create template %s: %w", name, err)
	}
	return nil
}

// gpuPod is a pod whose claim is made from the template.
func gpuPod(namespace, name, template string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{templateLabel: template}},
		Spec: corev1.PodSpec{
			ResourceClaims: []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: &template}},
			Containers: []corev1.Container{{
				Name: "work", Image: "none",
				Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
					Claims:   []corev1.ResourceClaim{{Name: "gpus"}},
				},
			}},
		},
	}
}

// gpu is a device, with what it takes to allocate it.
type gpu struct{ node, device, domain string }

// gpus are all GPUs of the cluster.
func (c *gangCluster) gpus(ctx context.Context) ([]gpu, error) {
	list, err := c.Client().ResourceV1().ResourceSlices().List(ctx, metav1.ListOptions{})
	if err != nil {
		return nil, err
	}
	var gpus []gpu
	for _, slice := range list.Items {
		for _, device := range slice.Spec.Devices {
			gpus = append(gpus, gpu{slice.Spec.Pool.Name, device.Name, ptr.Deref(device.Attributes["nvswitchDomain"].StringValue, "")})
		}
	}
	return gpus, nil
}

// runOn makes a pod that is bound to the node of the GPUs, with a claim that has them.
func (c *gangCluster) runOn(ctx context.Context, namespace, name string, gpus ...gpu) error {
	node := gpus[0].node
	devices := make([]string, 0, len(gpus))
	for _, gpu := range gpus {
		devices = append(devices, gpu.device)
	}
	pod := gpuPod(namespace, name, "")
	pod.Spec.NodeName = node
	pod.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimName: &name}}
	if err := c.client.Create(ctx, pod); err != nil {
		return err
	}
	_, err := claim.New(namespace, name, node).Request("gpu", devices...).ReservedFor(pod).Create(ctx, c.Client())
	return err
}

// templateLabel on a pod is the template that it names.
const templateLabel = "bench.switchyard.dev/template"
