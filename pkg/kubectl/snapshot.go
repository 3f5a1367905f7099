// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourceapi "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/pager"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// snapshot is what a command has read of a cluster: each kind once, several at a time. The lists are not of one
// moment, so that what changes meanwhile may not fit together; the next call sees it as it is then.
type snapshot struct {
	now time.Time

	pods           []*corev1.Pod
	nodes          []*corev1.Node
	quotas         []*corev1.ResourceQuota
	volumeClaims   []*corev1.PersistentVolumeClaim
	volumes        []*corev1.PersistentVolume
	storageClasses []*storagev1.StorageClass
	priorities     []*schedulingv1.PriorityClass
	budgets        []*policyv1.PodDisruptionBudget
	claims         []*resourceapi.ResourceClaim
	templates      []*resourceapi.ResourceClaimTemplate
	slices         []*resourceapi.ResourceSlice
	classes        []*resourceapi.DeviceClass
	rules          []*resourceapi.DeviceTaintRule
	gangs          []*v1alpha1.GangClaim
}

// kind is one kind of object to read.
type kind struct {
	// resource is its plural name with its group, as in RBAC rules and kubectl.
	resource string
	list     func() client.ObjectList
	add      func(*snapshot, runtime.Object)
	// unserved says what is missing where the API server does not know the kind; a command goes on without the
	// objects where it is empty.
	unserved string
}

// add returns a function that appends objects of type T.
func add[T runtime.Object](field func(*snapshot) *[]T) func(*snapshot, runtime.Object) {
	return func(s *snapshot, object runtime.Object) {
		if o, ok := object.(T); ok {
			*field(s) = append(*field(s), o)
		}
	}
}

const (
	noDRA      = "the API server does not serve resource.k8s.io/v1: Switchyard needs Kubernetes 1.37 with dynamic resource allocation"
	noGangAPI  = "the API server does not know GangClaims: install Switchyard's controller, its CustomResourceDefinition is gangclaims.switchyard.dev"
	noCoreKind = "the API server does not serve it"
)

var (
	podKind = kind{
		"pods", func() client.ObjectList { return &corev1.PodList{} },
		add(func(s *snapshot) *[]*corev1.Pod { return &s.pods }), noCoreKind,
	}
	nodeKind = kind{
		"nodes", func() client.ObjectList { return &corev1.NodeList{} },
		add(func(s *snapshot) *[]*corev1.Node { return &s.nodes }), noCoreKind,
	}
	quotaKind = kind{
		"resourcequotas", func() client.ObjectList { return &corev1.ResourceQuotaList{} },
		add(func(s *snapshot) *[]*corev1.ResourceQuota { return &s.quotas }), noCoreKind,
	}
	volumeClaimKind = kind{
		"persistentvolumeclaims", func() client.ObjectList { return &corev1.PersistentVolumeClaimList{} },
		add(func(s *snapshot) *[]*corev1.PersistentVolumeClaim { return &s.volumeClaims }), noCoreKind,
	}
	volumeKind = kind{
		"persistentvolumes", func() client.ObjectList { return &corev1.PersistentVolumeList{} },
		add(func(s *snapshot) *[]*corev1.PersistentVolume { return &s.volumes }), noCoreKind,
	}
	storageKind = kind{
		"storageclasses.storage.k8s.io", func() client.ObjectList { return &storagev1.StorageClassList{} },
		add(func(s *snapshot) *[]*storagev1.StorageClass { return &s.storageClasses }), noCoreKind,
	}
	priorityKind = kind{
		"priorityclasses.scheduling.k8s.io", func() client.ObjectList { return &schedulingv1.PriorityClassList{} },
		add(func(s *snapshot) *[]*schedulingv1.PriorityClass { return &s.priorities }), noCoreKind,
	}
	budgetKind = kind{
		"poddisruptionbudgets.policy", func() client.ObjectList { return &policyv1.PodDisruptionBudgetList{} },
		add(func(s *snapshot) *[]*policyv1.PodDisruptionBudget { return &s.budgets }), noCoreKind,
	}
	claimKind = kind{
		"resourceclaims.resource.k8s.io", func() client.ObjectList { return &resourceapi.ResourceClaimList{} },
		add(func(s *snapshot) *[]*resourceapi.ResourceClaim { return &s.claims }), noDRA,
	}
	templateKind = kind{
		"resourceclaimtemplates.resource.k8s.io", func() client.ObjectList { return &resourceapi.ResourceClaimTemplateList{} },
		add(func(s *snapshot) *[]*resourceapi.ResourceClaimTemplate { return &s.templates }), noDRA,
	}
	sliceKind = kind{
		"resourceslices.resource.k8s.io", func() client.ObjectList { return &resourceapi.ResourceSliceList{} },
		add(func(s *snapshot) *[]*resourceapi.ResourceSlice { return &s.slices }), noDRA,
	}
	classKind = kind{
		"deviceclasses.resource.k8s.io", func() client.ObjectList { return &resourceapi.DeviceClassList{} },
		add(func(s *snapshot) *[]*resourceapi.DeviceClass { return &s.classes }), noDRA,
	}
	ruleKind = kind{
		"devicetaintrules.resource.k8s.io", func() client.ObjectList { return &resourceapi.DeviceTaintRuleList{} },
		add(func(s *snapshot) *[]*resourceapi.DeviceTaintRule { return &s.rules }), noDRA,
	}
	gangKind = kind{
		"gangclaims.switchyard.dev", func() client.ObjectList { return &v1alpha1.GangClaimList{} },
		add(func(s *snapshot) *[]*v1alpha1.GangClaim { return &s.gangs }), noGangAPI,
	}
)

// orNone lets a command go on without the objects of a kind that is not served.
func orNone(k kind) kind {
	k.unserved = ""
	return k
}

// What commands read.
var (
	deviceKinds  = []kind{claimKind, orNone(gangKind), ruleKind, sliceKind}
	demandKinds  = append([]kind{podKind}, deviceKinds...)
	planKinds    = []kind{podKind, nodeKind, claimKind, templateKind, gangKind, ruleKind, sliceKind, classKind, quotaKind, volumeClaimKind, volumeKind, storageKind, priorityKind, budgetKind}
	explainKinds = []kind{podKind, nodeKind, claimKind, templateKind, orNone(gangKind), ruleKind, sliceKind, classKind, quotaKind, volumeClaimKind, volumeKind, storageKind, priorityKind, budgetKind}
)

// parallel is how many kinds are read at once.
const parallel = 4

// read reads the kinds, in a namespace or, if it is empty, in all.
func read(ctx context.Context, c connection, namespace string, kinds ...kind) (*snapshot, error) {
	reader, err := c.open(ctx)
	if err != nil {
		return nil, err
	}
	s := &snapshot{now: c.clock().Now()}
	objects := make([][]runtime.Object, len(kinds))
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for i, k := range kinds {
		group.Go(func() (err error) {
			objects[i], err = k.read(ctx, reader, namespace)
			return err
		})
	}
	if err := group.Wait(); err != nil {
		return nil, err
	}
	for i, k := range kinds {
		for _, object := range objects[i] {
			k.add(s, object)
		}
	}
	return s, nil
}

func (k kind) read(ctx context.Context, reader client.Reader, namespace string) ([]runtime.Object, error) {
	pages := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		page := k.list()
		err := reader.List(ctx, page, &client.ListOptions{Namespace: namespace, Limit: options.Limit, Continue: options.Continue, Raw: &options})
		return page, err
	})
	var objects []runtime.Object
	err := pages.EachListItem(ctx, metav1.ListOptions{}, func(object runtime.Object) error {
		objects = append(objects, object)
		return nil
	})
	switch {
	case err == nil:
		return objects, nil
	case meta.IsNoMatchError(err) || apierrors.IsNotFound(err):
		if k.unserved == "" {
			return nil, nil
		}
		return nil, fmt.Errorf("list %s: %s: %w", k.resource, k.unserved, err)
	case apierrors.IsForbidden(err):
		where := "in all namespaces"
		if namespace != "" {
			where = "in namespace " + namespace
		}
		return nil, fmt.Errorf(`list %s %s: the right is missing; it takes a role with verb "list" on %q: %w`, k.resource, where, k.resource, err)
	default:
		return nil, fmt.Errorf("list %s: %w", k.resource, err)
	}
}

// cluster is what the planner knows of the snapshot. Quotas are left out where the claims that it is asked about
// exist already, and are counted.
func (s *snapshot) cluster(quotas bool) *placement.Cluster {
	c := placement.NewCluster()
	each(s.classes, c.SetClass)
	each(s.nodes, c.SetNode)
	each(s.slices, c.SetSlice)
	each(s.rules, c.SetRule)
	each(s.claims, c.SetClaim)
	each(s.volumeClaims, c.SetVolumeClaim)
	each(s.volumes, c.SetVolume)
	each(s.storageClasses, c.SetStorageClass)
	each(s.pods, c.SetPod)
	if quotas {
		each(s.quotas, c.SetQuota)
	}
	for _, g := range s.gangs {
		if gang.Reserves(g) {
			c.SetGang(g)
		}
	}
	return c
}

func each[T any](list []T, do func(T)) {
	for _, item := range list {
		do(item)
	}
}

func keyOf(object client.Object) types.NamespacedName {
	return types.NamespacedName{Namespace: object.GetNamespace(), Name: object.GetName()}
}

// find returns the object of a name, or the zero value.
func find[T client.Object](list []T, namespace, name string) (T, bool) {
	i := slices.IndexFunc(list, func(o T) bool { return o.GetName() == name && o.GetNamespace() == namespace })
	if i < 0 {
		var none T
		return none, false
	}
	return list[i], true
}
