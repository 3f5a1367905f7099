// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// The rights in deployments/manifests, tried with the token that a pod of the DaemonSet has.
func TestThePluginWritesSlicesOfItsOwnNodePoolAndDriverOnly(t *testing.T) {
	n := newNode(t, "t4")
	other := newNode(t, "t4")
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(n.token))
	if err != nil {
		t.Fatal(err)
	}
	// The API server reads new policies a moment after they are written.
	eventually(t, "the policy is in force", func() error {
		slice := sliceOf(n.Name, &other.Name, v1alpha1.DriverName)
		if _, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err == nil {
			return errors.New("a slice of another node is accepted")
		}
		return nil
	})
	for name, tc := range map[string]struct {
		node      *string
		pool      string // empty: that of the node
		driver    string
		denied    string // part of the answer; empty: allowed
		mayDelete bool   // although it is denied
	}{
		"own node":         {node: &n.Name, driver: v1alpha1.DriverName},
		"another node":     {node: &other.Name, driver: v1alpha1.DriverName, denied: "may not write a ResourceSlice of node " + other.Name},
		"no single node":   {driver: v1alpha1.DriverName, denied: "may not write a ResourceSlice of no single node"},
		"another's driver": {node: &n.Name, driver: "gpu.example.com", denied: "may not write a ResourceSlice of driver gpu.example.com"},
		"another's pool":   {node: &n.Name, pool: other.Name, driver: v1alpha1.DriverName, denied: "may not write a ResourceSlice of pool " + other.Name, mayDelete: true},
	} {
		t.Run(name, func(t *testing.T) {
			slice := sliceOf(cmp.Or(tc.pool, n.Name), tc.node, tc.driver)
			for verb, do := range map[string]func(slice *resourceapi.ResourceSlice) error{
				"create": func(slice *resourceapi.ResourceSlice) error {
					_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
					return err
				},
				"update": func(slice *resourceapi.ResourceSlice) error {
					existing := n.adminCreateSlice(t, slice)
					existing.Spec.Pool.Generation++
					_, err := client.ResourceV1().ResourceSlices().Update(t.Context(), existing, metav1.UpdateOptions{})
					return err
				},
				"delete": func(slice *resourceapi.ResourceSlice) error {
					existing := n.adminCreateSlice(t, slice)
					return client.ResourceV1().ResourceSlices().Delete(t.Context(), existing.Name, metav1.DeleteOptions{})
				},
			} {
				denied := tc.denied
				if tc.mayDelete && verb == "delete" {
					denied = ""
				}
				expect(t, verb, do(slice), denied)
			}
		})
	}
}

// Who has a node has the credentials of its kubelet too, which may write slices of its node in any pool.
func TestAKubeletWritesSlicesOfItsOwnPoolOnly(t *testing.T) {
	n := newNode(t, "t4")
	other := newNode(t, "t4")
	client, err := kubernetes.NewForConfig(impersonate("system:node:"+n.Name, "system:nodes", "system:authenticated"))
	if err != nil {
		t.Fatal(err)
	}
	create := func(slice *resourceapi.ResourceSlice) error {
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	eventually(t, "the policy is in force", func() error {
		if create(sliceOf(other.Name, &n.Name, v1alpha1.DriverName)) == nil {
			return errors.New("a slice of another node's pool is accepted")
		}
		return nil
	})
	expect(t, "create in another's pool", create(sliceOf(other.Name, &n.Name, v1alpha1.DriverName)), "node "+n.Name+" may not write a ResourceSlice of pool "+other.Name)
	expect(t, "create in its pool", create(sliceOf(n.Name, &n.Name, v1alpha1.DriverName)), "")
	expect(t, "create for another driver", create(sliceOf("any", &n.Name, "gpu.example.com")), "")
	mine := n.adminCreateSlice(t, sliceOf(n.Name, &n.Name, v1alpha1.DriverName))
	// The authorizer of nodes learns of a slice a moment after it was made.
	eventually(t, "delete, as kubelets do of plugins that are gone", func() error {
		return client.ResourceV1().ResourceSlices().Delete(t.Context(), mine.Name, metav1.DeleteOptions{})
	})
}

// Selectors that are right on what is documented must not fail on the slice of a node: kube-scheduler would not place the pod
// on any other either.
func TestThePluginPublishesAttributesOfTheDocumentedTypesOnly(t *testing.T) {
	n := newNode(t, "t4")
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(n.token))
	if err != nil {
		t.Fatal(err)
	}
	create := func(name resourceapi.QualifiedName, value resourceapi.DeviceAttribute) error {
		slice := sliceOf(n.Name, &n.Name, v1alpha1.DriverName)
		slice.Spec.Devices = []resourceapi.Device{{Name: "gpu-0", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{name: value}}}
		_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	text := resourceapi.DeviceAttribute{StringValue: ptr.To("9.0.0")}
	eventually(t, "the policy is in force", func() error {
		if create("nodeWhole", text) == nil {
			return errors.New("a string is accepted in place of a bool")
		}
		return nil
	})
	const denied = "with another type than documented"
	expect(t, "a version as a string", create("cudaComputeCapability", text), denied)
	expect(t, "a number as a string", create("nvswitchDomainFree", text), denied)
	expect(t, "a bool as a string", create("nodeWhole", text), denied)
	expect(t, "a string as a number", create("uuid", resourceapi.DeviceAttribute{IntValue: ptr.To(int64(1))}), denied)
	expect(t, "the long name", create(v1alpha1.DriverName+"/nodeWhole", text), denied)
	expect(t, "a version", create("cudaComputeCapability", resourceapi.DeviceAttribute{VersionValue: ptr.To("9.0.0")}), "")
	expect(t, "one of a later release", create("later", text), "")

	full := sliceOf(n.Name, &n.Name, v1alpha1.DriverName)
	for i := range resourceapi.ResourceSliceMaxDevices {
		device := resourceapi.Device{Name: fmt.Sprintf("gpu-%d", i), Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{}}
		for j := range resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice {
			device.Attributes[resourceapi.QualifiedName(fmt.Sprintf("later%d", j))] = text
		}
		full.Spec.Devices = append(full.Spec.Devices, device)
	}
	_, err = client.ResourceV1().ResourceSlices().Create(t.Context(), full, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	expect(t, "as many as a slice has", err, "") // the policy's budget of CEL is enough
}

// sliceOf is an empty slice of a node, or of all nodes.
func sliceOf(pool string, node *string, driver string) *resourceapi.ResourceSlice {
	slice := &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "access-"},
		Spec: resourceapi.ResourceSliceSpec{
			Driver:   driver,
			Pool:     resourceapi.ResourcePool{Name: pool, ResourceSliceCount: 1},
			NodeName: node,
		},
	}
	if node == nil {
		slice.Spec.AllNodes = ptr.To(true)
	}
	return slice
}

// Events about pods are written in their namespaces, so that RBAC cannot hold the plugin to its own node.
func TestThePluginWritesEventsFromItsOwnNodeOnly(t *testing.T) {
	n := newNode(t, "t4")
	other := newNode(t, "t4")
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(n.token))
	if err != nil {
		t.Fatal(err)
	}
	write := func(host string, about corev1.ObjectReference, namespace string) error {
		event := &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "access-", Namespace: namespace},
			InvolvedObject: about,
			Source:         corev1.EventSource{Component: "switchyard-kubelet-plugin", Host: host},
			Reason:         "Test", Type: corev1.EventTypeNormal,
		}
		_, err := client.CoreV1().Events(namespace).Create(t.Context(), event, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	pod := corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: n.namespace, Name: "train"}
	eventually(t, "the policy is in force", func() error {
		if write(other.Name, pod, n.namespace) == nil {
			return errors.New("an Event from another node is accepted")
		}
		return nil
	})
	for name, tc := range map[string]struct {
		host      string
		about     corev1.ObjectReference
		namespace string
		denied    string
	}{
		"about a pod":                {n.Name, pod, n.namespace, ""},
		"about its node":             {n.Name, corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: n.Name}, metav1.NamespaceDefault, ""},
		"about another node":         {n.Name, corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: other.Name}, metav1.NamespaceDefault, "about pods and about that node"},
		"about something else":       {n.Name, corev1.ObjectReference{Kind: "Secret", APIVersion: "v1", Namespace: n.namespace, Name: "x"}, n.namespace, "about pods and about that node"},
		"in the name of another one": {other.Name, pod, n.namespace, "source.host is that node"},
		"in nobody's name":           {"", pod, n.namespace, "source.host is that node"},
	} {
		err := write(tc.host, tc.about, tc.namespace)
		switch {
		case tc.denied == "" && err != nil:
			t.Errorf("%s: %v, want it allowed", name, err)
		case tc.denied != "" && (err == nil || !strings.Contains(err.Error(), tc.denied)):
			t.Errorf("%s: %v, want it denied with %q", name, err, tc.denied)
		}
	}
}

// An Event of somebody else's is neither changed nor taken over.
func TestThePluginChangesItsOwnEventsOnly(t *testing.T) {
	n := newNode(t, "t4")
	other := newNode(t, "t4")
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(n.token))
	if err != nil {
		t.Fatal(err)
	}
	event := func(host string) *corev1.Event {
		created, err := cluster.Client().CoreV1().Events(n.namespace).Create(t.Context(), &corev1.Event{
			ObjectMeta:     metav1.ObjectMeta{GenerateName: "access-", Namespace: n.namespace},
			InvolvedObject: corev1.ObjectReference{Kind: "Pod", APIVersion: "v1", Namespace: n.namespace, Name: "train"},
			Source:         corev1.EventSource{Component: "somebody", Host: host},
			Reason:         "Test", Type: corev1.EventTypeNormal,
		}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return created
	}
	patch := func(event *corev1.Event, data string) error {
		_, err := client.CoreV1().Events(n.namespace).Patch(t.Context(), event.Name, types.MergePatchType, []byte(data), metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	mine, theirs, nobodys := event(n.Name), event(other.Name), event("")
	eventually(t, "the policy is in force", func() error {
		if patch(theirs, `{"message": "all is well"}`) == nil {
			return errors.New("an Event from another node is changed")
		}
		return nil
	})
	expect(t, "counts an Event of its own", patch(mine, `{"count": 2}`), "")
	takeOver := `{"message": "all is well", "source": {"host": "` + n.Name + `"}}`
	expect(t, "takes over an Event from another node", patch(theirs, takeOver), "may only change Events whose source.host is that node")
	expect(t, "takes over an Event from no node", patch(nobodys, takeOver), "may only change Events whose source.host is that node")
	expect(t, "gives an Event of its own away", patch(mine, `{"source": {"host": "`+other.Name+`"}}`), "may only write Events whose source.host is that node")
}

func TestThePluginMayNotWriteClaimsNorReadSecrets(t *testing.T) {
	n := newNode(t, "t4")
	client, err := kubernetes.NewForConfig(cluster.ConfigFor(n.token))
	if err != nil {
		t.Fatal(err)
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: n.namespace, Name: "claim"}}
	_, createErr := client.ResourceV1().ResourceClaims(n.namespace).Create(t.Context(), claim, metav1.CreateOptions{})
	_, statusErr := client.ResourceV1().ResourceClaims(n.namespace).UpdateStatus(t.Context(), claim, metav1.UpdateOptions{})
	_, listErr := client.CoreV1().Secrets(n.namespace).List(t.Context(), metav1.ListOptions{})
	for what, err := range map[string]error{"create claims": createErr, "write allocations": statusErr, "list secrets": listErr} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v, want it forbidden", what, err)
		}
	}
}
