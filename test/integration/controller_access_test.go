// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// The policies in deployments/manifests/controller-policy.yaml, tried as the controller.

func TestTheControllerOnlyTouchesPods(t *testing.T) {
	namespace := newNamespace(t)
	client := clientAs(t, controllerUser)
	account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}} // made by a controller elsewhere
	if _, err := cluster.Client().CoreV1().ServiceAccounts(namespace).Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod, err := cluster.Client().CoreV1().Pods(namespace).Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "train", Labels: map[string]string{"app": "train"}, Annotations: map[string]string{"note": "mine"}},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{{Name: "work", Image: "none"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	patch := func(data string) error {
		_, err := client.CoreV1().Pods(namespace).Patch(t.Context(), pod.Name, types.StrategicMergePatchType, []byte(data), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	eventually(t, "the policy is in force", func() error {
		if patch(`{"metadata":{"labels":{"app":"other"}}}`) == nil {
			return errors.New("a label may be changed")
		}
		return nil
	})
	for name, tc := range map[string]struct{ patch, denied string }{
		"touches it":               {patch: `{"metadata":{"annotations":{"switchyard.dev/touched":"now"}}}`},
		"sets another annotation":  {`{"metadata":{"annotations":{"other":"x"}}}`, "no other annotation"},
		"changes an annotation":    {`{"metadata":{"annotations":{"note":"yours"}}}`, "no other annotation"},
		"removes an annotation":    {`{"metadata":{"annotations":{"note":null}}}`, "no other annotation"},
		"removes a label":          {`{"metadata":{"labels":{"app":null}}}`, "nothing of a pod but"},
		"sets a finalizer":         {`{"metadata":{"finalizers":["example.com/x"]}}`, "nothing of a pod but"},
		"changes the image":        {`{"spec":{"containers":[{"name":"work","image":"evil"}]}}`, "nothing of a pod but"},
		"puts a pod below another": {`{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Pod","name":"x","uid":"x"}]}}`, "nothing of a pod but"},
	} {
		expect(t, name, patch(tc.patch), tc.denied)
	}
}

func TestTheControllerLeavesAloneWhatIsOfNoGang(t *testing.T) {
	namespace := newNamespace(t)
	fencesAreGuarded(t)
	client := clientAs(t, controllerUser)
	claims, rules := client.ResourceV1().ResourceClaims(namespace), client.ResourceV1().DeviceTaintRules()
	mine, err := cluster.Client().ResourceV1().ResourceClaims(namespace).Create(t.Context(), claimOf(tolerating()), metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	remove := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	eventually(t, "the policy is in force", func() error {
		if claims.Delete(t.Context(), mine.Name, remove) == nil {
			return errors.New("any claim may be deleted")
		}
		return nil
	})
	unmarked := fenceRule("unmarked-" + namespace)
	unmarked.Labels = nil
	marked := fenceRule("marked-" + namespace)
	marked.Labels = map[string]string{v1alpha1.GangLabel: "uid"}
	other, err := cluster.Client().ResourceV1().DeviceTaintRules().Create(t.Context(), &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "admin-"},
		Spec:       resourceapi.DeviceTaintRuleSpec{Taint: resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNone}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := cluster.Client().ResourceV1().DeviceTaintRules().Delete(context.Background(), other.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	expect(t, "deletes a claim", claims.Delete(t.Context(), mine.Name, remove), "may not delete resourceclaims")
	_, err = claims.Patch(t.Context(), mine.Name, types.MergePatchType, []byte(`{"metadata":{"annotations":{"switchyard.dev/ready":"x"}}}`), metav1.PatchOptions{DryRun: remove.DryRun})
	expect(t, "marks a claim", err, "may not update resourceclaims")
	_, err = claims.Patch(t.Context(), mine.Name, types.MergePatchType, []byte(`{"metadata":{"labels":{"switchyard.dev/gang":"x"}}}`), metav1.PatchOptions{DryRun: remove.DryRun})
	expect(t, "makes a claim one of a gang", err, "may not update resourceclaims")
	expect(t, "deletes a rule", rules.Delete(t.Context(), other.Name, remove), "may not delete devicetaintrules")
	expect(t, "makes a rule of no gang", createRule(t, client, unmarked, metav1.DryRunAll), "may not create devicetaintrules")
	expect(t, "makes a fence", createRule(t, client, marked, metav1.DryRunAll), "")
	for name, change := range map[string]func(*resourceapi.DeviceTaintRuleSpec){
		"ends pods":                        func(s *resourceapi.DeviceTaintRuleSpec) { s.Taint.Effect = resourceapi.DeviceTaintEffectNoExecute },
		"sets another taint":               func(s *resourceapi.DeviceTaintRuleSpec) { s.Taint.Key = "example.com/broken" },
		"fences devices of another driver": func(s *resourceapi.DeviceTaintRuleSpec) { s.DeviceSelector.Driver = ptr.To("gpu.example.com") },
		"fences devices of any driver":     func(s *resourceapi.DeviceTaintRuleSpec) { s.DeviceSelector = nil },
	} {
		rule := marked.DeepCopy()
		change(&rule.Spec)
		expect(t, name, createRule(t, client, rule, metav1.DryRunAll), "no other taint than switchyard.dev/reserved")
	}
}

// expect fails the test unless the answer is a refusal that says denied, or none where denied is empty.
func expect(t *testing.T, what string, err error, denied string) {
	t.Helper()
	switch {
	case denied == "" && err != nil:
		t.Errorf("%s: %v, want it allowed", what, err)
	case denied != "" && (err == nil || !strings.Contains(err.Error(), denied)):
		t.Errorf("%s: %v, want it denied with %q", what, err, denied)
	}
}
