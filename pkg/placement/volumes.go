// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/component-helpers/storage/ephemeral"
	volumehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/utils/ptr"
)

// storage is what the cluster knows of persistent volumes.
type storage struct {
	claims  map[types.NamespacedName]*corev1.PersistentVolumeClaim
	volumes map[string]*volume
	classes map[string]*storagev1.StorageClass
}

// volume is a PersistentVolume and where it can be used.
type volume struct {
	object *corev1.PersistentVolume
	// where is nil if it can be used everywhere; text is equal for volumes that say the same of nodes.
	where *nodeaffinity.LazyErrorNodeSelector
	text  string
	// host is the only host name where it can be used, as of local volumes; empty if it says more, or less.
	host string
	// zones are the values that labels of a node must have, if it has any label of zones or regions; zonesText is for them what text
	// is.
	zones     map[string][]string
	zonesText string
}

// zoneLabels are those by which volumes say in which zones they are, with the name that a node may have in place of an old one.
var zoneLabels = map[string]string{
	corev1.LabelFailureDomainBetaZone:   corev1.LabelTopologyZone,
	corev1.LabelFailureDomainBetaRegion: corev1.LabelTopologyRegion,
	corev1.LabelTopologyZone:            corev1.LabelTopologyZone,
	corev1.LabelTopologyRegion:          corev1.LabelTopologyRegion,
}

// zonesSeparator is between the zones of a volume that is in several.
const zonesSeparator = "__"

// SetVolumeClaim adds or replaces a PersistentVolumeClaim.
func (c *Cluster) SetVolumeClaim(object *corev1.PersistentVolumeClaim) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.storage.claims[types.NamespacedName{Namespace: object.Namespace, Name: object.Name}] = object
}

// DeleteVolumeClaim removes a PersistentVolumeClaim.
func (c *Cluster) DeleteVolumeClaim(key types.NamespacedName) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.storage.claims, key)
}

// SetVolume adds or replaces a PersistentVolume.
func (c *Cluster) SetVolume(object *corev1.PersistentVolume) {
	v := &volume{object: object, zones: map[string][]string{}}
	if affinity := object.Spec.NodeAffinity; affinity != nil && affinity.Required != nil {
		v.where = nodeaffinity.NewLazyErrorNodeSelector(affinity.Required)
		v.text = affinity.Required.String()
		v.host = onlyHost(affinity.Required)
	}
	for _, label := range slices.Sorted(maps.Keys(zoneLabels)) {
		if zones := zonesIn(object.Labels[label]); zones != nil {
			v.zones[label] = zones
			v.zonesText += fmt.Sprintf("%s=%q ", label, zones)
		}
	}
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.storage.volumes[object.Name] = v
}

// DeleteVolume removes a PersistentVolume by name.
func (c *Cluster) DeleteVolume(name string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.storage.volumes, name)
}

// SetStorageClass adds or replaces a StorageClass.
func (c *Cluster) SetStorageClass(object *storagev1.StorageClass) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	c.storage.classes[object.Name] = object
}

// DeleteStorageClass removes a StorageClass by name.
func (c *Cluster) DeleteStorageClass(name string) {
	c.mutex.Lock()
	defer c.mutex.Unlock()
	delete(c.storage.classes, name)
}

// zonesIn are the zones in a label; none if one of them is empty, as kube-scheduler ignores the label then.
func zonesIn(label string) []string {
	zones := strings.Split(label, zonesSeparator)
	for i := range zones {
		if zones[i] = strings.TrimSpace(zones[i]); zones[i] == "" {
			return nil
		}
	}
	return zones
}

func onlyHost(s *corev1.NodeSelector) string {
	if len(s.NodeSelectorTerms) != 1 || len(s.NodeSelectorTerms[0].MatchFields) > 0 || len(s.NodeSelectorTerms[0].MatchExpressions) != 1 {
		return ""
	}
	e := s.NodeSelectorTerms[0].MatchExpressions[0]
	if e.Key != corev1.LabelHostname || e.Operator != corev1.NodeSelectorOpIn || len(e.Values) != 1 {
		return ""
	}
	return e.Values[0]
}

// reaches reports whether the volume's node affinity selects the node.
func (v *volume) reaches(n *corev1.Node) bool {
	switch {
	case v.where == nil:
		return true
	case v.host != "":
		return n.Labels[corev1.LabelHostname] == v.host
	}
	// As kube-scheduler does: by labels alone.
	match, err := v.where.Match(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Labels: n.Labels}})
	return err == nil && match
}

// zoned reports whether the node is in the zones that the volume's labels name. A node without any such label is.
func (v *volume) zoned(n *corev1.Node) bool {
	labelled := false
	for label := range zoneLabels {
		_, ok := n.Labels[label]
		labelled = labelled || ok
	}
	for label, values := range v.zones {
		value, ok := n.Labels[label]
		if !ok {
			value, ok = n.Labels[zoneLabels[label]]
		}
		if labelled && (!ok || !slices.Contains(values, value)) {
			return false
		}
	}
	return true
}

// tiesOf finds out what ties the pods to nodes: their persistent volumes, as for kube-scheduler's plugins VolumeBinding,
// VolumeZone and VolumeRestrictions, and where they are of several kinds these. It returns why the pods cannot be scheduled
// anywhere now, nil when they can. Free space (CSIStorageCapacity) and how many volumes a node can attach (CSINode) are not
// looked at.
func (c *Cluster) tiesOf(pods []*corev1.Pod, kinds []podKind) ([]*tie, *Refusal) {
	var ties []*tie
	var used users
	for _, pod := range pods {
		t := &tie{pods: 1}
		if len(kinds) > 1 {
			at := slices.IndexFunc(kinds, func(k podKind) bool { return sameKind(k.spec, &pod.Spec) })
			t.kinds = append(t.kinds, &kinds[at])
		}
		for i := range pod.Spec.Volumes {
			claim, refusal := c.volumeClaim(pod, &pod.Spec.Volumes[i])
			switch {
			case refusal != nil:
				return nil, refusal
			case claim == nil:
				continue
			}
			if slices.Contains(claim.Spec.AccessModes, corev1.ReadWriteOncePod) {
				if used == nil {
					used = c.usersIn(pod.Namespace)
				}
				if refusal := used.add(claim, pod); refusal != nil {
					return nil, refusal
				}
			}
			if !isBound(claim) {
				t.await(claim)
				continue
			}
			v := c.storage.volumes[claim.Spec.VolumeName]
			if v == nil {
				return nil, notReady("PersistentVolumeClaim %s is bound to PersistentVolume %s, which does not exist", nameOfClaim(claim), claim.Spec.VolumeName)
			}
			b := boundVolume{volume: v, claim: claim, ephemeral: pod.Spec.Volumes[i].Ephemeral != nil, says: v.text}
			if !b.ephemeral {
				b.says += v.zonesText
			}
			t.use(b)
		}
		ties = join(ties, t)
	}
	return ties, nil
}

func notReady(format string, args ...any) *Refusal {
	return &Refusal{Reason: ReasonVolumesNotReady, Message: fmt.Sprintf(format, args...)}
}

// boundVolume is a volume that a pod has.
type boundVolume struct {
	*volume

	claim *corev1.PersistentVolumeClaim
	// ephemeral volumes are made for the pod; kube-scheduler does not look at their labels of zones.
	ephemeral bool
	// says is equal for volumes that say the same of nodes, and empty for those that say nothing.
	says string
}

func isBound(claim *corev1.PersistentVolumeClaim) bool {
	return claim.Spec.VolumeName != "" && metav1.HasAnnotation(claim.ObjectMeta, volumehelpers.AnnBindCompleted)
}

func nameOfClaim(claim *corev1.PersistentVolumeClaim) string {
	return claim.Namespace + "/" + claim.Name
}

func bySize(a, b *corev1.PersistentVolumeClaim) int {
	return cmp.Or(
		a.Spec.Resources.Requests.Storage().Cmp(*b.Spec.Resources.Requests.Storage()),
		cmp.Compare(a.Name, b.Name),
	)
}

// volumeClaim returns the claim behind a volume of a pod, nil if it has none, or why the pod cannot be scheduled with it.
func (c *Cluster) volumeClaim(pod *corev1.Pod, v *corev1.Volume) (*corev1.PersistentVolumeClaim, *Refusal) {
	var name string
	switch {
	case v.PersistentVolumeClaim != nil:
		name = v.PersistentVolumeClaim.ClaimName
	case v.Ephemeral != nil:
		name = ephemeral.VolumeClaimName(pod, v)
	default:
		return nil, nil
	}
	key := types.NamespacedName{Namespace: pod.Namespace, Name: name}
	claim := c.storage.claims[key]
	switch {
	case claim == nil && v.Ephemeral != nil:
		return nil, &Refusal{Reason: ReasonVolumesBeingMade, Message: fmt.Sprintf(
			"PersistentVolumeClaim %s of pod %s is not made yet: Kubernetes makes it from the pod's volume %s", key, pod.Name, v.Name)}
	case claim == nil:
		return nil, notReady("PersistentVolumeClaim %s, which pod %s names, does not exist: create it", key, pod.Name)
	case v.Ephemeral != nil && ephemeral.VolumeIsForPod(pod, claim) != nil:
		return nil, notReady("PersistentVolumeClaim %s was not made for pod %s, whose volume %s takes that name: delete the claim, or name the volume otherwise", key, pod.Name, v.Name)
	case claim.DeletionTimestamp != nil:
		return nil, notReady("PersistentVolumeClaim %s is being deleted", key)
	case claim.Status.Phase == corev1.ClaimLost:
		return nil, notReady("PersistentVolumeClaim %s has lost its PersistentVolume %s", key, claim.Spec.VolumeName)
	case !isBound(claim) && (claim.Spec.VolumeName != "" || !c.bindsLater(claim)):
		return nil, notReady("PersistentVolumeClaim %s is not bound yet, and kube-scheduler waits for it: kubectl -n %s describe pvc %s says why", key, pod.Namespace, name)
	}
	return claim, nil
}

// bindsLater reports whether the claim gets a volume when a pod with it is scheduled.
func (c *Cluster) bindsLater(claim *corev1.PersistentVolumeClaim) bool {
	class := c.storage.classes[volumehelpers.GetPersistentVolumeClaimClass(claim)]
	return class != nil && ptr.Deref(class.VolumeBindingMode, "") == storagev1.VolumeBindingWaitForFirstConsumer
}

// users are the pods that use the claims of a namespace, by the claim's name: of several the first by name.
type users map[string]*corev1.Pod

// usersIn finds those that have a node.
func (c *Cluster) usersIn(namespace string) users {
	u := users{}
	for key, p := range c.pods {
		if p.node == "" || key.Namespace != namespace {
			continue
		}
		for i := range p.object.Spec.Volumes {
			if v := p.object.Spec.Volumes[i].PersistentVolumeClaim; v != nil && (u[v.ClaimName] == nil || key.Name < u[v.ClaimName].Name) {
				u[v.ClaimName] = p.object
			}
		}
	}
	return u
}

// add adds a pod that is to be scheduled, with a claim that only one may use at a time (ReadWriteOncePod), or says who uses it.
func (u users) add(claim *corev1.PersistentVolumeClaim, pod *corev1.Pod) *Refusal {
	switch other := u[claim.Name]; {
	case other == nil || other.Name == pod.Name:
		u[claim.Name] = pod
		return nil
	case other.Spec.NodeName == "":
		return notReady("PersistentVolumeClaim %s has access mode ReadWriteOncePod, so that pods %s and %s cannot both use it: give each its own, or another mode",
			nameOfClaim(claim), other.Name, pod.Name)
	default:
		return notReady("PersistentVolumeClaim %s has access mode ReadWriteOncePod and is in use by pod %s", nameOfClaim(claim), other.Name)
	}
}
