// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// follow passes on the objects of a kind in a namespace as they are made and change, until ctx ends. of chooses the kind.
func follow[T client.Object](ctx context.Context, c *gangCluster, namespace string, of func(informers.SharedInformerFactory) cache.SharedIndexInformer) (<-chan T, error) {
	factory := informers.NewSharedInformerFactoryWithOptions(c.Client(), 0, informers.WithNamespace(namespace))
	informer := of(factory)
	objects := make(chan T)
	send := func(object any) {
		if object, ok := object.(T); ok {
			select {
			case objects <- object:
			case <-ctx.Done():
			}
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    send,
		UpdateFunc: func(_, object any) { send(object) },
	}); err != nil {
		return nil, err
	}
	factory.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), informer.HasSynced) {
		return nil, fmt.Errorf("follow what happens in namespace %s: %w", namespace, ctx.Err())
	}
	return objects, nil
}

func followPods(ctx context.Context, c *gangCluster, namespace string) (<-chan *corev1.Pod, error) {
	return follow[*corev1.Pod](ctx, c, namespace, func(f informers.SharedInformerFactory) cache.SharedIndexInformer {
		return f.Core().V1().Pods().Informer()
	})
}

// nextBound returns the next pod that is bound and that is not seen yet.
func nextBound(ctx context.Context, pods <-chan *corev1.Pod, seen map[types.UID]bool) (*corev1.Pod, error) {
	for {
		select {
		case pod := <-pods:
			if pod.Spec.NodeName == "" || seen[pod.UID] {
				continue
			}
			seen[pod.UID] = true
			return pod, nil
		case <-ctx.Done():
			return nil, fmt.Errorf("%d pods were bound, not more: %w", len(seen), ctx.Err())
		}
	}
}
