// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/placement"
)

// mounts gives all members the claim; with a verb for the member's number, each its own.
func mounts(claim string) func(*placement.Gang) {
	return func(g *placement.Gang) {
		for i, p := range g.Pods {
			name := claim
			if strings.Contains(claim, "%d") {
				name = fmt.Sprintf(claim, i)
			}
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "data", VolumeSource: corev1.VolumeSource{
				PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name},
			}})
		}
	}
}

// scratch gives each member a volume that ends with it.
func scratch(g *placement.Gang) {
	for _, p := range g.Pods {
		p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
	}
}

// volumeClaim is one of the gang's namespace: of class and size, and bound to a volume if that is not empty.
func volumeClaim(name, class, volume string, changes ...func(*corev1.PersistentVolumeClaim)) *corev1.PersistentVolumeClaim {
	claim := &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: name, UID: types.UID("uid-" + name)},
		Spec: corev1.PersistentVolumeClaimSpec{
			StorageClassName: &class, VolumeName: volume, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Resources: corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Ti")}},
		},
		Status: corev1.PersistentVolumeClaimStatus{Phase: corev1.ClaimPending},
	}
	if volume != "" {
		claim.Annotations = map[string]string{"pv.kubernetes.io/bind-completed": "yes"}
		claim.Status.Phase = corev1.ClaimBound
	}
	for _, change := range changes {
		change(claim)
	}
	return claim
}

func chosen(node string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.Annotations = map[string]string{"volume.kubernetes.io/selected-node": node}
	}
}

func once(c *corev1.PersistentVolumeClaim) {
	c.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
}

func madeFor(pod string) func(*corev1.PersistentVolumeClaim) {
	return func(c *corev1.PersistentVolumeClaim) {
		c.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: pod, UID: types.UID("pod-" + pod), Controller: ptr.To(true)}}
	}
}

// persistent is a volume of 2Ti that can be used where a label has one of the values; everywhere without a label.
func persistent(name, class string, phase corev1.PersistentVolumePhase, label string, values ...string) *corev1.PersistentVolume {
	v := &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: corev1.PersistentVolumeSpec{
			StorageClassName: class, AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("2Ti")},
		},
		Status: corev1.PersistentVolumeStatus{Phase: phase},
	}
	if label != "" {
		v.Spec.NodeAffinity = &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
			MatchExpressions: []corev1.NodeSelectorRequirement{{Key: label, Operator: corev1.NodeSelectorOpIn, Values: values}},
		}}}}
	}
	return v
}

func zoneLabelled(v *corev1.PersistentVolume, label, value string) *corev1.PersistentVolume {
	v.Labels = map[string]string{label: value}
	return v
}

func storageClass(name, provisioner string, mode storagev1.VolumeBindingMode, zones ...string) *storagev1.StorageClass {
	class := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Provisioner: provisioner, VolumeBindingMode: &mode}
	if zones != nil {
		class.AllowedTopologies = []corev1.TopologySelectorTerm{{MatchLabelExpressions: []corev1.TopologySelectorLabelRequirement{{Key: zone, Values: zones}}}}
	}
	return class
}

func TestVolumesBindPodsToPlaces(t *testing.T) {
	const (
		host   = corev1.LabelHostname
		onA    = "node-a node-a.0 ×1: 0 1 2 3"
		onB    = "node-b node-b.0 ×1: 0 1 2 3"
		twoOnA = "node-a node-a.0 ×1: 0 1 2 3; node-a node-a.1 ×1: 4 5 6 7"
		twoOnB = "node-b node-b.0 ×1: 0 1 2 3; node-b node-b.1 ×1: 4 5 6 7"
	)
	later, now := storagev1.VolumeBindingWaitForFirstConsumer, storagev1.VolumeBindingImmediate
	local := storageClass("local", "kubernetes.io/no-provisioner", later)
	made := storageClass("made", "disks.example.com", later)
	free := corev1.VolumeAvailable
	for name, test := range map[string]struct {
		gang   placement.Gang
		with   []any
		want   string           // a plan, or a part of the refusal
		reason placement.Reason // NodesFull if empty
	}{
		"bound to a volume that can be used everywhere": {
			gangOf("g", 2, 4, mounts("data")), []any{volumeClaim("data", "", "v"), persistent("v", "", corev1.VolumeBound, "")}, twoOnA, "",
		},
		"bound to a volume of a zone": {
			gangOf("g", 2, 4, mounts("data")), []any{volumeClaim("data", "", "v"), persistent("v", "", corev1.VolumeBound, zone, "y", "z")}, twoOnB, "",
		},
		"bound to a local volume": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "", "v"), persistent("v", "", corev1.VolumeBound, host, "node-b")}, onB, "",
		},
		"in a zone by the volume's labels": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "", "v"), zoneLabelled(persistent("v", "", corev1.VolumeBound, ""), zone, "w__y")}, onB, "",
		},
		"in a zone by the volume's old labels": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "", "v"), zoneLabelled(persistent("v", "", corev1.VolumeBound, ""), corev1.LabelFailureDomainBetaZone, "y")},
			onB, "",
		},
		"labels of zones where nodes have none": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{
				readyNode("node-a"), readyNode("node-b"),
				volumeClaim("data", "", "v"), zoneLabelled(persistent("v", "", corev1.VolumeBound, ""), zone, "y"),
			},
			onA, "",
		},
		"labels of zones one of which is empty": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "", "v"), zoneLabelled(persistent("v", "", corev1.VolumeBound, ""), zone, "y__")}, onA, "",
		},
		"labels of zones of a scratch volume": {
			gangOf("g", 1, 4, scratch),
			[]any{volumeClaim("g-0-scratch", "", "v", madeFor("g-0")), zoneLabelled(persistent("v", "", corev1.VolumeBound, ""), zone, "y")},
			onA, "",
		},
		"each on another node": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{
				volumeClaim("data-0", "", "v"), persistent("v", "", corev1.VolumeBound, host, "node-a"),
				volumeClaim("data-1", "", "w"), persistent("w", "", corev1.VolumeBound, host, "node-b"),
			},
			onA + "; " + onB, "",
		},
		"each in another zone": {
			gangOf("g", 3, 4, mounts("data-%d")),
			[]any{
				inZone(readyNode("node-c"), "x"), hgx("node-c"),
				volumeClaim("data-0", "", "v"), persistent("v", "", corev1.VolumeBound, zone, "x"),
				volumeClaim("data-1", "", "w"), zoneLabelled(persistent("w", "", corev1.VolumeBound, ""), zone, "y"),
				volumeClaim("data-2", "", "u"), persistent("u", "", corev1.VolumeBound, zone, "y", "z"),
			},
			onA + "; " + twoOnB, "",
		},
		"each for another node, where it is to be made": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{volumeClaim("data-0", "made", "", chosen("node-a")), volumeClaim("data-1", "made", "", chosen("node-b")), made},
			onA + "; " + onB, "",
		},
		"one has its local volume, and the other finds one elsewhere": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{
				volumeClaim("data-0", "local", "v"), persistent("v", "local", corev1.VolumeBound, host, "node-a"),
				volumeClaim("data-1", "local", ""), local, persistent("w", "local", free, host, "node-b"),
			},
			onA + "; " + onB, "",
		},
		"more on one node than it has domains": {
			gangOf("g", 4, 4, mounts("data-%d")),
			[]any{
				volumeClaim("data-0", "", "v"), volumeClaim("data-1", "", "v"), volumeClaim("data-2", "", "v"), persistent("v", "", corev1.VolumeBound, host, "node-a"),
				volumeClaim("data-3", "", "w"), persistent("w", "", corev1.VolumeBound, host, "node-b"),
			},
			"node-b: only 1 of the pods can be there", "",
		},
		"two places, and one domain for all": {
			gangOf("g", 2, 4, mounts("data-%d"), func(g *placement.Gang) { g.Claim.Spec.Topology.Gang = v1alpha1.GangNode }),
			[]any{
				volumeClaim("data-0", "", "v"), persistent("v", "", corev1.VolumeBound, host, "node-a"),
				volumeClaim("data-1", "", "w"), persistent("w", "", corev1.VolumeBound, host, "node-b"),
			},
			"only 1 of the pods can be there", "",
		},
		"one of the nodes is gone": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{
				volumeClaim("data-0", "", "v"), persistent("v", "", corev1.VolumeBound, host, "node-a"),
				volumeClaim("data-1", "", "w"), persistent("w", "", corev1.VolumeBound, host, "node-z"),
			},
			"node-a: volume w of PersistentVolumeClaim ml/data-1 cannot be used there", "",
		},
		"a volume that is gone": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "", "v")}, "PersistentVolume v, which does not exist", placement.ReasonVolumesNotReady,
		},
		"no claim": {
			gangOf("g", 1, 4, mounts("data")), nil, "PersistentVolumeClaim ml/data, which pod g-0 names, does not exist: create it", placement.ReasonVolumesNotReady,
		},
		"a claim that is being deleted": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "made", "", func(c *corev1.PersistentVolumeClaim) { c.DeletionTimestamp = &metav1.Time{} }), made},
			"is being deleted", placement.ReasonVolumesNotReady,
		},
		"a claim that lost its volume": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "", "v", func(c *corev1.PersistentVolumeClaim) { c.Status.Phase = corev1.ClaimLost })},
			"ml/data has lost its PersistentVolume v", placement.ReasonVolumesNotReady,
		},
		"a claim that is bound at once, and is not": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "now", ""), storageClass("now", "disks.example.com", now)},
			"ml/data is not bound yet", placement.ReasonVolumesNotReady,
		},
		"a claim of no class": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "", "")}, "ml/data is not bound yet", placement.ReasonVolumesNotReady,
		},
		"a claim of a class that does not exist": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "none", "")}, "ml/data is not bound yet", placement.ReasonVolumesNotReady,
		},
		"a claim that names its volume and is not bound to it": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "made", "v", func(c *corev1.PersistentVolumeClaim) { c.Annotations = nil }), made},
			"ml/data is not bound yet", placement.ReasonVolumesNotReady,
		},
		"made when the pod is scheduled, anywhere": {gangOf("g", 2, 4, mounts("data-%d")), []any{volumeClaim("data-0", "made", ""), volumeClaim("data-1", "made", ""), made}, twoOnA, ""},
		"made in some zones": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "made", ""), storageClass("made", "disks.example.com", later, "y")}, onB, "",
		},
		"made in no zone": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "made", ""), storageClass("made", "disks.example.com", later, "w")},
			"node-a: PersistentVolumeClaim ml/data (StorageClass made) can get no volume there", "",
		},
		"taken where none can be made": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "made", ""), storageClass("made", "disks.example.com", later, "w"), persistent("v", "made", free, zone, "y")},
			onB, "",
		},
		"to be made for another node": {gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "made", "", chosen("node-b")), made}, onB, ""},
		"to be made for a node where it cannot be": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "local", "", chosen("node-b")), local}, "node-a: PersistentVolumeClaim ml/data (StorageClass local) can get no volume there", "",
		},
		"local volumes on one node": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{
				volumeClaim("data-0", "local", ""), volumeClaim("data-1", "local", ""), local,
				persistent("v", "local", free, host, "node-b"), persistent("w", "local", free, host, "node-b"),
			},
			twoOnB, "",
		},
		"a local volume on each node": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{
				volumeClaim("data-0", "local", ""), volumeClaim("data-1", "local", ""), local,
				persistent("v", "local", free, host, "node-a"), persistent("w", "local", free, host, "node-b"),
			},
			onA + "; " + onB, "",
		},
		"too few local volumes": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{volumeClaim("data-0", "local", ""), volumeClaim("data-1", "local", ""), local, persistent("v", "local", free, host, "node-a")},
			"only 1 of the pods can be there", "",
		},
		"volumes of others, of another class, too small": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{
				volumeClaim("data", "local", "", func(c *corev1.PersistentVolumeClaim) {
					c.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("3Ti")
				}), local,
				persistent("v", "local", corev1.VolumeBound, host, "node-a"), persistent("w", "other", free, host, "node-a"), persistent("x", "local", free, host, "node-a"),
			},
			"node-a: PersistentVolumeClaim ml/data (StorageClass local) can get no volume there", "",
		},
		"volumes of a zone": {
			gangOf("g", 2, 4, mounts("data-%d")),
			[]any{
				volumeClaim("data-0", "local", ""), volumeClaim("data-1", "local", ""), local,
				persistent("v", "local", free, zone, "y"), persistent("w", "local", free, zone, "y"), persistent("x", "local", free, zone, "w"),
			},
			twoOnB, "",
		},
		"one claim for all members": {
			gangOf("g", 2, 4, mounts("data")), []any{volumeClaim("data", "local", ""), local, persistent("v", "local", free, host, "node-b")}, twoOnB, "",
		},
		"scratch volumes that Kubernetes has not made": {
			gangOf("g", 1, 4, scratch), []any{made}, "ml/g-0-scratch of pod g-0 is not made yet", placement.ReasonVolumesBeingMade,
		},
		"scratch volumes":                     {gangOf("g", 1, 4, scratch), []any{made, volumeClaim("g-0-scratch", "made", "", madeFor("g-0"))}, onA, ""},
		"a scratch volume of another's claim": {gangOf("g", 1, 4, scratch), []any{made, volumeClaim("g-0-scratch", "made", "")}, "was not made for pod g-0", placement.ReasonVolumesNotReady},
		"two members of which only one may use it": {
			gangOf("g", 2, 4, mounts("data")),
			[]any{volumeClaim("data", "made", "", once), made},
			"ReadWriteOncePod, so that pods g-0 and g-1 cannot both use it", placement.ReasonVolumesNotReady,
		},
		"in use by another, and only one may use it": {
			gangOf("g", 1, 4, mounts("data")),
			[]any{volumeClaim("data", "made", "", once), made, mounting("data", "node-a")},
			"ReadWriteOncePod and is in use by pod web-on-node-a", placement.ReasonVolumesNotReady,
		},
		"one may use it, and the other has ended": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "made", "", once), made, ended(mounting("data", "node-a"))}, onA, "",
		},
		"in use by another, and several may use it": {
			gangOf("g", 1, 4, mounts("data")), []any{volumeClaim("data", "made", ""), made, mounting("data", "node-a")}, onA, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := clusterOf(t, inZone(readyNode("node-a"), "x"), hgx("node-a"), inZone(readyNode("node-b"), "y"), hgx("node-b"))
			for _, object := range test.with {
				set(t, c, object)
			}
			if test.reason == "" {
				decidesOn(t, c, test.gang, test.want)
				return
			}
			refusal := c.Plan(context.Background(), []placement.Gang{test.gang})[0].Refusal
			if refusal == nil || refusal.Reason != test.reason || !strings.Contains(refusal.Message, test.want) {
				t.Errorf("refused with %+v; want %s: %q", refusal, test.reason, test.want)
			}
		})
	}
}

func mounting(claim, node string) *corev1.Pod {
	pod := running("ml", "web", node, nil)
	pod.Spec.Volumes = []corev1.Volume{{VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: claim}}}}
	return pod
}

// What is known of volumes follows the objects.
func TestVolumesComeAndGo(t *testing.T) {
	class := storageClass("local", "kubernetes.io/no-provisioner", storagev1.VolumeBindingWaitForFirstConsumer)
	c := clusterOf(t, readyNode("node-a"), hgx("node-a"), class)
	g := gangOf("g", 1, 4, mounts("data"))
	const placed = "node-a node-a.0 ×1: 0 1 2 3"
	for _, step := range []struct {
		what   string
		change func()
		want   string
	}{
		{"nothing is there", func() {}, "VolumesNotReady"},
		{"the claim comes", func() { set(t, c, volumeClaim("data", "local", "")) }, "NodesFull"},
		{"a volume comes", func() { set(t, c, persistent("v", "local", corev1.VolumeAvailable, "")) }, placed},
		{"another takes it", func() { set(t, c, persistent("v", "local", corev1.VolumeBound, "")) }, "NodesFull"},
		{"it is free again", func() { set(t, c, persistent("v", "local", corev1.VolumeAvailable, "")) }, placed},
		{"it goes", func() { c.DeleteVolume("v") }, "NodesFull"},
		{"its class makes volumes", func() {
			set(t, c, storageClass("local", "disks.example.com", storagev1.VolumeBindingWaitForFirstConsumer))
		}, placed},
		{"the class goes", func() { c.DeleteStorageClass("local") }, "VolumesNotReady"},
		{"the claim is bound", func() {
			set(t, c, persistent("v", "local", corev1.VolumeBound, ""))
			set(t, c, volumeClaim("data", "local", "v"))
		}, placed},
		{"the claim goes", func() { c.DeleteVolumeClaim(types.NamespacedName{Namespace: "ml", Name: "data"}) }, "VolumesNotReady"},
	} {
		step.change()
		if got := planOf(t, c, g); got != step.want {
			t.Errorf("%s: %s, want %s", step.what, got, step.want)
		}
	}
}

// Gangs that ask for the same but for their volumes are told apart.
func TestGangsWithOtherVolumesAreDecidedOnThemselves(t *testing.T) {
	c := clusterOf(t, inZone(readyNode("node-a"), "x"), hgx("node-a"), inZone(readyNode("node-b"), "y"), hgx("node-b"),
		volumeClaim("nowhere", "", "v"), persistent("v", "", corev1.VolumeBound, zone, "w"),
		volumeClaim("at-y", "", "w"), persistent("w", "", corev1.VolumeBound, zone, "y"))
	gangs := []placement.Gang{gangOf("first", 1, 4, mounts("nowhere")), gangOf("second", 1, 4, mounts("at-y")), gangOf("third", 1, 4)}
	var got []string
	for _, d := range c.Plan(context.Background(), gangs) {
		got = append(got, describe(d))
	}
	if want := []string{"NodesFull", "node-b node-b.0 ×1: 0 1 2 3", "node-a node-a.0 ×1: 0 1 2 3"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
