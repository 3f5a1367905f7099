// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// retryAfter is when a pod that could not be run or ended is looked at again.
const retryAfter = 100 * time.Millisecond

// Kubelet stands in for the kubelets of all nodes: it runs bound pods and ends deleted ones.
type Kubelet struct {
	client kubernetes.Interface
	pods   cache.SharedIndexInformer
	claims cache.SharedIndexInformer
	queue  workqueue.TypedRateLimitingInterface[string]
	stop   context.CancelFunc
	done   sync.WaitGroup

	mu     sync.Mutex
	lost   map[string]bool
	held   func(*corev1.Pod) bool
	starts map[types.UID]time.Time
	errs   []error
}

// StartKubelet starts the stand-in; Stop ends it.
func StartKubelet(ctx context.Context, client kubernetes.Interface) (*Kubelet, error) {
	ctx, stop := context.WithCancel(ctx)
	bound := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithTweakListOptions(func(o *metav1.ListOptions) {
		o.FieldSelector = fields.OneTermNotEqualSelector("spec.nodeName", "").String()
	}))
	all := informers.NewSharedInformerFactory(client, 0)
	k := &Kubelet{
		client: client,
		pods:   bound.Core().V1().Pods().Informer(),
		claims: all.Resource().V1().ResourceClaims().Informer(),
		queue:  workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[string]()),
		stop:   stop,
		lost:   map[string]bool{},
		starts: map[types.UID]time.Time{},
	}
	enqueue := func(object any) {
		if key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(object); err == nil {
			k.queue.Add(key)
		}
	}
	if _, err := k.pods.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    enqueue,
		UpdateFunc: func(_, object any) { enqueue(object) },
	}); err != nil {
		stop()
		return nil, fmt.Errorf("start the kubelets' stand-in: %w", err)
	}
	owners := func(object any) {
		claim, ok := object.(*resourceapi.ResourceClaim)
		if !ok {
			return
		}
		for _, consumer := range claim.Status.ReservedFor {
			k.queue.Add(claim.Namespace + "/" + consumer.Name)
		}
	}
	if _, err := k.claims.AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    owners,
		UpdateFunc: func(_, object any) { owners(object) },
	}); err != nil {
		stop()
		return nil, fmt.Errorf("start the kubelets' stand-in: %w", err)
	}
	bound.StartWithContext(ctx)
	all.StartWithContext(ctx)
	if !cache.WaitForCacheSync(ctx.Done(), k.pods.HasSynced, k.claims.HasSynced) {
		stop()
		return nil, fmt.Errorf("start the kubelets' stand-in: %w", ctx.Err())
	}
	for range 8 {
		k.done.Go(func() { k.work(ctx) })
	}
	return k, nil
}

// Stop ends the stand-in and returns what went wrong.
func (k *Kubelet) Stop() error {
	k.stop()
	k.queue.ShutDown()
	k.done.Wait()
	k.mu.Lock()
	defer k.mu.Unlock()
	return errors.Join(k.errs...)
}

// Hold keeps pods from starting for which hold returns true, as a slow image does; nil lets all start.
func (k *Kubelet) Hold(hold func(*corev1.Pod) bool) {
	k.mu.Lock()
	k.held = hold
	k.mu.Unlock()
	for _, key := range k.pods.GetStore().ListKeys() {
		k.queue.Add(key)
	}
}

// Lose cuts a node off: its pods neither start nor end any more.
func (k *Kubelet) Lose(node string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.lost[node] = true
}

// Started is when a pod's containers started.
func (k *Kubelet) Started(pod types.UID) (time.Time, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	at, ok := k.starts[pod]
	return at, ok
}

// End lets a running pod's containers exit: phase is Succeeded or Failed.
func (k *Kubelet) End(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase) error {
	latest := pod.DeepCopy()
	latest.ResourceVersion = "" // the test's copy may be old: the containers exit all the same
	return k.setPhase(ctx, latest, phase)
}

func (k *Kubelet) work(ctx context.Context) {
	for {
		key, shutdown := k.queue.Get()
		if shutdown {
			return
		}
		again, err := k.sync(ctx, key)
		switch {
		case apierrors.IsConflict(err), apierrors.IsNotFound(err), busy(err), err == nil && again:
			k.queue.AddAfter(key, retryAfter)
		case err != nil && ctx.Err() == nil:
			k.mu.Lock()
			k.errs = append(k.errs, err)
			k.mu.Unlock()
			k.queue.AddAfter(key, retryAfter)
		}
		k.queue.Done(key)
	}
}

// busy says that the API server had too much to do for the moment, as a kubelet finds it now and then.
func busy(err error) bool {
	return apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err) || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsInternalError(err)
}

// sync moves one pod on, and says whether to look again soon.
func (k *Kubelet) sync(ctx context.Context, key string) (again bool, err error) {
	object, exists, err := k.pods.GetStore().GetByKey(key)
	if err != nil || !exists {
		return false, err
	}
	pod := object.(*corev1.Pod)
	k.mu.Lock()
	lost, held := k.lost[pod.Spec.NodeName], k.held
	k.mu.Unlock()
	switch {
	case lost:
		return false, nil
	case pod.DeletionTimestamp != nil:
		return false, k.end(ctx, pod)
	case pod.Status.Phase != corev1.PodPending, held != nil && held(pod):
		return false, nil
	}
	ready, err := k.prepared(ctx, pod)
	if err != nil || !ready {
		return !ready, err
	}
	k.mu.Lock()
	if _, ok := k.starts[pod.UID]; !ok {
		k.starts[pod.UID] = time.Now()
	}
	k.mu.Unlock()
	return false, k.setPhase(ctx, pod, corev1.PodRunning)
}

// prepared says whether all claims of the pod can be prepared: reserved for it, and marked ready where
// they are a gang's. Like the node plugin, it reads the claim from the API server.
func (k *Kubelet) prepared(ctx context.Context, pod *corev1.Pod) (bool, error) {
	for _, status := range pod.Status.ResourceClaimStatuses {
		if status.ResourceClaimName == nil {
			continue
		}
		claim, err := k.client.ResourceV1().ResourceClaims(pod.Namespace).Get(ctx, *status.ResourceClaimName, metav1.GetOptions{})
		if err != nil {
			return false, err
		}
		if claim.Status.Allocation == nil {
			return false, nil
		}
		if claim.Labels[v1alpha1.GangLabel] == "" {
			continue
		}
		if claim.Annotations[v1alpha1.ReadyAnnotation] != claim.Labels[v1alpha1.PlanLabel] {
			return false, nil
		}
		if err := k.checkGang(ctx, pod, claim); err != nil {
			return false, err
		}
	}
	return true, nil
}

// checkGang fails when a pod could start while a claim of the same plan has no devices: that no container
// of a partial gang starts is what gangs are for. A member that was lost since it was marked ready has given
// its devices back.
func (k *Kubelet) checkGang(ctx context.Context, pod *corev1.Pod, claim *resourceapi.ResourceClaim) error {
	claims, err := k.client.ResourceV1().ResourceClaims(claim.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.SelectorFromSet(labels.Set{
			v1alpha1.GangLabel: claim.Labels[v1alpha1.GangLabel],
			v1alpha1.PlanLabel: claim.Labels[v1alpha1.PlanLabel],
		}).String(),
	})
	if err != nil {
		return err
	}
	for _, other := range claims.Items {
		if other.Status.Allocation != nil {
			continue
		}
		lost, err := k.ownerIsLost(ctx, &other)
		if err != nil {
			return err
		}
		if !lost {
			return fmt.Errorf("pod %s/%s may start although claim %s of its gang is not allocated", pod.Namespace, pod.Name, other.Name)
		}
	}
	return nil
}

// ownerIsLost says whether the pod that a claim was made for is gone, going, or has ended.
func (k *Kubelet) ownerIsLost(ctx context.Context, claim *resourceapi.ResourceClaim) (bool, error) {
	owner := metav1.GetControllerOf(claim)
	if owner == nil {
		return true, nil
	}
	pod, err := k.client.CoreV1().Pods(claim.Namespace).Get(ctx, owner.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return true, nil
	}
	if err != nil {
		return false, err
	}
	return pod.UID != owner.UID || pod.DeletionTimestamp != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed, nil
}

// end makes the pod's phase terminal and then removes the pod, as a kubelet does.
func (k *Kubelet) end(ctx context.Context, pod *corev1.Pod) error {
	if pod.Status.Phase != corev1.PodSucceeded && pod.Status.Phase != corev1.PodFailed {
		if err := k.setPhase(ctx, pod, corev1.PodFailed); err != nil {
			return ignoreNotFound(err)
		}
	}
	return ignoreNotFound(k.client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, metav1.DeleteOptions{
		GracePeriodSeconds: new(int64),
		Preconditions:      metav1.NewUIDPreconditions(string(pod.UID)),
	}))
}

// setPhase fails with a conflict where pod is not the latest: a cache that is behind must not make a pod run
// that has ended since.
func (k *Kubelet) setPhase(ctx context.Context, pod *corev1.Pod, phase corev1.PodPhase) error {
	status := corev1.PodStatus{
		Phase:      phase,
		Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: metav1.Now()}},
	}
	state := corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{FinishedAt: metav1.Now()}}
	if phase == corev1.PodRunning {
		status.StartTime = ptr.To(metav1.Now())
		status.Conditions[0].Status = corev1.ConditionTrue
		state = corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: metav1.Now()}}
	}
	for _, container := range pod.Spec.Containers {
		status.ContainerStatuses = append(status.ContainerStatuses, corev1.ContainerStatus{Name: container.Name, State: state})
	}
	patch, err := json.Marshal(map[string]any{
		"metadata": metav1.ObjectMeta{UID: pod.UID, ResourceVersion: pod.ResourceVersion},
		"status":   status,
	})
	if err != nil {
		return err
	}
	_, err = k.client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return fmt.Errorf("set phase %s of pod %s/%s: %w", phase, pod.Namespace, pod.Name, err)
	}
	return nil
}

func ignoreNotFound(err error) error {
	if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
		return nil
	}
	return err
}
