// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

// patience is how long anything may take that happens by itself; other programs may keep the machine
// busy.
const patience = time.Minute

// envLabel is on a test's nodes; its pods select them.
const envLabel = "test.switchyard.dev/env"

// env is what one test has for itself: nodes, a namespace, and the controller.
type env struct {
	t         *testing.T
	plane     *plane
	client    client.Client // as administrator
	namespace string
	nodes     []string
}

var envs atomic.Int64

var notDNS = regexp.MustCompile(`[^a-z0-9]+`)

// newEnv makes a namespace, and a node for each profile: node 0 is of the first.
func newEnv(t *testing.T, p *plane, profiles ...string) *env {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := errors.Join(clientgoscheme.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(p.ConfigFor(p.AdminToken()), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	name := notDNS.ReplaceAllString(strings.ToLower(strings.TrimPrefix(t.Name(), "Test")), "-")
	e := &env{t: t, plane: p, client: admin, namespace: fmt.Sprintf("%s-%d", strings.Trim(name[:min(len(name), 40)], "-"), envs.Add(1))}
	e.create(&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}})
	// The controller manager makes it too, a little later than pods need it.
	if err := e.client.Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: e.namespace}}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for _, profile := range profiles {
		e.addNode(fleet.Node{Profile: profile})
	}
	t.Cleanup(e.cleanUp)
	return e
}

// addNode adds a node of the test and returns its name.
func (e *env) addNode(node fleet.Node) string {
	e.t.Helper()
	node.Name = fmt.Sprintf("%s-%c", e.namespace, 'a'+len(e.nodes))
	node.Labels = map[string]string{envLabel: e.namespace}
	if err := fleet.Add(e.t.Context(), e.plane.Client(), node); err != nil {
		e.t.Fatal(err)
	}
	e.nodes = append(e.nodes, node.Name)
	return node.Name
}

// cleanUp removes what later tests would see. The test's controller has been stopped.
func (e *env) cleanUp() {
	if e.t.Failed() {
		e.dump()
	}
	ctx := context.Background() // the test's own has ended
	for _, list := range []client.Object{&v1alpha1.GangClaim{}, &corev1.Pod{}} {
		if err := e.client.DeleteAllOf(ctx, list, client.InNamespace(e.namespace), client.GracePeriodSeconds(0)); err != nil {
			e.t.Error(err)
		}
	}
	var gangs v1alpha1.GangClaimList
	if err := e.client.List(ctx, &gangs, client.InNamespace(e.namespace)); err != nil {
		e.t.Error(err)
	}
	for _, gang := range gangs.Items {
		gang.Finalizers = nil
		if err := e.client.Update(ctx, &gang); err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
			e.t.Error(err)
		}
	}
	if err := e.client.DeleteAllOf(ctx, &resourceapi.DeviceTaintRule{}); err != nil {
		e.t.Error(err)
	}
	for _, node := range e.nodes {
		if err := fleet.Remove(ctx, e.plane.Client(), node); err != nil && !apierrors.IsNotFound(err) {
			e.t.Error(err)
		}
	}
	if err := e.client.Delete(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: e.namespace}}); err != nil {
		e.t.Error(err)
	}
}

// dump logs what a person would look at first.
func (e *env) dump() {
	ctx := context.Background()
	var gangs v1alpha1.GangClaimList
	var pods corev1.PodList
	var claims resourceapi.ResourceClaimList
	var rules resourceapi.DeviceTaintRuleList
	for _, list := range []client.ObjectList{&gangs, &pods, &claims} {
		_ = e.client.List(ctx, list, client.InNamespace(e.namespace))
	}
	_ = e.client.List(ctx, &rules)
	for _, gang := range gangs.Items {
		e.t.Logf("gang %s: %s", gang.Name, describe(&gang))
	}
	for _, pod := range pods.Items {
		e.t.Logf("pod %s: %s on %q, ending %t, claims %v, %v", pod.Name, pod.Status.Phase, pod.Spec.NodeName, pod.DeletionTimestamp != nil, claimNames(&pod), pod.Status.Conditions)
	}
	for _, claim := range claims.Items {
		e.t.Logf("claim %s: devices %v, ending %t, labels %v, annotations %v", claim.Name, devicesOf(&claim), claim.DeletionTimestamp != nil, claim.Labels, claim.Annotations)
	}
	for _, rule := range rules.Items {
		e.t.Logf("rule %s: %s, %v", rule.Name, rule.Spec.Taint.Effect, rule.Annotations)
	}
}

func describe(gang *v1alpha1.GangClaim) string {
	var b strings.Builder
	fmt.Fprintf(&b, "ready %s", gang.Status.Ready)
	if plan := gang.Status.Plan; plan != nil {
		fmt.Fprintf(&b, ", plan %s (attempt %d) in step %s %s on %s", plan.Hash, plan.Attempt, plan.Step, plan.Reason, gang.Status.Domains)
	}
	for _, c := range gang.Status.Conditions {
		fmt.Fprintf(&b, "; %s=%s %s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	return b.String()
}

func claimNames(pod *corev1.Pod) []string {
	var names []string
	for _, status := range pod.Status.ResourceClaimStatuses {
		names = append(names, ptr.Deref(status.ResourceClaimName, "-"))
	}
	return names
}

func devicesOf(claim *resourceapi.ResourceClaim) []string {
	if claim.Status.Allocation == nil {
		return nil
	}
	var names []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		names = append(names, result.Pool+"/"+result.Device)
	}
	slices.Sort(names)
	return names
}

// runner is a controller that runs.
type runner struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

// start runs a controller with the rights of the manifests, alone unless configured otherwise.
func (e *env) start(configure ...func(*controller.Config)) *runner {
	e.t.Helper()
	config := controller.Config{
		Client:        e.controllerClient(),
		Workers:       4,
		SweepInterval: 2 * time.Second,
		Registry:      prometheus.NewRegistry(),
		Clock:         clock.RealClock{},
		Version:       "test",
	}
	for _, c := range configure {
		c(&config)
	}
	ctx, cancel := context.WithCancel(klog.NewContext(context.Background(), klog.LoggerWithName(logger, e.namespace)))
	r := &runner{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		r.err = controller.Run(ctx, config)
	}()
	e.t.Cleanup(func() {
		if err := r.stop(); err != nil && !e.t.Failed() {
			e.t.Errorf("the controller ended with: %v", err)
		}
	})
	return r
}

func (r *runner) stop() error {
	r.cancel()
	<-r.done
	return r.err
}

// controllerClient acts as the controller's service account.
func (e *env) controllerClient() *rest.Config {
	e.t.Helper()
	token := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: ptr.To[int64](3600)}}
	token, err := e.plane.Client().CoreV1().ServiceAccounts(controlplane.PluginNamespace).
		CreateToken(e.t.Context(), controller.Name, token, metav1.CreateOptions{})
	if err != nil {
		e.t.Fatal(err)
	}
	return e.plane.ConfigFor(token.Status.Token)
}

func (e *env) create(object client.Object) {
	e.t.Helper()
	if err := e.client.Create(e.t.Context(), object); err != nil {
		e.t.Fatalf("create %T %s: %v", object, object.GetName(), err)
	}
}

func (e *env) delete(object client.Object, options ...client.DeleteOption) {
	e.t.Helper()
	if err := e.client.Delete(e.t.Context(), object, options...); err != nil {
		e.t.Fatalf("delete %T %s: %v", object, object.GetName(), err)
	}
}

// gang creates a GangClaim.
func (e *env) gang(name string, members, perMember int32, change ...func(*v1alpha1.GangClaim)) *v1alpha1.GangClaim {
	e.t.Helper()
	gang := &v1alpha1.GangClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec:       v1alpha1.GangClaimSpec{Members: members, DevicesPerMember: perMember},
	}
	for _, c := range change {
		c(gang)
	}
	e.create(gang)
	return gang
}

// pod is a pod of the test that is not created yet. Its claim is made from the template.
func (e *env) pod(name, template string, change ...func(*corev1.Pod)) *corev1.Pod {
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name},
		Spec:       e.podSpec(template),
	}
	for _, c := range change {
		c(pod)
	}
	return pod
}

func (e *env) podSpec(template string) corev1.PodSpec {
	return corev1.PodSpec{
		NodeSelector:                  map[string]string{envLabel: e.namespace},
		TerminationGracePeriodSeconds: ptr.To[int64](1),
		ResourceClaims:                []corev1.PodResourceClaim{{Name: "gpus", ResourceClaimTemplateName: &template}},
		Containers: []corev1.Container{{
			Name: "work", Image: "none",
			Resources: corev1.ResourceRequirements{
				Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")},
				Claims:   []corev1.ResourceClaim{{Name: "gpus"}},
			},
		}},
	}
}

// members creates the pods <gang>-0 to <gang>-<n-1>.
func (e *env) members(gang string, n int, change ...func(*corev1.Pod)) []*corev1.Pod {
	e.t.Helper()
	pods := make([]*corev1.Pod, n)
	for i := range pods {
		pods[i] = e.pod(fmt.Sprintf("%s-%d", gang, i), gang, change...)
		e.create(pods[i])
	}
	return pods
}

// singles are the template and the pods of users who want GPUs and no gang. on pins them to a node.
func (e *env) single(name string, gpus int64, selectors ...string) *corev1.Pod {
	e.t.Helper()
	e.template(name, gpus, selectors...)
	pod := e.pod(name, name)
	e.create(pod)
	return pod
}

// template makes a template for GPUs of no gang.
func (e *env) template(name string, gpus int64, selectors ...string) {
	e.t.Helper()
	template := &resourceapi.ResourceClaimTemplate{ObjectMeta: metav1.ObjectMeta{Namespace: e.namespace, Name: name}}
	exactly := &resourceapi.ExactDeviceRequest{
		DeviceClassName: v1alpha1.DriverName, AllocationMode: resourceapi.DeviceAllocationModeExactCount, Count: gpus,
	}
	for _, expression := range selectors {
		exactly.Selectors = append(exactly.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{Expression: expression}})
	}
	template.Spec.Spec.Devices.Requests = []resourceapi.DeviceRequest{{Name: "gpu", Exactly: exactly}}
	e.create(template)
}

// inDomain selects the devices of the n-th domain of a node.
func inDomain(node string, n int) string {
	return fmt.Sprintf(`device.attributes["%s"].?nvswitchDomain.orValue("") == "%s.%d"`, v1alpha1.DriverName, node, n)
}

// eventually waits until check returns nil.
func (e *env) eventually(what string, check func() error) {
	e.t.Helper()
	e.eventuallyWithin(patience, what, check)
}

// eventuallyWithin is eventually for what takes longer.
func (e *env) eventuallyWithin(patience time.Duration, what string, check func() error) {
	e.t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return
		}
		select {
		case <-tick.C:
		case <-deadline:
			e.t.Fatalf("waited %v until %s: %v", patience, what, err)
		}
	}
}

// get reads an object anew; false when it is not there.
func (e *env) get(object client.Object) bool {
	e.t.Helper()
	err := e.client.Get(context.Background(), client.ObjectKeyFromObject(object), object)
	if err != nil && !apierrors.IsNotFound(err) {
		e.t.Fatal(err)
	}
	return err == nil
}

// running waits until the pods run.
func (e *env) running(pods ...*corev1.Pod) {
	e.t.Helper()
	for _, pod := range pods {
		e.eventually("pod "+pod.Name+" runs", func() error {
			if !e.get(pod) || pod.Status.Phase != corev1.PodRunning {
				return fmt.Errorf("it is %s on %q", pod.Status.Phase, pod.Spec.NodeName)
			}
			return nil
		})
	}
}

// reaches waits until the gang's plan is in one of the steps.
func (e *env) reaches(gang *v1alpha1.GangClaim, steps ...v1alpha1.GangStep) {
	e.t.Helper()
	e.eventually(fmt.Sprintf("gang %s is in step %v", gang.Name, steps), func() error {
		if e.get(gang) && gang.Status.Plan != nil && slices.Contains(steps, gang.Status.Plan.Step) {
			return nil
		}
		return errors.New(describe(gang))
	})
}

// waits waits until the gang's condition Planned is false for the reason.
func (e *env) waits(gang *v1alpha1.GangClaim, reason string) metav1.Condition {
	e.t.Helper()
	var found metav1.Condition
	e.eventually(fmt.Sprintf("gang %s waits with reason %s", gang.Name, reason), func() error {
		e.get(gang)
		c := meta.FindStatusCondition(gang.Status.Conditions, v1alpha1.ConditionPlanned)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != reason {
			return errors.New(describe(gang))
		}
		found = *c
		return nil
	})
	return found
}

// claimOf returns the claim of a pod.
func (e *env) claimOf(pod *corev1.Pod) *resourceapi.ResourceClaim {
	e.t.Helper()
	e.get(pod)
	for _, name := range claimNames(pod) {
		claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: name}}
		if e.get(claim) {
			return claim
		}
	}
	e.t.Fatalf("pod %s has no claim", pod.Name)
	return nil
}

// domainsOf returns the NVSwitch domains of the devices of a pod.
func (e *env) domainsOf(pod *corev1.Pod) []string {
	e.t.Helper()
	var slicesOfNode resourceapi.ResourceSliceList
	if err := e.client.List(e.t.Context(), &slicesOfNode); err != nil {
		e.t.Fatal(err)
	}
	domain := map[string]string{}
	for _, slice := range slicesOfNode.Items {
		for _, d := range slice.Spec.Devices {
			domain[slice.Spec.Pool.Name+"/"+d.Name] = ptr.Deref(d.Attributes["nvswitchDomain"].StringValue, "")
		}
	}
	var found []string
	for _, d := range devicesOf(e.claimOf(pod)) {
		if name := domain[d]; !slices.Contains(found, name) {
			found = append(found, name)
		}
	}
	return found
}

// together checks that the pods are one gang that was started as such: one claim each, allocated, no
// device twice, each in one domain, and all started within a second and a half of each other.
func (e *env) together(pods []*corev1.Pod, perMember int) {
	e.t.Helper()
	seen := map[string]string{}
	var first, last time.Time
	for _, pod := range pods {
		devices := devicesOf(e.claimOf(pod))
		if len(devices) != perMember {
			e.t.Errorf("pod %s has %d devices, want %d", pod.Name, len(devices), perMember)
		}
		for _, d := range devices {
			if other, twice := seen[d]; twice {
				e.t.Errorf("device %s is allocated for pods %s and %s", d, other, pod.Name)
			}
			seen[d] = pod.Name
		}
		if domains := e.domainsOf(pod); len(domains) != 1 {
			e.t.Errorf("the devices of pod %s are in domains %v, want one", pod.Name, domains)
		}
		at, ok := e.plane.kubelet.Started(pod.UID)
		if !ok {
			e.t.Errorf("pod %s has not started", pod.Name)
			continue
		}
		if first.IsZero() || at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	e.t.Logf("the members started within %v", last.Sub(first))
}

// nothing checks that no object of the gang is left, and that no pod holds devices for it.
func (e *env) nothing(gang *v1alpha1.GangClaim) {
	e.t.Helper()
	e.eventually("nothing is left of gang "+gang.Name, func() error {
		of := client.MatchingLabels{v1alpha1.GangLabel: string(gang.UID)}
		var left []string
		for _, list := range []client.ObjectList{&resourceapi.ResourceClaimTemplateList{}, &resourceapi.ResourceClaimList{}, &resourceapi.DeviceTaintRuleList{}} {
			if err := e.client.List(e.t.Context(), list, of); err != nil {
				return err
			}
			items, err := meta.ExtractList(list)
			if err != nil {
				return err
			}
			for _, item := range items {
				left = append(left, fmt.Sprintf("%T %s", item, item.(client.Object).GetName()))
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("%v are left", left)
		}
		return nil
	})
}

// event waits until there is an Event about the object.
func (e *env) event(object client.Object, reason string) {
	e.t.Helper()
	e.eventually("an Event tells of "+reason+" of "+object.GetName(), func() error {
		events, err := e.plane.Client().CoreV1().Events(object.GetNamespace()).List(e.t.Context(), metav1.ListOptions{
			FieldSelector: "involvedObject.uid=" + string(object.GetUID()),
		})
		if err != nil {
			return err
		}
		var reasons []string
		for _, event := range events.Items {
			if event.Reason == reason {
				return nil
			}
			reasons = append(reasons, event.Reason)
		}
		return fmt.Errorf("there are Events of %v", reasons)
	})
}
