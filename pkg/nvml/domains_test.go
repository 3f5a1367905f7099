// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// dgxSwitches are the addresses of a DGX A100's six NVSwitches.
var dgxSwitches = []string{"00000000:C4:00.0", "00000000:C5:00.0", "00000000:C6:00.0", "00000000:C7:00.0", "00000000:C8:00.0", "00000000:C9:00.0"}

var (
	zeroCluster = gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_COMPLETED}
	rack        = gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: [16]uint8{3: 1, 15: 1}, CliqueId: 32766}
	rackDomain  = "00000001-0000-0000-0000-000000000001.32766"
)

// discover returns the node's inventory or fails the test.
func discover(t *testing.T, node *fakeNode) device.Inventory {
	t.Helper()
	inventory, err := node.library().Discover(t.Context())
	if err != nil {
		t.Fatalf("Discover: %v", err)
	}
	if len(node.calledMissing) > 0 {
		t.Fatalf("called %v, which the library lacks: that ends a real process", node.calledMissing)
	}
	return inventory
}

// domainsOf returns the domain of each GPU.
func domainsOf(inventory device.Inventory) []string {
	domains := make([]string, 0, len(inventory.GPUs))
	for _, gpu := range inventory.GPUs {
		domains = append(domains, gpu.NVSwitchDomain)
	}
	return domains
}

// repeat returns the domains of consecutive GPUs: repeat(4, "a", 4, "b").
func repeat(pairs ...any) []string {
	var domains []string
	for i := 0; i < len(pairs); i += 2 {
		for range pairs[i].(int) {
			domains = append(domains, pairs[i+1].(string))
		}
	}
	return domains
}

func span(from, to int) []int {
	var gpus []int
	for i := from; i <= to; i++ {
		gpus = append(gpus, i)
	}
	return gpus
}

// cubeMesh is the NVLinks of a DGX-1 V100.
func cubeMesh(t *testing.T) *fakeNode {
	node := newNode(t, 8)
	for _, l := range [][3]int{
		{0, 1, 1},
		{0, 2, 1},
		{0, 3, 2},
		{1, 2, 2},
		{1, 3, 1},
		{2, 3, 2},
		{4, 5, 1},
		{4, 6, 1},
		{4, 7, 2},
		{5, 6, 2},
		{5, 7, 1},
		{6, 7, 2},
		{0, 4, 2},
		{1, 5, 2},
		{2, 6, 1},
		{3, 7, 1},
	} {
		node.bridge(l[0], l[1], l[2])
	}
	return node
}

func TestDomains(t *testing.T) {
	const local0, local1, local2 = "node-a.0", "node-a.1", "node-a.2"
	dgx := func(t *testing.T) *fakeNode { return newNode(t, 8).switched(0, 7, 2, dgxSwitches...) }
	withLinks := func(node *fakeNode, change func(gpu int, l *fakeLink)) *fakeNode {
		for i, g := range node.gpus {
			for _, l := range g.links {
				change(i, l)
			}
		}
		return node
	}
	tests := map[string]struct {
		node  func(t *testing.T) *fakeNode
		want  []string
		links []int // of each GPU, where of interest
	}{
		"GPUs that share switches are one domain": {
			node: dgx, want: repeat(8, local0), links: []int{12, 12, 12, 12, 12, 12, 12, 12},
		},
		"two groups of switches are two domains": {
			node: func(t *testing.T) *fakeNode {
				return newNode(t, 8).switched(0, 3, 2, dgxSwitches[:3]...).switched(4, 7, 2, dgxSwitches[3:]...)
			},
			want: repeat(4, local0, 4, local1), links: []int{6, 6, 6, 6, 6, 6, 6, 6},
		},
		"domains are numbered by their smallest index": {
			node: func(t *testing.T) *fakeNode {
				return newNode(t, 5).bridge(1, 4, 4).bridge(2, 3, 4)
			},
			want: []string{"", local0, local1, local1, local0},
		},
		"switches that are linked to each other join boards, if the driver says so (DGX-2)": {
			node: func(t *testing.T) *fakeNode {
				return newNode(t, 16).switched(0, 7, 1, dgxSwitches[:3]...).switched(8, 15, 1, dgxSwitches[3:]...).peersWithin(span(0, 15))
			},
			want: repeat(16, local0),
		},
		"partitions of the fabric manager separate GPUs that share switches": {
			node: func(t *testing.T) *fakeNode { return dgx(t).peersWithin(span(0, 3), span(4, 7)) },
			want: repeat(4, local0, 4, local1),
		},
		"a driver that denies every peer leaves no domain, as without a fabric manager": {
			node: func(t *testing.T) *fakeNode { return dgx(t).peersWithin() },
			want: repeat(8, ""),
		},
		"an unknown peer status leaves the decision to the links": {
			node: func(t *testing.T) *fakeNode {
				node := dgx(t).peersWithin()
				*node.defaultPeers = gonvml.P2P_STATUS_UNKNOWN
				return node
			},
			want: repeat(8, local0),
		},
		"hidden ends are resolved by the driver, as in a virtual machine": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 8).opaque(18).peersWithin(span(0, 7)) },
			want: repeat(8, local0), links: []int{18, 18, 18, 18, 18, 18, 18, 18},
		},
		"hidden ends in two groups by the driver's word": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 8).opaque(12).peersWithin(span(0, 3), span(4, 7)) },
			want: repeat(4, local0, 4, local1),
		},
		"hidden ends without the driver's word prove nothing": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 8).opaque(18) },
			want: repeat(8, ""),
		},
		"ends that may not be read are hidden": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 4).opaque(18).peersWithin(span(0, 3))
				return withLinks(node, func(_ int, l *fakeLink) { l.hidden = true })
			},
			want: repeat(4, local0),
		},
		"where NVML answers for no link, the driver decides": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 4).peersWithin(span(0, 1), span(2, 3)) },
			want: repeat(2, local0, 2, local1), links: []int{0, 0, 0, 0},
		},
		"an old library without peer status: links decide": {
			node: func(t *testing.T) *fakeNode {
				node := dgx(t)
				node.missing["nvmlDeviceGetP2PStatus"] = true
				return node
			},
			want: repeat(8, local0),
		},
		"an old library without NVLink functions: no domain": {
			node: func(t *testing.T) *fakeNode {
				node := dgx(t)
				for _, symbol := range []string{"nvmlDeviceGetNvLinkState", "nvmlDeviceGetP2PStatus", "nvmlDeviceGetGpuFabricInfo"} {
					node.missing[symbol] = true
				}
				return node
			},
			want: repeat(8, ""),
		},
		"an old library without remote device types: addresses of GPUs still tell": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 4).bridge(0, 1, 4).bridge(2, 3, 4)
				node.missing["nvmlDeviceGetNvLinkRemoteDeviceType"] = true
				return node
			},
			want: repeat(2, local0, 2, local1),
		},
		"no NVLink is no domain": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 4) }, want: repeat(4, ""),
		},
		"link states that are NOT_SUPPORTED are no NVLink": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 2)
				for _, g := range node.gpus {
					g.ret["nvmlDeviceGetNvLinkState"] = gonvml.ERROR_NOT_SUPPORTED
				}
				return node
			},
			want: repeat(2, ""), links: []int{0, 0},
		},
		"bridged pairs are domains": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 4).bridge(0, 1, 12).bridge(2, 3, 12) },
			want: repeat(2, local0, 2, local1), links: []int{12, 12, 12, 12},
		},
		"the hybrid cube mesh of a DGX-1 is two domains": {
			node: cubeMesh, want: repeat(4, local0, 4, local1), links: []int{6, 6, 6, 6, 6, 6, 6, 6},
		},
		"links to GPUs of another virtual machine make no domain": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 2)
				for _, g := range node.gpus {
					g.addLinks(4, fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_GPU, busID: "00000000:99:00.0"})
				}
				return node
			},
			want: repeat(2, ""),
		},
		"links to the CPUs of a POWER machine make no domain": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 2)
				for _, g := range node.gpus {
					g.addLinks(3, fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_IBMNPU, busID: "00000004:00:00.0"})
				}
				return node
			},
			want: repeat(2, ""),
		},
		"link numbers may have gaps": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 2)
				node.gpus[0].links[5] = &fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_GPU, busID: node.gpus[1].busID}
				node.gpus[1].links[gonvml.NVLINK_MAX_LINKS-1] = &fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_GPU, busID: node.gpus[0].busID}
				return node
			},
			want: repeat(2, local0), links: []int{1, 1},
		},
		"a link whose state is an error is skipped": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 2).bridge(0, 1, 4)
				node.gpus[0].links[2].ret = gonvml.ERROR_UNKNOWN
				node.gpus[1].links[2].ret = gonvml.ERROR_NO_PERMISSION
				return node
			},
			want: repeat(2, local0), links: []int{3, 3},
		},
		"a GPU of which all links are down leaves its domain": {
			node: func(t *testing.T) *fakeNode { return dgx(t).downLinks(2, 12) },
			want: []string{local0, local0, "", local0, local0, local0, local0, local0}, links: []int{12, 12, 0, 12, 12, 12, 12, 12},
		},
		"links that are down outweigh a driver that still says OK": {
			node: func(t *testing.T) *fakeNode { return dgx(t).peersWithin(span(0, 7)).downLinks(2, 12) },
			want: []string{local0, local0, "", local0, local0, local0, local0, local0},
		},
		"a GPU of which one link is down stays, and shows it": {
			node: func(t *testing.T) *fakeNode { return dgx(t).downLinks(2, 1) },
			want: repeat(8, local0), links: []int{12, 12, 11, 12, 12, 12, 12, 12},
		},
		"a GPU of which one link is down leaves when the driver denies its peers": {
			node: func(t *testing.T) *fakeNode {
				return dgx(t).downLinks(2, 1).peersWithin([]int{0, 1, 3, 4, 5, 6, 7}, []int{2})
			},
			want: []string{local0, local0, "", local0, local0, local0, local0, local0},
		},
		"a bridge that is down parts the pair": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 4).bridge(0, 1, 4).bridge(2, 3, 4).downLinks(0, 4) },
			want: repeat(2, "", 2, local0), links: []int{0, 0, 4, 4},
		},
		"a direct link that is down is not replaced by the driver's word": {
			node: func(t *testing.T) *fakeNode {
				// 0 and 2 keep a link to 1 each, and the driver still calls all three peers.
				return newNode(t, 3).bridge(0, 2, 1).bridge(0, 1, 4).bridge(1, 2, 1).downLinks(0, 1).peersWithin(span(0, 2))
			},
			want: []string{local0, local0, ""},
		},
		"both ends of a direct link must be up": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 2).bridge(0, 1, 1)
				node.gpus[1].links[0].down = true
				return node
			},
			want: repeat(2, ""), links: []int{1, 0},
		},
		"a completed fabric of the board alone is node-local": {
			node: func(t *testing.T) *fakeNode { return dgx(t).register(zeroCluster) },
			want: repeat(8, local0),
		},
		"cliques of the board's fabric are separate": {
			node: func(t *testing.T) *fakeNode {
				node := dgx(t).register(zeroCluster)
				other := zeroCluster
				other.CliqueId = 1
				node.gpus[6].fabric, node.gpus[7].fabric = &other, &other
				return node
			},
			want: repeat(6, local0, 2, local1),
		},
		"a fabric over nodes names the domain, whatever the links hide": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 4).opaque(18).register(rack) },
			want: repeat(4, rackDomain),
		},
		"a fabric over nodes is a domain also for the only GPU of a node": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 1).opaque(18).register(rack) },
			want: []string{rackDomain},
		},
		"a GPU of a fabric whose links are all down has no domain": {
			node: func(t *testing.T) *fakeNode { return newNode(t, 4).opaque(18).register(rack).downLinks(1, 18) },
			want: []string{rackDomain, "", rackDomain, rackDomain},
		},
		"GPUs of two cliques are in two domains": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 4).opaque(18).register(rack)
				other := rack
				other.CliqueId = 2
				node.gpus[2].fabric, node.gpus[3].fabric = &other, &other
				return node
			},
			want: repeat(2, rackDomain, 2, "00000001-0000-0000-0000-000000000001.2"),
		},
		"a GPU in MIG mode sits in the domain to which its links lead": {
			node: func(t *testing.T) *fakeNode {
				node := dgx(t)
				node.gpus[0].mig = gonvml.DEVICE_MIG_ENABLE
				return node
			},
			want: repeat(8, local0),
		},
		"so do GPUs that are all in MIG mode": {
			node: func(t *testing.T) *fakeNode {
				node := dgx(t)
				for _, gpu := range node.gpus {
					gpu.mig = gonvml.DEVICE_MIG_ENABLE
				}
				return node
			},
			want: repeat(8, local0),
		},
		"GPUs in MIG mode that lead to each other only are in a domain of their own": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 4).bridge(0, 1, 4).bridge(2, 3, 4)
				node.gpus[0].mig, node.gpus[1].mig = gonvml.DEVICE_MIG_ENABLE, gonvml.DEVICE_MIG_ENABLE
				return node
			},
			want: repeat(2, local1, 2, local0),
		},
		"a GPU in MIG mode whose links are down has no domain": {
			node: func(t *testing.T) *fakeNode {
				node := newNode(t, 2).bridge(0, 1, 4).downLinks(0, 4)
				node.gpus[0].mig = gonvml.DEVICE_MIG_ENABLE
				return node
			},
			want: repeat(2, ""),
		},
		"a fabric state that is not supported is none": {
			node: func(t *testing.T) *fakeNode {
				return newNode(t, 2).bridge(0, 1, 4).register(gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_NOT_SUPPORTED})
			},
			want: repeat(2, local0),
		},
		"three boards are three domains": {
			node: func(t *testing.T) *fakeNode {
				return newNode(t, 6).bridge(0, 1, 1).bridge(2, 3, 1).bridge(4, 5, 1)
			},
			want: repeat(2, local0, 2, local1, 2, local2),
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			inventory := discover(t, test.node(t))
			if got := domainsOf(inventory); !reflect.DeepEqual(got, test.want) {
				t.Errorf("domains = %q, want %q", got, test.want)
			}
			sizes := map[string]int{}
			for i, domain := range test.want {
				if !inventory.GPUs[i].MIGEnabled { // such a GPU talks to nobody
					sizes[domain]++
				}
			}
			sizes[""] = 0
			for i, gpu := range inventory.GPUs {
				if gpu.NVSwitchDomainSize != sizes[gpu.NVSwitchDomain] {
					t.Errorf("GPU %d: domain size %d, want %d", i, gpu.NVSwitchDomainSize, sizes[gpu.NVSwitchDomain])
				}
				if test.links != nil && gpu.NVLinks != test.links[i] {
					t.Errorf("GPU %d: %d NVLinks, want %d", i, gpu.NVLinks, test.links[i])
				}
				if !gpu.Health.Healthy() {
					t.Errorf("GPU %d: unhealthy: %+v", i, gpu.Health)
				}
			}
			if inventory.Settling {
				t.Error("Settling is set, but no fabric is in progress")
			}
		})
	}
}

func TestLinksToEachPeer(t *testing.T) {
	mesh := func(t *testing.T) *fakeNode {
		return newNode(t, 4).bridge(0, 1, 4).bridge(0, 2, 4).bridge(0, 3, 4).bridge(1, 2, 4).bridge(1, 3, 4).bridge(2, 3, 4)
	}
	unreadable := newNode(t, 4).opaque(18).peersWithin(span(0, 3))
	for _, gpu := range unreadable.gpus {
		for _, link := range gpu.links {
			link.hidden = true
		}
	}
	for name, test := range map[string]struct {
		node *fakeNode
		want []int
	}{
		"through switches all links lead to each":        {newNode(t, 8).switched(0, 7, 2, dgxSwitches...), []int{12, 12, 12, 12, 12, 12, 12, 12}},
		"direct links are dealt out":                     {mesh(t), []int{4, 4, 4, 4}},
		"a direct link that is down":                     {mesh(t).downLinks(0, 1), []int{0, 0, 4, 4}},
		"a link to a switch that is down":                {newNode(t, 3).switched(0, 2, 2, dgxSwitches...).downLinks(2, 1), []int{0, 0, 11}},
		"peers that differ":                              {cubeMesh(t), []int{0, 0, 0, 0, 0, 0, 0, 0}},
		"switches that hide which they are":              {newNode(t, 4).opaque(18).peersWithin(span(0, 3)), []int{18, 18, 18, 18}},
		"ends that may not be read may be either":        {unreadable, []int{0, 0, 0, 0}},
		"a fabric over nodes has switches":               {newNode(t, 4).opaque(18).register(rack), []int{18, 18, 18, 18}},
		"no peer":                                        {newNode(t, 1).opaque(18).register(rack), []int{0}},
		"no NVLink":                                      {newNode(t, 2), []int{0, 0}},
		"links to a GPU that has no domain do not count": {newNode(t, 3).bridge(0, 1, 4).bridge(1, 2, 2), []int{4, 4, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			var got []int
			for _, gpu := range discover(t, test.node).GPUs {
				got = append(got, gpu.NVLinksPerPeer)
			}
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %v, want %v", got, test.want)
			}
		})
	}
}

// Whom a GPU in MIG mode talks to does not matter to the others.
func TestLinksToAGPUInMIGModeDoNotCount(t *testing.T) {
	node := newNode(t, 3).bridge(0, 1, 4).bridge(0, 2, 2).bridge(1, 2, 2)
	node.gpus[2].mig = gonvml.DEVICE_MIG_ENABLE
	for i, gpu := range discover(t, node).GPUs {
		if want := []int{4, 4, 0}[i]; gpu.NVLinksPerPeer != want {
			t.Errorf("GPU %d: got %d, want %d", i, gpu.NVLinksPerPeer, want)
		}
	}
}

func TestFabricThatIsNotCompletedGivesNoDomainYet(t *testing.T) {
	for name, state := range map[string]uint8{
		"not started": gonvml.GPU_FABRIC_STATE_NOT_STARTED,
		"in progress": gonvml.GPU_FABRIC_STATE_IN_PROGRESS,
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 4).opaque(18).peersWithin(span(0, 3)).register(gonvml.GpuFabricInfo{State: state})
			inventory := discover(t, node)
			if got := domainsOf(inventory); !reflect.DeepEqual(got, repeat(4, "")) || !inventory.Settling {
				t.Fatalf("domains %q, settling %v; want none, true", got, inventory.Settling)
			}
			node.register(rack)
			inventory = discover(t, node)
			if got := domainsOf(inventory); !reflect.DeepEqual(got, repeat(4, rackDomain)) || inventory.Settling {
				t.Errorf("once completed: domains %q, settling %v", got, inventory.Settling)
			}
		})
	}
}

func TestFabricThatFailedIsToldAndCostsOnlyTheDomain(t *testing.T) {
	for name, test := range map[string]struct {
		info gonvml.GpuFabricInfo
		want string
	}{
		"error status":  {gonvml.GpuFabricInfo{State: gonvml.GPU_FABRIC_STATE_COMPLETED, Status: uint32(gonvml.ERROR_NOT_READY)}, "ERROR_NOT_READY"},
		"unknown state": {gonvml.GpuFabricInfo{State: 77}, "state 77"},
	} {
		t.Run(name, func(t *testing.T) {
			node := newNode(t, 4).opaque(18).peersWithin(span(0, 3)).register(rack)
			node.gpus[1].fabric = &test.info
			inventory := discover(t, node)
			if got, want := domainsOf(inventory), []string{rackDomain, "", rackDomain, rackDomain}; !reflect.DeepEqual(got, want) {
				t.Errorf("domains %q, want %q", got, want)
			}
			health := inventory.GPUs[1].Health
			if !health.Healthy() || !strings.Contains(health.Message, test.want) {
				t.Errorf("health %+v, want healthy with a message about %q", health, test.want)
			}
		})
	}
}

func TestFabricHealthMaskTellsDegradedBandwidth(t *testing.T) {
	info := gonvml.GpuFabricInfo_v2{State: gonvml.GPU_FABRIC_STATE_COMPLETED, ClusterUuid: rack.ClusterUuid, CliqueId: 1}
	if got := interpretFabric(info); got.message != "" || got.state != fabricJoined {
		t.Errorf("no mask: %+v", got)
	}
	info.HealthMask = gonvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_FALSE
	if got := interpretFabric(info); got.message != "" {
		t.Errorf("not degraded: %q", got.message)
	}
	info.HealthMask = gonvml.GPU_FABRIC_HEALTH_MASK_DEGRADED_BW_TRUE
	if got := interpretFabric(info); got.message == "" || got.state != fabricJoined {
		t.Errorf("degraded: %+v", got)
	}
}

func TestMoreGPUsThanATopologyHoldsAreListedWithoutDomain(t *testing.T) {
	node := newNode(t, 65)
	for i, g := range node.gpus {
		g.busID = fmt.Sprintf("%08X:01:00.0", i)
	}
	node.switched(0, 64, 1, dgxSwitches[0])
	inventory := discover(t, node)
	if len(inventory.GPUs) != 65 || inventory.GPUs[0].NVSwitchDomain != "" {
		t.Fatalf("%d GPUs, domain %q; want 65 without", len(inventory.GPUs), inventory.GPUs[0].NVSwitchDomain)
	}
	if message := inventory.GPUs[0].Health.Message; !strings.Contains(message, "at most 64") {
		t.Errorf("message %q does not say why", message)
	}
}

// GPU0/GPU1 and GPU2/GPU3 are NVLink pairs: NV#214 could not ask for a pair, because nothing said so.
func TestFieldCase25_NVLinkPairsAreDomains(t *testing.T) {
	inventory := discover(t, newNode(t, 4).bridge(0, 1, 4).bridge(2, 3, 4))
	if got, want := domainsOf(inventory), repeat(2, "node-a.0", 2, "node-a.1"); !reflect.DeepEqual(got, want) {
		t.Errorf("domains %q, want %q", got, want)
	}
}

// NV#174: claims that know the NVLink fabric of a rack. Its domain has one name on every node.
func TestFieldCase26_FabricDomainSpansNodes(t *testing.T) {
	var names []string
	for _, nodeName := range []string{"rack-1-node-1", "rack-1-node-2"} {
		node := newNode(t, 4).opaque(18).register(rack)
		library, err := Open(Options{NodeName: nodeName, SysfsRoot: node.sysfs, Lib: node.nvml()})
		if err != nil {
			t.Fatal(err)
		}
		inventory, err := library.Discover(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		names = append(names, domainsOf(inventory)...)
	}
	if want := repeat(8, rackDomain); !reflect.DeepEqual(names, want) {
		t.Errorf("domains over both nodes: %q, want %q", names, want)
	}
}
