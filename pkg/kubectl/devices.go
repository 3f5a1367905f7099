// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/gang"
	"github.com/switchyard-dev/switchyard/pkg/placement"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// States of a GPU, in the order in which they are asked: a GPU in use may be tainted as well.
const (
	stateInUse    = "InUse"
	stateTainted  = "Tainted"
	stateReserved = "Reserved"
	// stateShared is the state of a GPU that is for shares, and of which nobody has one: no whole GPU is free.
	stateShared = "Shared"
	stateFree   = "Free"
)

// nodeView is a node with GPUs. Field names are documented in docs/reference/kubectl.md.
type nodeView struct {
	Name          string `json:"name"`
	DriverVersion string `json:"driverVersion,omitempty"`
	// Updating says that not all slices of the newest generation are there: nothing is allocated of them meanwhile.
	Updating bool         `json:"updating,omitempty"`
	Domains  []domainView `json:"domains"`
	GPUs     []gpuView    `json:"gpus"`
	// Links are how GPUs are connected: a row and a column for each GPU, in their order.
	Links [][]string `json:"links,omitempty"`
}

// domainView are GPUs of a node in one NVSwitch domain; of those that are in none, those at one NUMA node.
type domainView struct {
	Name      string  `json:"name,omitempty"`
	NUMANodes []int64 `json:"numaNodes,omitempty"`
	GPUs      []int64 `json:"gpus"`
	Free      int     `json:"free"`

	list []*gpuView
}

// gpuView is a GPU.
type gpuView struct {
	Index   int64  `json:"index"`
	Device  string `json:"device"`
	ID      string `json:"id,omitempty"`
	UUID    string `json:"uuid,omitempty"`
	Product string `json:"product,omitempty"`
	Domain  string `json:"domain,omitempty"`
	// LastDomain is the domain that the GPU has dropped out of.
	LastDomain string `json:"lastDomain,omitempty"`
	NUMANode   *int64 `json:"numaNode,omitempty"`
	PCIeRoot   string `json:"pcieRoot,omitempty"`
	PCIBusID   string `json:"pciBusID,omitempty"`
	NVLinks    int64  `json:"nvlinks"`
	// NVLinksPerPeer is 0 where the attribute is absent.
	NVLinksPerPeer int64        `json:"nvlinksPerPeer,omitempty"`
	State          string       `json:"state"`
	Holders        []holderView `json:"holders,omitempty"`
	ReservedFor    string       `json:"reservedFor,omitempty"`
	Taints         []string     `json:"taints,omitempty"`

	id placement.DeviceID
}

// holderView is a claim that has the GPU, or a partition or a share of it.
type holderView struct {
	Claim     string   `json:"claim"`
	Pods      []string `json:"pods,omitempty"`
	Partition string   `json:"partition,omitempty"`
	// Memory is that of a share.
	Memory string `json:"memory,omitempty"`
}

// errNoSlices says that there is nothing to show.
var errNoSlices = errors.New("no ResourceSlice of driver " + v1alpha1.DriverName + " lists a GPU: the node plugin has to run on the nodes " +
	"with GPUs; see its pods (kubectl get pods -A | grep switchyard) and kubectl get resourceslices")

// devices lists the nodes that have GPUs, by name.
func (s *snapshot) devices() ([]nodeView, error) {
	holders, reserved := s.holders(), s.reserved()
	byNode := map[string]*nodeView{}
	for _, p := range pools(s.slices) {
		partitions := map[string][]resourceapi.Device{} // by UUID of the GPU
		for _, slice := range p.slices {
			for _, d := range slice.Spec.Devices {
				if parent := stringOf(d, resourcemodel.AttributeParentUUID); parent != "" {
					partitions[parent] = append(partitions[parent], d)
				}
			}
		}
		for _, slice := range p.slices {
			for _, d := range slice.Spec.Devices {
				if kind := stringOf(d, resourcemodel.AttributeType); kind != resourcemodel.TypeGPU && kind != resourcemodel.TypeShare {
					continue
				}
				name := ptr.Deref(slice.Spec.NodeName, p.name)
				n := byNode[name]
				if n == nil {
					n = &nodeView{Name: name}
					byNode[name] = n
				}
				n.Updating = n.Updating || !p.complete
				n.DriverVersion = cmp.Or(n.DriverVersion, ptr.Deref(d.Attributes[resourcemodel.AttributeDriverVersion].VersionValue, ""))
				g := newGPU(p.name, d)
				g.Holders = holders[g.id]
				for _, partition := range partitions[g.UUID] {
					for _, h := range holders[placement.DeviceID{Driver: v1alpha1.DriverName, Pool: p.name, Device: partition.Name}] {
						h.Partition = stringOf(partition, resourcemodel.AttributeProfile)
						g.Holders = append(g.Holders, h)
					}
				}
				g.judge(s, d, reserved)
				n.GPUs = append(n.GPUs, g)
			}
		}
	}
	if len(byNode) == 0 {
		return nil, errNoSlices
	}
	var nodes []nodeView
	for _, n := range byNode {
		slices.SortFunc(n.GPUs, func(a, b gpuView) int {
			return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Device, b.Device))
		})
		n.Domains = domainsOf(n.GPUs)
		nodes = append(nodes, *n)
	}
	slices.SortFunc(nodes, func(a, b nodeView) int { return cmp.Compare(a.Name, b.Name) })
	return nodes, nil
}

// pool are the slices of one pool, of its newest generation.
type pool struct {
	name     string
	slices   []*resourceapi.ResourceSlice
	complete bool
}

func pools(all []*resourceapi.ResourceSlice) []*pool {
	byName := map[string]*pool{}
	for _, slice := range all {
		if slice.Spec.Driver != v1alpha1.DriverName {
			continue
		}
		p := byName[slice.Spec.Pool.Name]
		switch {
		case p == nil || slice.Spec.Pool.Generation > p.slices[0].Spec.Pool.Generation:
			byName[slice.Spec.Pool.Name] = &pool{name: slice.Spec.Pool.Name, slices: []*resourceapi.ResourceSlice{slice}}
		case slice.Spec.Pool.Generation == p.slices[0].Spec.Pool.Generation:
			p.slices = append(p.slices, slice)
		}
	}
	var list []*pool
	for _, p := range byName {
		p.complete = int64(len(p.slices)) == p.slices[0].Spec.Pool.ResourceSliceCount
		list = append(list, p)
	}
	return list
}

func newGPU(pool string, d resourceapi.Device) gpuView {
	return gpuView{
		Index:          ptr.Deref(d.Attributes[resourcemodel.AttributeIndex].IntValue, 0),
		Device:         d.Name,
		ID:             stringOf(d, resourcemodel.AttributeID),
		UUID:           stringOf(d, resourcemodel.AttributeUUID),
		Product:        stringOf(d, resourcemodel.AttributeProductName),
		Domain:         stringOf(d, resourcemodel.AttributeNVSwitchDomain),
		LastDomain:     stringOf(d, resourcemodel.AttributeLastNVSwitchDomain),
		NUMANode:       d.Attributes[resourcemodel.AttributeNUMANode].IntValue,
		PCIeRoot:       stringOf(d, resourcemodel.AttributePCIeRoot),
		PCIBusID:       stringOf(d, resourcemodel.AttributePCIBusID),
		NVLinks:        ptr.Deref(d.Attributes[resourcemodel.AttributeNVLinks].IntValue, 0),
		NVLinksPerPeer: ptr.Deref(d.Attributes[resourcemodel.AttributeNVLinksPerPeer].IntValue, 0),
		id:             placement.DeviceID{Driver: v1alpha1.DriverName, Pool: pool, Device: d.Name},
	}
}

func stringOf(d resourceapi.Device, name resourceapi.QualifiedName) string {
	return ptr.Deref(d.Attributes[name].StringValue, "")
}

// judge says what state the GPU is in.
func (g *gpuView) judge(s *snapshot, d resourceapi.Device, reserved map[placement.DeviceID]string) {
	g.ReservedFor = reserved[g.id]
	taints := slices.Clone(d.Taints)
	for _, rule := range s.rules {
		if sel := rule.Spec.DeviceSelector; sel != nil && matches(sel.Driver, g.id.Driver) && matches(sel.Pool, g.id.Pool) && matches(sel.Device, g.id.Device) {
			taints = append(taints, rule.Spec.Taint)
		}
	}
	for _, t := range taints {
		switch {
		case t.Effect != resourceapi.DeviceTaintEffectNoSchedule && t.Effect != resourceapi.DeviceTaintEffectNoExecute:
		case t.Key == v1alpha1.ReservedTaintKey:
			g.ReservedFor = cmp.Or(g.ReservedFor, s.gangName(types.UID(t.Value)))
		default:
			g.Taints = append(g.Taints, t.Key+":"+string(t.Effect))
		}
	}
	slices.Sort(g.Taints)
	switch {
	case len(g.Holders) > 0:
		g.State = stateInUse
	case len(g.Taints) > 0:
		g.State = stateTainted
	case g.ReservedFor != "":
		g.State = stateReserved
	case stringOf(d, resourcemodel.AttributeType) == resourcemodel.TypeShare:
		g.State = stateShared
	default:
		g.State = stateFree
	}
}

// matches says whether a field of a DeviceTaintRule's selector selects the value.
func matches(want *string, value string) bool { return want == nil || *want == value }

// gangName is the namespace and name of a gang, or its UID where the GangClaim is gone or was not read.
func (s *snapshot) gangName(uid types.UID) string {
	for _, g := range s.gangs {
		if g.UID == uid {
			return keyOf(g).String()
		}
	}
	return "gang " + string(uid)
}

// holders lists the claims that have devices of our driver allocated.
func (s *snapshot) holders() map[placement.DeviceID][]holderView {
	holders := map[placement.DeviceID][]holderView{}
	for _, claim := range s.claims {
		if claim.Status.Allocation == nil {
			continue
		}
		h := holderView{Claim: keyOf(claim).String()}
		for _, consumer := range claim.Status.ReservedFor {
			if consumer.APIGroup == "" && consumer.Resource == "pods" {
				h.Pods = append(h.Pods, claim.Namespace+"/"+consumer.Name)
			}
		}
		for _, r := range claim.Status.Allocation.Devices.Results {
			if r.Driver == v1alpha1.DriverName && !ptr.Deref(r.AdminAccess, false) {
				id := placement.DeviceID{Driver: r.Driver, Pool: r.Pool, Device: r.Device}
				h.Memory = ""
				if memory, ok := r.ConsumedCapacity[resourcemodel.CapacityMemory]; ok {
					h.Memory = memory.String()
				}
				holders[id] = append(holders[id], h)
			}
		}
	}
	for _, list := range holders {
		slices.SortFunc(list, func(a, b holderView) int { return cmp.Compare(a.Claim, b.Claim) })
	}
	return holders
}

// reserved are the devices of plans, and those that nobody can have besides.
func (s *snapshot) reserved() map[placement.DeviceID]string {
	reserved := map[placement.DeviceID]string{}
	for _, g := range s.gangs {
		if gang.Reserves(g) {
			for _, id := range placement.ReservedDevices(g.Status.Plan) {
				reserved[id] = keyOf(g).String()
			}
		}
	}
	return reserved
}

// domainsOf groups GPUs, in the order of the first of each group.
func domainsOf(gpus []gpuView) []domainView {
	type key struct {
		domain string
		numa   int64
	}
	at := map[key]int{}
	var list []domainView
	for i := range gpus {
		g := &gpus[i]
		k := key{domain: cmp.Or(g.Domain, g.LastDomain)}
		if k.domain == "" {
			k.numa = ptr.Deref(g.NUMANode, -1)
		}
		if _, known := at[k]; !known {
			at[k] = len(list)
			list = append(list, domainView{Name: k.domain})
		}
		d := &list[at[k]]
		d.GPUs = append(d.GPUs, g.Index)
		d.list = append(d.list, g)
		if g.NUMANode != nil && !slices.Contains(d.NUMANodes, *g.NUMANode) {
			d.NUMANodes = append(d.NUMANodes, *g.NUMANode)
		}
		if g.State == stateFree && g.Domain == d.Name {
			d.Free++
		}
	}
	return list
}

// nodeNamed returns the node with GPUs of that name.
func nodeNamed(nodes []nodeView, name string) (nodeView, error) {
	var names []string
	for _, n := range nodes {
		if n.Name == name {
			return n, nil
		}
		names = append(names, n.Name)
	}
	return nodeView{}, fmt.Errorf("node %q publishes no GPU of driver %s: nodes that do are %s", name, v1alpha1.DriverName, few(names))
}

// mostNames is how many names a message lists.
const mostNames = 10

func few(names []string) string {
	if len(names) > mostNames {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNames], ", "), len(names)-mostNames)
	}
	return strings.Join(names, ", ")
}
