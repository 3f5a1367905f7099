// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	clocktesting "k8s.io/utils/clock/testing"
)

// hiddenBusID is what NVML tells of an end that it hides.
const hiddenBusID = "FFFFFFFF:FF:FF.F"

// fakeNode is the hardware and driver of a node. Tests change it between discoveries.
type fakeNode struct {
	t    *testing.T
	mu   sync.Mutex
	gpus []*fakeGPU

	driver              string
	cudaVersion         int
	cudaV2Ret           gonvml.Return
	initRet             gonvml.Return
	driverRet, countRet gonvml.Return
	missing             map[string]bool // symbols the library lacks
	peers               map[[2]int]gonvml.GpuP2PStatus
	inits, shutdowns    int
	block               chan struct{} // when set, Init waits for it
	blockShutdown       chan struct{} // when set, Shutdown waits for it
	calledMissing       []string
	defaultPeers        *gonvml.GpuP2PStatus
	peerRet             gonvml.Return
	sysfs               string
	clock               *clocktesting.FakePassiveClock
}

// fakeGPU is one GPU of a fakeNode.
type fakeGPU struct {
	uuid, name, busID string
	minor             int
	brand             gonvml.BrandType
	arch              gonvml.DeviceArchitecture
	major, ccMinor    int
	cores             int
	memory            uint64
	mig               int
	links             map[int]*fakeLink
	fabric            *gonvml.GpuFabricInfo
	// ret is what a call returns instead of SUCCESS, by its C name.
	ret map[string]gonvml.Return
}

type fakeLink struct {
	ret    gonvml.Return
	down   bool
	kind   gonvml.IntNvLinkDeviceType
	busID  string
	hidden bool // both calls for the remote end fail
}

// newNode returns a node of n healthy H100 without NVLinks, at PCI addresses 00000000:10:00.0, 11, ...
func newNode(t *testing.T, n int) *fakeNode {
	node := &fakeNode{
		t: t, driver: "580.105.08", cudaVersion: 13000, missing: map[string]bool{},
		peers: map[[2]int]gonvml.GpuP2PStatus{}, sysfs: t.TempDir(), peerRet: gonvml.ERROR_NOT_SUPPORTED,
		clock: clocktesting.NewFakePassiveClock(time.Date(2026, 11, 29, 3, 0, 0, 0, time.UTC)),
	}
	for i := range n {
		node.gpus = append(node.gpus, &fakeGPU{
			uuid: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i), name: "NVIDIA H100 80GB HBM3",
			busID: fmt.Sprintf("00000000:%02X:00.0", 0x10+i), minor: i, brand: gonvml.BRAND_NVIDIA,
			arch: gonvml.DEVICE_ARCH_HOPPER, major: 9, cores: 16896, memory: 81559 << 20,
			links: map[int]*fakeLink{}, ret: map[string]gonvml.Return{},
		})
	}
	return node
}

func (g *fakeGPU) addLinks(n int, link fakeLink) {
	for range n {
		l := link
		g.links[len(g.links)] = &l
	}
}

// bridge adds n direct links between GPUs a and b.
func (node *fakeNode) bridge(a, b, n int) *fakeNode {
	node.gpus[a].addLinks(n, fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_GPU, busID: node.gpus[b].busID})
	node.gpus[b].addLinks(n, fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_GPU, busID: node.gpus[a].busID})
	return node
}

// switched connects GPUs from..to by n links to each of the switches.
func (node *fakeNode) switched(from, to, n int, switches ...string) *fakeNode {
	for i := from; i <= to; i++ {
		for _, address := range switches {
			node.gpus[i].addLinks(n, fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_SWITCH, busID: address})
		}
	}
	return node
}

// opaque gives every GPU n links whose ends are hidden.
func (node *fakeNode) opaque(n int) *fakeNode {
	for _, g := range node.gpus {
		g.addLinks(n, fakeLink{kind: gonvml.NVLINK_DEVICE_TYPE_SWITCH, busID: hiddenBusID})
	}
	return node
}

// peersWithin makes the driver say OK inside each group and NOT_SUPPORTED between groups.
func (node *fakeNode) peersWithin(groups ...[]int) *fakeNode {
	node.peerRet = gonvml.SUCCESS
	denied := gonvml.P2P_STATUS_NOT_SUPPORTED
	node.defaultPeers = &denied
	for _, group := range groups {
		for _, a := range group {
			for _, b := range group {
				node.peers[[2]int{a, b}] = gonvml.P2P_STATUS_OK
			}
		}
	}
	return node
}

// register gives every GPU the same fabric info.
func (node *fakeNode) register(info gonvml.GpuFabricInfo) *fakeNode {
	for _, g := range node.gpus {
		g.fabric = &info
	}
	return node
}

// downLinks takes the first n links of a GPU down, and their other ends.
func (node *fakeNode) downLinks(index, n int) *fakeNode {
	self := node.gpus[index]
	for number := range n {
		link := self.links[number]
		link.down = true
		for _, peer := range node.gpus {
			if peer.busID == link.busID {
				for _, back := range peer.links {
					if back.busID == self.busID && !back.down {
						back.down = true
						break
					}
				}
			}
		}
	}
	return node
}

// library opens the node's NVML.
func (node *fakeNode) library() *Library {
	node.t.Helper()
	library, err := Open(Options{NodeName: "node-a", SysfsRoot: node.sysfs, Lib: node.nvml(), Clock: node.clock})
	if err != nil {
		node.t.Fatal(err)
	}
	return library
}

// after lets time pass.
func (node *fakeNode) after(d time.Duration) { node.clock.SetTime(node.clock.Now().Add(d)) }

// writeSysfs adds a PCI device below a root complex.
func (node *fakeNode) writeSysfs(address, root, numa string) {
	node.t.Helper()
	deviceDir := filepath.Join(node.sysfs, "devices", root, "bridge", address)
	links := filepath.Join(node.sysfs, "bus", "pci", "devices")
	for _, err := range []error{
		os.MkdirAll(deviceDir, 0o755),
		os.MkdirAll(links, 0o755),
		os.WriteFile(filepath.Join(deviceDir, "numa_node"), []byte(numa+"\n"), 0o644),
		os.Symlink(filepath.Join("..", "..", "..", "devices", root, "bridge", address), filepath.Join(links, address)),
	} {
		if err != nil {
			node.t.Fatal(err)
		}
	}
}

// use is called by every fake NVML function: one that the library lacks must not be called.
func (node *fakeNode) use(symbol string) {
	node.mu.Lock()
	defer node.mu.Unlock()
	if node.missing[symbol] {
		node.calledMissing = append(node.calledMissing, symbol)
	}
}

func (node *fakeNode) nvml() gonvml.Interface {
	return &mock.Interface{
		InitFunc: func() gonvml.Return {
			if node.block != nil {
				<-node.block
			}
			node.inits++
			return node.initRet
		},
		ShutdownFunc: func() gonvml.Return {
			node.shutdowns++
			if node.blockShutdown != nil {
				<-node.blockShutdown
			}
			return gonvml.SUCCESS
		},
		ExtensionsFunc: func() gonvml.ExtendedInterface {
			return &mock.ExtendedInterface{LookupSymbolFunc: func(symbol string) error {
				if node.missing[symbol] {
					return fmt.Errorf("undefined symbol: %s", symbol)
				}
				return nil
			}}
		},
		SystemGetDriverVersionFunc: func() (string, gonvml.Return) { return node.driver, node.driverRet },
		SystemGetCudaDriverVersion_v2Func: func() (int, gonvml.Return) {
			node.use("nvmlSystemGetCudaDriverVersion_v2")
			return node.cudaVersion, node.cudaV2Ret
		},
		SystemGetCudaDriverVersionFunc: func() (int, gonvml.Return) {
			node.use("nvmlSystemGetCudaDriverVersion")
			return node.cudaVersion, gonvml.SUCCESS
		},
		DeviceGetCountFunc: func() (int, gonvml.Return) { return len(node.gpus), node.countRet },
		DeviceGetHandleByIndexFunc: func(index int) (gonvml.Device, gonvml.Return) {
			if ret := node.gpus[index].ret["nvmlDeviceGetHandleByIndex_v2"]; ret != gonvml.SUCCESS {
				return nil, ret
			}
			return node.handle(index), gonvml.SUCCESS
		},
	}
}

func (node *fakeNode) handle(index int) gonvml.Device {
	g := node.gpus[index]
	on := func(symbol string) gonvml.Return {
		node.use(symbol)
		return g.ret[symbol]
	}
	return &fakeHandle{index: index, Device: mock.Device{
		GetUUIDFunc: func() (string, gonvml.Return) { return g.uuid, on("nvmlDeviceGetUUID") },
		GetNameFunc: func() (string, gonvml.Return) { return g.name, on("nvmlDeviceGetName") },
		GetPciInfoFunc: func() (gonvml.PciInfo, gonvml.Return) {
			return pciInfo(g.busID), on("nvmlDeviceGetPciInfo_v3")
		},
		GetMinorNumberFunc: func() (int, gonvml.Return) { return g.minor, on("nvmlDeviceGetMinorNumber") },
		GetMemoryInfoFunc: func() (gonvml.Memory, gonvml.Return) {
			return gonvml.Memory{Total: g.memory}, on("nvmlDeviceGetMemoryInfo")
		},
		GetBrandFunc: func() (gonvml.BrandType, gonvml.Return) { return g.brand, on("nvmlDeviceGetBrand") },
		GetArchitectureFunc: func() (gonvml.DeviceArchitecture, gonvml.Return) {
			return g.arch, on("nvmlDeviceGetArchitecture")
		},
		GetCudaComputeCapabilityFunc: func() (int, int, gonvml.Return) {
			return g.major, g.ccMinor, on("nvmlDeviceGetCudaComputeCapability")
		},
		GetNumGpuCoresFunc: func() (int, gonvml.Return) { return g.cores, on("nvmlDeviceGetNumGpuCores") },
		GetMigModeFunc:     func() (int, int, gonvml.Return) { return g.mig, g.mig, on("nvmlDeviceGetMigMode") },
		GetGpuInstanceProfileInfoFunc: func(int) (gonvml.GpuInstanceProfileInfo, gonvml.Return) {
			node.use("nvmlDeviceGetGpuInstanceProfileInfo") // partitions are the simulator's
			return gonvml.GpuInstanceProfileInfo{}, gonvml.ERROR_NOT_SUPPORTED
		},
		GetNvLinkStateFunc: func(number int) (gonvml.EnableState, gonvml.Return) {
			if ret := on("nvmlDeviceGetNvLinkState"); ret != gonvml.SUCCESS {
				return 0, ret
			}
			link, ok := g.links[number]
			if !ok {
				return 0, gonvml.ERROR_INVALID_ARGUMENT
			}
			if link.down {
				return gonvml.FEATURE_DISABLED, link.ret
			}
			return gonvml.FEATURE_ENABLED, link.ret
		},
		GetNvLinkRemoteDeviceTypeFunc: func(number int) (gonvml.IntNvLinkDeviceType, gonvml.Return) {
			ret := on("nvmlDeviceGetNvLinkRemoteDeviceType")
			if g.links[number].hidden {
				ret = gonvml.ERROR_NOT_SUPPORTED
			}
			return g.links[number].kind, ret
		},
		GetNvLinkRemotePciInfoFunc: func(number int) (gonvml.PciInfo, gonvml.Return) {
			ret := on("nvmlDeviceGetNvLinkRemotePciInfo_v2")
			if g.links[number].hidden {
				ret = gonvml.ERROR_NO_PERMISSION
			}
			return pciInfo(g.links[number].busID), ret
		},
		GetGpuFabricInfoFunc: func() (gonvml.GpuFabricInfo, gonvml.Return) {
			ret := on("nvmlDeviceGetGpuFabricInfo")
			if g.fabric == nil {
				return gonvml.GpuFabricInfo{}, gonvml.ERROR_NOT_SUPPORTED
			}
			return *g.fabric, ret
		},
		GetP2PStatusFunc: func(peer gonvml.Device, caps gonvml.GpuP2PCapsIndex) (gonvml.GpuP2PStatus, gonvml.Return) {
			node.use("nvmlDeviceGetP2PStatus")
			if caps != gonvml.P2P_CAPS_INDEX_NVLINK {
				return 0, gonvml.ERROR_INVALID_ARGUMENT
			}
			status, ok := node.peers[[2]int{index, peer.(*fakeHandle).index}]
			if !ok && node.defaultPeers != nil {
				status = *node.defaultPeers
			}
			return status, node.peerRet
		},
	}}
}

// fakeHandle is a device handle that knows its index.
type fakeHandle struct {
	mock.Device
	index int
}

func pciInfo(busID string) gonvml.PciInfo {
	var info gonvml.PciInfo
	for i, c := range []byte(busID) {
		info.BusId[i] = int8(c)
	}
	return info
}
