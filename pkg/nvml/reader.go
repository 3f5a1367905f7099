// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	nvdev "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"github.com/switchyard-dev/switchyard/pkg/device"
)

// displayGPUs are the product names of GPUs that drive the screen of a DGX Station and cannot compute.
var displayGPUs = []string{"DGX Display", "NVIDIA DGX Display"}

// uuidPattern is a UUID that makes a device name, which must be a DNS label.
var uuidPattern = regexp.MustCompile(`^[A-Za-z0-9]([-A-Za-z0-9]{0,61}[A-Za-z0-9])?$`)

// reader reads one inventory from an initialised NVML.
type reader struct {
	lib      gonvml.Interface
	devices  nvdev.Interface
	options  Options
	progress func(step string)
	symbols  map[string]bool
	// versionedFabricInfo allows nvmlDeviceGetGpuFabricInfoV.
	versionedFabricInfo bool
	// listed are the UUIDs of all GPUs, and troubled are the GPUs that did not answer as they should: the UUID, or why it is not known.
	listed, troubled []string
}

// gpu is one GPU while the inventory is made.
type gpu struct {
	device.GPU
	handle gonvml.Device
	links  links
	fabric fabric
}

func newReader(lib gonvml.Interface, options Options, progress func(step string)) *reader {
	return &reader{
		lib:                 lib,
		devices:             nvdev.New(lib),
		options:             options,
		progress:            progress,
		symbols:             map[string]bool{},
		versionedFabricInfo: options.Lib == nil,
	}
}

// inventory reads everything. The error is an *UnavailableError.
func (r *reader) inventory() (device.Inventory, error) {
	inventory := device.Inventory{NodeName: r.options.NodeName}
	var ret gonvml.Return

	r.progress("nvmlSystemGetDriverVersion")
	if inventory.DriverVersion, ret = r.lib.SystemGetDriverVersion(); ret != gonvml.SUCCESS {
		return inventory, unavailable("nvmlSystemGetDriverVersion", ret)
	}
	inventory.CUDADriverVersion = r.cudaDriverVersion()

	r.progress("nvmlDeviceGetCount_v2")
	count, ret := r.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return inventory, unavailable("nvmlDeviceGetCount_v2", ret)
	}
	var gpus []*gpu
	for index := range count {
		found, err := r.gpu(index)
		var gone *UnavailableError
		switch {
		case errors.As(err, &gone):
			return inventory, err
		case err != nil:
			r.troubled = append(r.troubled, err.Error())
			inventory.Unidentified = append(inventory.Unidentified, err.Error())
			if !errors.Is(err, gonvml.ERROR_GPU_IS_LOST) && !errors.Is(err, gonvml.ERROR_RESET_REQUIRED) {
				inventory.Unanswered++
			}
		case found == nil:
			// not for computing
		case slices.ContainsFunc(gpus, func(other *gpu) bool { return other.Name() == found.Name() }):
			inventory.Unidentified = append(inventory.Unidentified,
				fmt.Sprintf("GPU at index %d: UUID %s is that of another GPU", index, found.UUID))
		default:
			gpus = append(gpus, found)
		}
	}
	inventory.Settling = assignDomains(r.options.NodeName, gpus, r.peerStatus)
	for _, g := range gpus {
		r.listed = append(r.listed, g.UUID)
		if !g.Health.Healthy() {
			r.troubled = append(r.troubled, g.UUID)
		}
		inventory.GPUs = append(inventory.GPUs, g.GPU)
	}
	return inventory, nil
}

// cudaDriverVersion returns major.minor, or "" where NVML does not tell. The _v2 call asks libcuda and
// fails where that cannot be loaded, as from under another root; the older one then knows what the
// driver supports.
func (r *reader) cudaDriverVersion() string {
	version, ret := 0, gonvml.ERROR_FUNCTION_NOT_FOUND
	if r.has("nvmlSystemGetCudaDriverVersion_v2") {
		r.progress("nvmlSystemGetCudaDriverVersion_v2")
		version, ret = r.lib.SystemGetCudaDriverVersion_v2()
	}
	if ret != gonvml.SUCCESS && r.has("nvmlSystemGetCudaDriverVersion") {
		r.progress("nvmlSystemGetCudaDriverVersion")
		version, ret = r.lib.SystemGetCudaDriverVersion()
	}
	if ret != gonvml.SUCCESS || version <= 0 {
		return ""
	}
	return fmt.Sprintf("%d.%d", version/1000, version%1000/10)
}

// gpu reads one GPU, or returns nil for one that is not for computing. The error is an
// *UnavailableError if NVML as a whole is gone; otherwise it says why the GPU cannot be identified.
func (r *reader) gpu(index int) (*gpu, error) {
	at := func(call string) string { return fmt.Sprintf("%s of GPU at index %d", call, index) }
	identify := func(call string, ret gonvml.Return) error {
		if nvmlGone(ret) {
			return unavailable(at(call), ret)
		}
		return fmt.Errorf("GPU at index %d: %s: %w", index, call, ret)
	}

	const byIndex = "nvmlDeviceGetHandleByIndex_v2"
	r.progress(at(byIndex))
	handle, ret := r.lib.DeviceGetHandleByIndex(index)
	if ret != gonvml.SUCCESS {
		return nil, identify(byIndex, ret)
	}
	r.progress(at("nvmlDeviceGetUUID"))
	uuid, ret := handle.GetUUID()
	if ret != gonvml.SUCCESS {
		return nil, identify("nvmlDeviceGetUUID", ret)
	}
	if !uuidPattern.MatchString(uuid) {
		return nil, fmt.Errorf("GPU at index %d: UUID %q makes no device name: expected letters, digits and '-', at most 63", index, uuid)
	}

	g := &gpu{handle: handle}
	g.UUID, g.Index = uuid, index
	q := &query{gpu: g, reader: r}
	q.identity()
	q.capabilities()
	g.links = q.links()
	g.NVLinks = g.links.active
	g.fabric = q.fabric()
	switch {
	case q.gone != nil:
		return nil, q.gone
	case slices.Contains(displayGPUs, g.ProductName):
		return nil, nil
	}
	r.sysfs(&g.GPU)
	return g, nil
}

// sysfs adds what the kernel says of the PCI device. NUMANode is that of the device, next to CPUs and
// NICs, and not nvmlDeviceGetNumaNodeId, which on Grace is the memory-only node of the GPU's own HBM.
func (r *reader) sysfs(g *device.GPU) {
	sysfs := deviceattribute.WithFSFromRoot(r.options.SysfsRoot)
	if root, err := deviceattribute.GetPCIeRootAttributeByPCIBusID(g.PCIBusID, sysfs); err == nil && root.Value.StringValue != nil {
		g.PCIeRoot = *root.Value.StringValue
	}
	// -1 ("unknown") is an error of the helper.
	if numa, err := deviceattribute.GetNUMANodeAttributeByPCIBusID(g.PCIBusID, deviceattribute.ScalarAttribute, sysfs); err == nil && numa.Value.IntValue != nil {
		g.NUMANode = new(int(*numa.Value.IntValue))
	}
}

// has reports whether the library exports an NVML function. Calling one that it lacks would end the
// process.
func (r *reader) has(symbol string) bool {
	found, known := r.symbols[symbol]
	if !known {
		found = r.lib.Extensions().LookupSymbol(symbol) == nil
		r.symbols[symbol] = found
	}
	return found
}

// peerStatus asks the driver whether two GPUs can reach each other over NVLink.
func (r *reader) peerStatus(a, b *gpu) peerStatus {
	const call = "nvmlDeviceGetP2PStatus"
	if !r.has(call) {
		return peersUnknown
	}
	r.progress(fmt.Sprintf("%s of GPUs at index %d and %d", call, a.Index, b.Index))
	status, ret := a.handle.GetP2PStatus(b.handle, gonvml.P2P_CAPS_INDEX_NVLINK)
	switch {
	case ret != gonvml.SUCCESS || status == gonvml.P2P_STATUS_UNKNOWN:
		return peersUnknown
	case status == gonvml.P2P_STATUS_OK:
		return peersConnected
	default:
		return peersDenied
	}
}

// query reads one GPU's properties and keeps the worst answer as its health.
type query struct {
	*reader
	gpu *gpu
	// gone says that NVML as a whole is, rather than this GPU.
	gone *UnavailableError
}

// nvmlGone reports whether the answer to a call for one GPU concerns all of NVML.
func nvmlGone(ret gonvml.Return) bool {
	return ret == gonvml.ERROR_UNINITIALIZED || ret == gonvml.ERROR_DRIVER_NOT_LOADED
}

// asking records which call comes next and reports whether the library has it.
func (q *query) asking(call string) bool {
	q.progress(fmt.Sprintf("%s of GPU %s", call, q.gpu.UUID))
	return q.has(call)
}

// answered reports whether the call succeeded. It marks the GPU as unhealthy if ret says so.
func (q *query) answered(call string, ret gonvml.Return) bool {
	switch ret {
	case gonvml.SUCCESS:
		return true
	case gonvml.ERROR_GPU_IS_LOST:
		q.unhealthy(device.ReasonLost, call, ret)
	case gonvml.ERROR_RESET_REQUIRED:
		q.unhealthy(device.ReasonResetRequired, call, ret)
	case gonvml.ERROR_UNINITIALIZED, gonvml.ERROR_DRIVER_NOT_LOADED: // as in nvmlGone
		q.gone = unavailable(call+" of GPU "+q.gpu.UUID, ret)
	}
	return false
}

// mustAnswer is answered for a call that every working GPU answers: any error but NOT_SUPPORTED means
// that this one does not work, even where it does not say why.
func (q *query) mustAnswer(call string, ret gonvml.Return) bool {
	if ok := q.answered(call, ret); ok || !q.gpu.Health.Healthy() || ret == gonvml.ERROR_NOT_SUPPORTED {
		return ok
	}
	q.unhealthy(device.ReasonNotAnswering, call, ret)
	return false
}

// unhealthy keeps the first of the gravest reasons: that the GPU is lost before that it must be reset, before
// that it does not answer.
func (q *query) unhealthy(reason, call string, ret gonvml.Return) {
	gravity := []string{"", device.ReasonNotAnswering, device.ReasonResetRequired, device.ReasonLost}
	if slices.Index(gravity, reason) > slices.Index(gravity, q.gpu.Health.Reason) {
		q.gpu.Health = device.Health{Reason: reason, Message: call + ": " + ret.Error()}
	}
}

// identity reads what makes the GPU findable, and probes it.
func (q *query) identity() {
	g := q.gpu
	q.progress("nvmlDeviceGetPciInfo_v3 of GPU " + g.UUID)
	if info, ret := g.handle.GetPciInfo(); q.mustAnswer("nvmlDeviceGetPciInfo_v3", ret) {
		g.PCIBusID = pciAddress(info)
	}
	q.progress("nvmlDeviceGetName of GPU " + g.UUID)
	if name, ret := g.handle.GetName(); q.mustAnswer("nvmlDeviceGetName", ret) {
		g.ProductName = strings.TrimSpace(name)
	}
	// WSL has no minor numbers.
	if q.asking("nvmlDeviceGetMinorNumber") {
		if minor, ret := g.handle.GetMinorNumber(); q.answered("nvmlDeviceGetMinorNumber", ret) {
			g.Minor = &minor
		}
	}
	q.progress("nvmlDeviceGetMemoryInfo of GPU " + g.UUID)
	if memory, ret := g.handle.GetMemoryInfo(); q.mustAnswer("nvmlDeviceGetMemoryInfo", ret) {
		g.MemoryBytes = memory.Total
	}
}

// capabilities reads what users select by.
func (q *query) capabilities() {
	g := q.gpu
	// NewDevice only wraps, its error is always nil.
	if named, err := q.devices.NewDevice(g.handle); err == nil {
		if q.asking("nvmlDeviceGetBrand") {
			g.Brand = known(named.GetBrandAsString())
		}
		if q.asking("nvmlDeviceGetArchitecture") {
			g.Architecture = known(named.GetArchitectureAsString())
		}
	}
	if q.asking("nvmlDeviceGetCudaComputeCapability") {
		if major, minor, ret := g.handle.GetCudaComputeCapability(); q.answered("nvmlDeviceGetCudaComputeCapability", ret) {
			g.ComputeCapability = fmt.Sprintf("%d.%d", major, minor)
		}
	}
	if q.asking("nvmlDeviceGetNumGpuCores") {
		if cores, ret := g.handle.GetNumGpuCores(); q.answered("nvmlDeviceGetNumGpuCores", ret) {
			g.Multiprocessors = multiprocessors(cores, g.ComputeCapability)
		}
	}
	if q.asking("nvmlDeviceGetMigMode") {
		if current, _, ret := g.handle.GetMigMode(); q.answered("nvmlDeviceGetMigMode", ret) {
			g.MIGEnabled = current == gonvml.DEVICE_MIG_ENABLE
		}
	}
	if g.MIGEnabled && q.options.MIG.Selects(g.GPU) {
		g.MIG = q.partitioning()
	}
}

// known drops the name of what NVML does not know: a missing attribute says so better.
func known(name string, err error) string {
	if err != nil || name == "Unknown" {
		return ""
	}
	return name
}

// coresPerMultiprocessor is the number of FP32 cores of a streaming multiprocessor by compute
// capability (CUDA C++ programming guide, "Compute Capabilities"), major version or exact one.
var coresPerMultiprocessor = map[string]int{
	"5": 128, "6": 128, "6.0": 64, "7": 64, "8": 128, "8.0": 64, "9": 128, "10": 128, "11": 128, "12": 128,
}

// multiprocessors returns how many streaming multiprocessors have that many cores; NVML does not tell
// for a whole GPU. It returns 0 for an architecture that came after this code.
func multiprocessors(cores int, computeCapability string) int {
	per, ok := coresPerMultiprocessor[computeCapability]
	if !ok {
		major, _, _ := strings.Cut(computeCapability, ".")
		per = coresPerMultiprocessor[major]
	}
	if per == 0 || cores <= 0 || cores%per != 0 {
		return 0
	}
	return cores / per
}
