// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
	resourceclient "k8s.io/client-go/kubernetes/typed/resource/v1"
)

// helperClient is the clientset that the kubelet plugin helper gets. It differs from the wrapped one
// in four ways: reading a claim is answered from what prefetchClaims put into the context, because
// the helper reads the claims of a call one after the other; writes of ResourceSlices are observed,
// because the helper tells when publishing fails but not when it works again; the names it makes
// for ResourceSlices are kept short; and they are owned by the node as it is now.
type helperClient struct {
	kubernetes.Interface
	// wrote is called after each write of a ResourceSlice that the API server accepted.
	wrote func(verb string)
}

func (c helperClient) ResourceV1() resourceclient.ResourceV1Interface {
	return helperResourceClient{ResourceV1Interface: c.Interface.ResourceV1(), nodes: c.CoreV1().Nodes(), wrote: c.wrote}
}

// IsWatchListSemanticsUnSupported passes on what fake clientsets say of themselves, which
// embedding the interface would hide: their informers cannot sync by WatchList.
func (c helperClient) IsWatchListSemanticsUnSupported() bool {
	lister, ok := c.Interface.(interface{ IsWatchListSemanticsUnSupported() bool })
	return ok && lister.IsWatchListSemanticsUnSupported()
}

type helperResourceClient struct {
	resourceclient.ResourceV1Interface
	nodes coreclient.NodeInterface
	wrote func(verb string)
}

func (c helperResourceClient) ResourceClaims(namespace string) resourceclient.ResourceClaimInterface {
	return prefetchedClaims{ResourceClaimInterface: c.ResourceV1Interface.ResourceClaims(namespace), namespace: namespace}
}

func (c helperResourceClient) ResourceSlices() resourceclient.ResourceSliceInterface {
	return observedSlices{ResourceSliceInterface: c.ResourceV1Interface.ResourceSlices(), nodes: c.nodes, wrote: c.wrote}
}

type prefetchedClaims struct {
	resourceclient.ResourceClaimInterface
	namespace string
}

func (c prefetchedClaims) Get(ctx context.Context, name string, opts metav1.GetOptions) (*resourceapi.ResourceClaim, error) {
	if fetched, ok := fetchedClaim(ctx, c.namespace, name); ok {
		return fetched.claim, fetched.err
	}
	return c.ResourceClaimInterface.Get(ctx, name, opts)
}

type observedSlices struct {
	resourceclient.ResourceSliceInterface
	nodes coreclient.NodeInterface
	wrote func(verb string)
}

// keptOfGenerateName is how much of metadata.generateName the API server puts into a name
// (k8s.io/apiserver/pkg/storage/names: 63 characters less a random suffix of 5).
const keptOfGenerateName = 58

// Create also cuts metadata.generateName to what the API server keeps of it. The helper puts the node's
// name there, and the API server refuses more than 253 characters: a node whose name has more than 227
// would publish nothing.
//
// And it gives the slice to the node by the UID that the node has now. The helper remembers the first, and a node that
// was deleted and registered again has another: slices of the first are collected as garbage, again and again.
func (s observedSlices) Create(ctx context.Context, slice *resourceapi.ResourceSlice, opts metav1.CreateOptions) (*resourceapi.ResourceSlice, error) {
	slice = slice.DeepCopy()
	slice.GenerateName = slice.GenerateName[:min(len(slice.GenerateName), keptOfGenerateName)]
	for i := range slice.OwnerReferences {
		owner := &slice.OwnerReferences[i]
		node, err := s.nodes.Get(ctx, owner.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("read the node that owns the slice: %w", err)
		}
		owner.UID = node.UID
	}
	stored, err := s.ResourceSliceInterface.Create(ctx, slice, opts)
	if err == nil {
		s.wrote("create")
	}
	return stored, err
}

func (s observedSlices) Update(ctx context.Context, slice *resourceapi.ResourceSlice, opts metav1.UpdateOptions) (*resourceapi.ResourceSlice, error) {
	stored, err := s.ResourceSliceInterface.Update(ctx, slice, opts)
	if err == nil {
		s.wrote("update")
	}
	return stored, err
}

func (s observedSlices) Delete(ctx context.Context, name string, opts metav1.DeleteOptions) error {
	err := s.ResourceSliceInterface.Delete(ctx, name, opts)
	if err == nil || apierrors.IsNotFound(err) {
		s.wrote("delete")
	}
	return err
}
