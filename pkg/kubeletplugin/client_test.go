// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"testing"

	"google.golang.org/grpc"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

func TestPrefetchedClaimsAnswerTheHelper(t *testing.T) {
	m := newMachine(t, 0)
	for _, name := range []string{"a", "b", "outside"} {
		m.claim(name)
	}
	client := helperClient{Interface: m.client, wrote: func(string) {}}
	gets := func() int {
		count := 0
		for _, action := range m.client.Actions() {
			if action.GetVerb() == "get" && action.GetResource().Resource == "resourceclaims" {
				count++
			}
		}
		return count
	}
	read := func(ctx context.Context, name string) (*resourceapi.ResourceClaim, error) {
		return client.ResourceV1().ResourceClaims("default").Get(ctx, name, metav1.GetOptions{})
	}
	call := func(names ...string) {
		t.Helper()
		req := &drapb.NodePrepareResourcesRequest{}
		for _, name := range names {
			req.Claims = append(req.Claims, &drapb.Claim{Namespace: "default", Name: name})
		}
		_, err := prefetchClaims(m.client)(t.Context(), req, &grpc.UnaryServerInfo{}, func(ctx context.Context, _ any) (any, error) {
			m.client.ClearActions()
			for _, name := range names {
				claim, err := read(ctx, name)
				if name == "gone" {
					if !apierrors.IsNotFound(err) {
						t.Errorf("reading a claim that is gone = %v", err)
					}
					continue
				}
				if err != nil || claim.Name != name {
					t.Errorf("reading %s = %v, %v", name, claim, err)
				}
			}
			return nil, nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}

	call("a", "b", "gone")
	if got := gets(); got != 0 {
		t.Errorf("%d claims were read again, want none", got)
	}
	call("a")
	if got := gets(); got != 1 {
		t.Errorf("a single claim was read %d times, want once, by the helper", got)
	}
	if _, err := read(t.Context(), "outside"); err != nil {
		t.Errorf("reading outside of a call: %v", err)
	}
}

// A node that was deleted and registered again has another UID, and what its old self owns is collected as garbage: the
// helper made the slices anew for ever, and the node's GPUs were there for a moment every half a minute.
func TestSlicesAreOwnedByTheNodeAsItIsNow(t *testing.T) {
	m := newMachine(t, 0)
	publish := func() (*resourceapi.ResourceSlice, error) {
		return helperClient{Interface: m.client, wrote: func(string) {}}.ResourceV1().ResourceSlices().Create(t.Context(), &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{
			GenerateName:    "0-",
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: testNode, UID: "uid-of-before"}},
		}}, metav1.CreateOptions{})
	}
	slice, err := publish()
	if err != nil || slice.OwnerReferences[0].UID != "node-uid" {
		t.Errorf("created %+v, %v; want it to be owned by UID node-uid", slice, err)
	}
	if err := m.client.CoreV1().Nodes().Delete(t.Context(), testNode, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := publish(); !apierrors.IsNotFound(err) {
		t.Errorf("a slice without its node: %v, want that the node is not found", err)
	}
}
