// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	authorizationv1 "k8s.io/api/authorization/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// The policies in deployments/manifests/fence-policy.yaml, tried as the users they are about.

const (
	controllerUser      = "system:serviceaccount:switchyard-system:switchyard-controller"
	claimControllerUser = "system:serviceaccount:kube-system:resource-claim-controller"
	controllerManager   = "system:kube-controller-manager"
	schedulerUser       = "system:kube-scheduler"

	writeWorkloads = "system:aggregate-to-edit"
)

// clientAs is a client as a user with whatever rights the user has.
func clientAs(t *testing.T, user string, groups ...string) kubernetes.Interface {
	t.Helper()
	return kubernetes.NewForConfigOrDie(impersonate(user, groups...))
}

// editor is a client of someone who may write workloads in a namespace, as "kubectl create rolebinding
// --clusterrole=edit" makes one.
func editor(t *testing.T, namespace string) kubernetes.Interface {
	t.Helper()
	return kubernetes.NewForConfigOrDie(asUser(t, namespace, writeWorkloads))
}

// clusterAdmin gives a user every right, and nothing but rights.
func clusterAdmin(t *testing.T, user string) kubernetes.Interface {
	t.Helper()
	binding, err := cluster.Client().RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Client().RbacV1().ClusterRoleBindings().Delete(context.Background(), binding.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	client := clientAs(t, user)
	eventually(t, user+" has its rights", func() error {
		review, err := client.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{
			Spec: authorizationv1.SelfSubjectAccessReviewSpec{ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: "*", Group: "*", Resource: "*"}},
		}, metav1.CreateOptions{})
		if err == nil && !review.Status.Allowed {
			err = errors.New(review.Status.Reason)
		}
		return err
	})
	return client
}

// fencesAreGuarded waits until the API server enforces the policies, which it reads a moment after they are
// written.
func fencesAreGuarded(t *testing.T) {
	t.Helper()
	eventually(t, "the policies are in force", func() error {
		everything := tolerating(resourceapi.DeviceToleration{Operator: resourceapi.DeviceTolerationOpExists})
		marked := claimOf(tolerating())
		marked.Labels = map[string]string{v1alpha1.GangLabel: "uid"}
		for _, refused := range []error{
			createClaim(t, cluster.Client(), "default", claimOf(everything), metav1.DryRunAll),
			createClaim(t, cluster.Client(), "default", marked, metav1.DryRunAll),
			createRule(t, cluster.Client(), fenceRule("probe"), metav1.DryRunAll),
		} {
			if refused == nil {
				return errors.New("a policy is not enforced")
			}
		}
		return nil
	})
}

func createClaim(t *testing.T, client kubernetes.Interface, namespace string, claim *resourceapi.ResourceClaim, dryRun ...string) error {
	t.Helper()
	_, err := client.ResourceV1().ResourceClaims(namespace).Create(t.Context(), claim, metav1.CreateOptions{DryRun: dryRun})
	return err
}

// createTemplate creates a template of such claims, with labels of its own.
func createTemplate(t *testing.T, client kubernetes.Interface, namespace string, claim *resourceapi.ResourceClaim, labels map[string]string, dryRun ...string) error {
	t.Helper()
	template := &resourceapi.ResourceClaimTemplate{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fence-", Labels: labels},
		Spec: resourceapi.ResourceClaimTemplateSpec{
			ObjectMeta: metav1.ObjectMeta{Labels: claim.Labels, Annotations: claim.Annotations},
			Spec:       claim.Spec,
		},
	}
	_, err := client.ResourceV1().ResourceClaimTemplates(namespace).Create(t.Context(), template, metav1.CreateOptions{DryRun: dryRun})
	return err
}

func createRule(t *testing.T, client kubernetes.Interface, rule *resourceapi.DeviceTaintRule, dryRun ...string) error {
	t.Helper()
	_, err := client.ResourceV1().DeviceTaintRules().Create(t.Context(), rule, metav1.CreateOptions{DryRun: dryRun})
	return err
}

func claimOf(requests ...resourceapi.DeviceRequest) *resourceapi.ResourceClaim {
	for i := range requests {
		requests[i].Name = fmt.Sprintf("request-%d", i)
	}
	return &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fence-"},
		Spec:       resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: requests}},
	}
}

func tolerating(tolerations ...resourceapi.DeviceToleration) resourceapi.DeviceRequest {
	return resourceapi.DeviceRequest{Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: v1alpha1.DriverName, Tolerations: tolerations}}
}

func firstOf(tolerations ...[]resourceapi.DeviceToleration) resourceapi.DeviceRequest {
	var request resourceapi.DeviceRequest
	for i, t := range tolerations {
		request.FirstAvailable = append(request.FirstAvailable, resourceapi.DeviceSubRequest{
			Name: fmt.Sprintf("alternative-%d", i), DeviceClassName: v1alpha1.DriverName, Tolerations: t,
		})
	}
	return request
}

// fenceRule is a rule on a device that does not exist.
func fenceRule(value string) *resourceapi.DeviceTaintRule {
	return &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "fence-"},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("no-node")},
			Taint:          resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: value, Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}
}

func TestOthersMayNotTolerateAFence(t *testing.T) {
	namespace := newNamespace(t)
	fencesAreGuarded(t)
	user, admin, controller := editor(t, namespace), clusterAdmin(t, "fence-admin"), clusterAdmin(t, controllerUser)
	eventually(t, "the user has its rights", func() error { return createClaim(t, user, namespace, claimOf(tolerating()), metav1.DryRunAll) })

	const exists, equal = resourceapi.DeviceTolerationOpExists, resourceapi.DeviceTolerationOpEqual
	one := func(tolerations ...resourceapi.DeviceToleration) []resourceapi.DeviceToleration { return tolerations }
	other := resourceapi.DeviceToleration{Key: "gpu.switchyard.dev/unhealthy", Operator: exists}
	everything := resourceapi.DeviceToleration{Operator: exists}
	monitor := tolerating(everything)
	monitor.Exactly.AllocationMode, monitor.Exactly.AdminAccess = resourceapi.DeviceAllocationModeAll, ptr.To(true)
	for name, tc := range map[string]struct {
		requests []resourceapi.DeviceRequest
		denied   string // the field, below devices; empty: allowed
	}{
		"no request":                   {},
		"no toleration":                {requests: []resourceapi.DeviceRequest{tolerating(), firstOf(nil, nil)}},
		"another taint":                {requests: []resourceapi.DeviceRequest{tolerating(other), firstOf(one(other))}},
		"a key like the fence's":       {requests: []resourceapi.DeviceRequest{tolerating(resourceapi.DeviceToleration{Key: "switchyard.dev/reserved-by-me", Operator: exists})}},
		"adminAccess":                  {requests: []resourceapi.DeviceRequest{monitor}},
		"Equal":                        {[]resourceapi.DeviceRequest{tolerating(resourceapi.DeviceToleration{Key: v1alpha1.ReservedTaintKey, Operator: equal, Value: "uid"})}, "requests[0].exactly.tolerations"},
		"Exists":                       {[]resourceapi.DeviceRequest{tolerating(resourceapi.DeviceToleration{Key: v1alpha1.ReservedTaintKey, Operator: exists})}, "requests[0].exactly.tolerations"},
		"Exists of another effect":     {[]resourceapi.DeviceRequest{tolerating(resourceapi.DeviceToleration{Key: v1alpha1.ReservedTaintKey, Operator: exists, Effect: "NoExecute"})}, "requests[0].exactly.tolerations"},
		"empty key, Exists":            {[]resourceapi.DeviceRequest{tolerating(everything)}, "requests[0].exactly.tolerations"},
		"empty key, Equal":             {[]resourceapi.DeviceRequest{tolerating(resourceapi.DeviceToleration{Operator: equal})}, "requests[0].exactly.tolerations"},
		"empty key, one effect":        {[]resourceapi.DeviceRequest{tolerating(resourceapi.DeviceToleration{Operator: exists, Effect: "NoSchedule"})}, "requests[0].exactly.tolerations"},
		"among others":                 {[]resourceapi.DeviceRequest{tolerating(other), tolerating(other, everything)}, "requests[1].exactly.tolerations"},
		"beside adminAccess":           {[]resourceapi.DeviceRequest{*monitor.DeepCopy(), tolerating(everything)}, "requests[1].exactly.tolerations"},
		"an alternative by key":        {[]resourceapi.DeviceRequest{firstOf(nil, one(other, resourceapi.DeviceToleration{Key: v1alpha1.ReservedTaintKey, Operator: exists}))}, "requests[0].firstAvailable[1].tolerations"},
		"an alternative, empty key":    {[]resourceapi.DeviceRequest{firstOf(one(everything))}, "requests[0].firstAvailable[0].tolerations"},
		"an alternative by its value":  {[]resourceapi.DeviceRequest{firstOf(one(resourceapi.DeviceToleration{Key: v1alpha1.ReservedTaintKey, Operator: equal, Value: "uid"}))}, "requests[0].firstAvailable[0].tolerations"},
		"in a request of alternatives": {[]resourceapi.DeviceRequest{tolerating(), firstOf(nil, nil, one(everything))}, "requests[1].firstAvailable[2].tolerations"},
	} {
		t.Run(name, func(t *testing.T) {
			claim := claimOf(tc.requests...)
			// The function that looks for older claims judges as the policy does.
			path, tolerates := v1alpha1.ToleratesFence(claim.Spec)
			if tolerates != (tc.denied != "") || tolerates && !strings.HasPrefix(path, "devices."+tc.denied+"[") {
				t.Errorf("ToleratesFence = %q, %t, want %q", path, tolerates, tc.denied)
			}
			for who, client := range map[string]kubernetes.Interface{"a user": user, "a cluster admin": admin} {
				for what, create := range map[string]struct {
					err  error
					path string
				}{
					"claim":    {createClaim(t, client, namespace, claim, metav1.DryRunAll), "spec.devices."},
					"template": {createTemplate(t, client, namespace, claim, nil, metav1.DryRunAll), "spec.spec.devices."},
				} {
					t.Run(who+" creates a "+what, func(t *testing.T) {
						if tc.denied == "" {
							wantError(t, create.err)
							return
						}
						wantError(t, create.err, "switchyard-fence-tolerations", create.path+tc.denied+": ", v1alpha1.ReservedTaintKey, "remove the toleration")
					})
				}
			}
			claim.Labels = map[string]string{v1alpha1.GangLabel: "uid"} // the controller makes no others
			wantError(t, createClaim(t, controller, namespace, claim, metav1.DryRunAll))
			wantError(t, createTemplate(t, controller, namespace, claim, claim.Labels, metav1.DryRunAll))
		})
	}
}

// A gang's claims are made by the claim controller and written by the scheduler.
func TestKubernetesWorksOnClaimsThatTolerateAFence(t *testing.T) {
	namespace := newNamespace(t)
	fencesAreGuarded(t)
	gang := claimOf(tolerating(resourceapi.DeviceToleration{Key: v1alpha1.ReservedTaintKey, Operator: resourceapi.DeviceTolerationOpEqual, Value: "uid"}))
	gang.Name, gang.GenerateName = "member", ""
	gang.Labels = map[string]string{v1alpha1.GangLabel: "uid", v1alpha1.PlanLabel: "hash"}

	// The claim controller, under both names it may have, with the rights that Kubernetes gives it.
	wantError(t, createClaim(t, clientAs(t, claimControllerUser), namespace, gang))
	asManager := kubernetes.NewForConfigOrDie(impersonate(controllerManager))
	bindUser(t, namespace, writeWorkloads, controllerManager)
	other := gang.DeepCopy()
	other.Name = "other"
	eventually(t, "the controller manager creates a claim", func() error { return createClaim(t, asManager, namespace, other) })
	// But no template: those it copies, it does not write.
	wantError(t, createTemplate(t, asManager, namespace, gang, nil, metav1.DryRunAll), "denied request")

	// The scheduler writes its finalizer and the allocation, with the rights that Kubernetes gives it.
	scheduler := clientAs(t, schedulerUser).ResourceV1().ResourceClaims(namespace)
	claim, err := scheduler.Get(t.Context(), "member", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	claim.Finalizers = append(claim.Finalizers, resourceapi.Finalizer)
	if claim, err = scheduler.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("the scheduler's finalizer is refused: %v", err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "request-0", Driver: v1alpha1.DriverName, Pool: "no-node", Device: "gpu-0"},
	}}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "pod", UID: "pod-uid"}}
	if claim, err = scheduler.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("the scheduler's allocation is refused: %v", err)
	}

	// The controller opens the start gate, and the claim controller gives everything back.
	controller := clusterAdmin(t, controllerUser).ResourceV1().ResourceClaims(namespace)
	if _, err := controller.Patch(t.Context(), claim.Name, types.MergePatchType, mark("annotations", v1alpha1.ReadyAnnotation, "hash"), metav1.PatchOptions{}); err != nil {
		t.Errorf("the controller marks a claim ready: %v", err)
	}
	theirs := clientAs(t, claimControllerUser).ResourceV1().ResourceClaims(namespace)
	if claim, err = theirs.Get(t.Context(), claim.Name, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	claim.Status.ReservedFor, claim.Status.Allocation = nil, nil
	if claim, err = theirs.UpdateStatus(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Fatalf("deallocate: %v", err)
	}
	claim.Finalizers = nil
	if _, err := theirs.Update(t.Context(), claim, metav1.UpdateOptions{}); err != nil {
		t.Errorf("remove the finalizer: %v", err)
	}
	if err := theirs.Delete(t.Context(), claim.Name, metav1.DeleteOptions{}); err != nil {
		t.Errorf("delete: %v", err)
	}
}

func mark(kind, key, value string) []byte {
	return fmt.Appendf(nil, `{"metadata": {%q: {%q: %q}}}`, kind, key, value)
}

func TestOthersMayNotPassAnythingOffAsAGangs(t *testing.T) {
	namespace := newNamespace(t)
	fencesAreGuarded(t)
	user, controller := editor(t, namespace), clusterAdmin(t, controllerUser)
	marks := []struct{ kind, key string }{{"labels", v1alpha1.GangLabel}, {"labels", v1alpha1.PlanLabel}, {"annotations", v1alpha1.ReadyAnnotation}}
	with := func(kind, key string) *resourceapi.ResourceClaim {
		claim := claimOf(tolerating())
		switch kind {
		case "labels":
			claim.Labels = map[string]string{key: "forged"}
		case "annotations":
			claim.Annotations = map[string]string{key: "forged"}
		}
		return claim
	}
	eventually(t, "the user has its rights", func() error { return createClaim(t, user, namespace, claimOf(tolerating()), metav1.DryRunAll) })
	for _, m := range marks {
		field := "metadata." + m.kind + "[" + m.key + "]"
		t.Run("create with "+m.key, func(t *testing.T) {
			wantError(t, createClaim(t, user, namespace, with(m.kind, m.key), metav1.DryRunAll), "switchyard-gang-marks", field, "GangClaim")
			wantError(t, createTemplate(t, user, namespace, with(m.kind, m.key), nil, metav1.DryRunAll), "switchyard-gang-marks", "spec."+field)
			marked := with(m.kind, m.key)
			metav1.SetMetaDataLabel(&marked.ObjectMeta, v1alpha1.GangLabel, "uid")
			wantError(t, createClaim(t, controller, namespace, marked, metav1.DryRunAll))
		})
	}
	t.Run("create with other labels", func(t *testing.T) {
		wantError(t, createClaim(t, user, namespace, with("labels", "example.com/gang"), metav1.DryRunAll))
		wantError(t, createTemplate(t, user, namespace, with("annotations", "example.com/ready"), nil, metav1.DryRunAll))
	})

	gang := claimOf(tolerating())
	gang.Name, gang.GenerateName = "member", ""
	gang.Labels = map[string]string{v1alpha1.GangLabel: "uid", v1alpha1.PlanLabel: "hash"}
	if err := createClaim(t, controller, namespace, gang); err != nil {
		t.Fatal(err)
	}
	plain := claimOf(tolerating())
	plain.Name, plain.GenerateName = "plain", ""
	if err := createClaim(t, user, namespace, plain); err != nil {
		t.Fatal(err)
	}
	claims := user.ResourceV1().ResourceClaims(namespace)
	for name, tc := range map[string]struct {
		claim, patch string
		subresource  []string
		denied       string
	}{
		"open the start gate":                {claim: "member", patch: string(mark("annotations", v1alpha1.ReadyAnnotation, "hash")), denied: v1alpha1.ReadyAnnotation},
		"change the plan":                    {claim: "member", patch: string(mark("labels", v1alpha1.PlanLabel, "other")), denied: v1alpha1.PlanLabel},
		"take a claim out of its gang":       {claim: "member", patch: `{"metadata": {"labels": null}}`, denied: v1alpha1.GangLabel},
		"put a claim into a gang":            {claim: "plain", patch: string(mark("labels", v1alpha1.GangLabel, "uid")), denied: v1alpha1.GangLabel},
		"label a gang's claim otherwise":     {claim: "member", patch: string(mark("labels", "example.com/team", "a"))},
		"touch a gang's claim":               {claim: "member", patch: string(mark("annotations", v1alpha1.TouchedAnnotation, "now"))},
		"mark ready through the status door": {claim: "member", patch: string(mark("annotations", v1alpha1.ReadyAnnotation, "hash")), subresource: []string{"status"}},
	} {
		t.Run(name, func(t *testing.T) {
			client := claims
			if len(tc.subresource) > 0 { // the strongest who may: the API server keeps metadata out of it
				client = clusterAdmin(t, "status-writer").ResourceV1().ResourceClaims(namespace)
			}
			patched, err := client.Patch(t.Context(), tc.claim, types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{}, tc.subresource...)
			if tc.denied != "" {
				wantError(t, err, "switchyard-gang-marks", "metadata.", tc.denied, "leave it as it was")
				return
			}
			wantError(t, err)
			if err == nil && patched.Annotations[v1alpha1.ReadyAnnotation] != "" {
				t.Error("the claim is marked ready")
			}
		})
	}
	// Whoever may delete claims may delete these.
	wantError(t, claims.Delete(t.Context(), "member", metav1.DeleteOptions{}))
}

func TestOthersMayNotPutUpAFence(t *testing.T) {
	fencesAreGuarded(t)
	admin, controller := clusterAdmin(t, "fence-builder"), clusterAdmin(t, controllerUser)
	rules := admin.ResourceV1().DeviceTaintRules()

	wantError(t, createRule(t, admin, fenceRule("mine")), "switchyard-fences", "spec.taint.key", "choose another key")
	labelled := fenceRule("")
	labelled.Spec.Taint.Key = "example.com/broken"
	labelled.Labels = map[string]string{v1alpha1.GangLabel: "uid"}
	wantError(t, createRule(t, admin, labelled), "switchyard-gang-marks", "metadata.labels["+v1alpha1.GangLabel+"]")

	// Rules of one's own.
	own := fenceRule("")
	own.Name, own.GenerateName, own.Spec.Taint.Key = "own-rule", "", "example.com/broken"
	wantError(t, createRule(t, admin, own))
	t.Cleanup(func() { _ = rules.Delete(context.Background(), own.Name, metav1.DeleteOptions{}) })
	patch := func(name, patch string) error {
		_, err := rules.Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}
	wantError(t, patch(own.Name, `{"spec": {"taint": {"effect": "NoExecute"}}}`))
	wantError(t, patch(own.Name, `{"spec": {"taint": {"key": "switchyard.dev/reserved"}}}`), "switchyard-fences", "spec")

	// The controller's.
	fence := fenceRule("uid")
	fence.Name, fence.GenerateName = "fence-of-a-gang", ""
	fence.Labels = map[string]string{v1alpha1.GangLabel: "uid", v1alpha1.PlanLabel: "hash"}
	wantError(t, createRule(t, controller, fence))
	for name, tc := range map[string]struct {
		patch  string
		denied []string
	}{
		"for another gang":     {`{"spec": {"taint": {"value": "other"}}}`, []string{"switchyard-fences", "spec", "effect to None"}},
		"with eviction":        {`{"spec": {"taint": {"effect": "NoExecute"}}}`, []string{"switchyard-fences"}},
		"on another pool":      {`{"spec": {"deviceSelector": {"pool": "other"}}}`, []string{"switchyard-fences"}},
		"under another key":    {`{"spec": {"taint": {"key": "example.com/a", "effect": "None"}}}`, []string{"switchyard-fences"}},
		"without its label":    {`{"metadata": {"labels": null}}`, []string{"switchyard-gang-marks"}},
		"with a note":          {`{"metadata": {"annotations": {"example.com/note": "a"}}}`, nil},
		"without its effect":   {`{"spec": {"taint": {"effect": "None"}}}`, nil},
		"with a touch of ours": {string(mark("annotations", v1alpha1.TouchedAnnotation, "now")), nil},
	} {
		t.Run("change a fence: "+name, func(t *testing.T) {
			_, err := rules.Patch(t.Context(), fence.Name, types.MergePatchType, []byte(tc.patch), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
			wantError(t, err, tc.denied...)
		})
	}
	wantError(t, patch(fence.Name, `{"spec": {"taint": {"effect": "None"}}}`))
	wantError(t, rules.Delete(t.Context(), fence.Name, metav1.DeleteOptions{}))

	// Without rights nobody gets that far.
	namespace := newNamespace(t)
	wantError(t, createRule(t, editor(t, namespace), fenceRule("mine")), "cannot create resource")
}
