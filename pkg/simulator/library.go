// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
)

// library is NVML. Its own methods are what is simulated; they hide those of the mock, which lies one
// level deeper and answers for the rest.
type library struct {
	*libraryCalls
	libraryRest
}

type libraryRest struct{ mock.Interface }

// libraryCalls are the simulated functions of the library: every exported method of it is one.
type libraryCalls struct {
	node *Node

	mu    sync.Mutex
	inits int
	gpus  []*gpu
	// migDevices are the handles of MIG devices that were asked for.
	migDevices map[migKey]*migDevice
}

var _ nvml.Interface = (*library)(nil)

func newLibrary(n *Node) *library {
	lib := &library{libraryCalls: &libraryCalls{node: n}}
	fillUnset(&lib.Interface, "Interface.", n.reportUnsimulated)
	return lib
}

// reportUnsimulated notes a call that nobody answers.
func (n *Node) reportUnsimulated(function string) {
	n.calls.count(function)
	if n.calls.first(function) {
		n.logger.Info("NVML function is not simulated", "function", function)
	}
}

// enter is what every simulated function does first: it counts the call, takes its time, and fails if
// the driver is broken.
func (n *Node) enter(function string) (*snapshot, nvml.Return) {
	n.calls.count(function)
	snap, err := n.snapshot()
	if err != nil {
		n.logger.Error(err, "Reading the state of the simulated node failed", "dir", n.dir)
		return nil, nvml.ERROR_UNKNOWN
	}
	if snap.RecordCalls {
		if err := n.calls.write(function); err != nil {
			n.logger.Error(err, "Recording an NVML call failed", "function", function)
		}
	}
	if delay := time.Duration(snap.Driver.CallDelay); delay > 0 {
		time.Sleep(delay)
	}
	switch snap.Driver.Failure {
	case "":
		return snap, nvml.SUCCESS
	case DriverNotLoaded:
		return snap, nvml.ERROR_DRIVER_NOT_LOADED
	case DriverVersionMismatch:
		return snap, nvml.ERROR_LIB_RM_VERSION_MISMATCH
	case DriverLibraryMissing:
		return snap, nvml.ERROR_LIBRARY_NOT_FOUND
	case DriverInsufficientPerm:
		return snap, nvml.ERROR_NO_PERMISSION
	default:
		return snap, nvml.ERROR_UNKNOWN
	}
}

// enter is the node's, for functions that need an initialised library.
func (l *libraryCalls) enter(function string) (*snapshot, nvml.Return) {
	snap, ret := l.node.enter(function)
	if ret != nvml.SUCCESS {
		return snap, ret
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inits == 0 {
		return snap, nvml.ERROR_UNINITIALIZED
	}
	return snap, nvml.SUCCESS
}

// Init is nvmlInit_v2.
func (l *libraryCalls) Init() nvml.Return { return l.init("nvmlInit") }

// InitWithFlags is nvmlInitWithFlags.
func (l *libraryCalls) InitWithFlags(uint32) nvml.Return { return l.init("nvmlInitWithFlags") }

func (l *libraryCalls) init(function string) nvml.Return {
	if _, ret := l.node.enter(function); ret != nvml.SUCCESS {
		return ret
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.inits++
	return nvml.SUCCESS
}

// Shutdown is nvmlShutdown. It works while the driver is broken.
func (l *libraryCalls) Shutdown() nvml.Return {
	_, _ = l.node.enter("nvmlShutdown")
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.inits == 0 {
		return nvml.ERROR_UNINITIALIZED
	}
	l.inits--
	return nvml.SUCCESS
}

// ErrorString is nvmlErrorString. It works without a driver.
func (l *libraryCalls) ErrorString(ret nvml.Return) string {
	_, _ = l.node.enter("nvmlErrorString")
	return ret.Error()
}

// SystemGetDriverVersion is nvmlSystemGetDriverVersion.
func (l *libraryCalls) SystemGetDriverVersion() (string, nvml.Return) {
	snap, ret := l.enter("nvmlSystemGetDriverVersion")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	return snap.Profile.Driver.Version, nvml.SUCCESS
}

// SystemGetNVMLVersion is nvmlSystemGetNVMLVersion: CUDA's major version before the driver's.
func (l *libraryCalls) SystemGetNVMLVersion() (string, nvml.Return) {
	snap, ret := l.enter("nvmlSystemGetNVMLVersion")
	if ret != nvml.SUCCESS {
		return "", ret
	}
	major, _, _ := strings.Cut(snap.Profile.Driver.CUDAVersion, ".")
	return major + "." + snap.Profile.Driver.Version, nvml.SUCCESS
}

// SystemGetCudaDriverVersion is nvmlSystemGetCudaDriverVersion: 1000 x major + 10 x minor.
func (l *libraryCalls) SystemGetCudaDriverVersion() (int, nvml.Return) {
	return l.cudaVersion("nvmlSystemGetCudaDriverVersion")
}

// SystemGetCudaDriverVersion_v2 is nvmlSystemGetCudaDriverVersion_v2.
func (l *libraryCalls) SystemGetCudaDriverVersion_v2() (int, nvml.Return) { //nolint:revive // NVML's name
	return l.cudaVersion("nvmlSystemGetCudaDriverVersion_v2")
}

func (l *libraryCalls) cudaVersion(function string) (int, nvml.Return) {
	snap, ret := l.enter(function)
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	// Validation of the profile saw to the form.
	major, minor, _ := strings.Cut(snap.Profile.Driver.CUDAVersion, ".")
	majorNumber, _ := strconv.Atoi(major)
	minorNumber, _ := strconv.Atoi(minor)
	return 1000*majorNumber + 10*minorNumber, nvml.SUCCESS
}

// DeviceGetCount is nvmlDeviceGetCount_v2: lost GPUs count, removed ones do not.
func (l *libraryCalls) DeviceGetCount() (int, nvml.Return) {
	snap, ret := l.enter("nvmlDeviceGetCount")
	if ret != nvml.SUCCESS {
		return 0, ret
	}
	return len(snap.visible), nvml.SUCCESS
}

// DeviceGetHandleByIndex is nvmlDeviceGetHandleByIndex_v2.
func (l *libraryCalls) DeviceGetHandleByIndex(index int) (nvml.Device, nvml.Return) {
	snap, ret := l.enter("nvmlDeviceGetHandleByIndex")
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	if index < 0 || index >= len(snap.visible) {
		return nil, nvml.ERROR_INVALID_ARGUMENT
	}
	return l.handle(snap, snap.visible[index])
}

// DeviceGetHandleByUUID is nvmlDeviceGetHandleByUUID, of a GPU or of a MIG device.
func (l *libraryCalls) DeviceGetHandleByUUID(uuid string) (nvml.Device, nvml.Return) {
	if strings.HasPrefix(uuid, "MIG-") {
		return l.findMIGDevice("nvmlDeviceGetHandleByUUID", uuid)
	}
	return l.find("nvmlDeviceGetHandleByUUID", func(s *snapshot, gpu int) bool { return s.GPUs[gpu].UUID == uuid })
}

// DeviceGetHandleBySerial is nvmlDeviceGetHandleBySerial.
func (l *libraryCalls) DeviceGetHandleBySerial(serial string) (nvml.Device, nvml.Return) {
	return l.find("nvmlDeviceGetHandleBySerial", func(s *snapshot, gpu int) bool { return s.GPUs[gpu].Serial == serial })
}

// DeviceGetHandleByPciBusId is nvmlDeviceGetHandleByPciBusId_v2. It takes domains of four and of eight
// digits.
func (l *libraryCalls) DeviceGetHandleByPciBusId(id string) (nvml.Device, nvml.Return) { //nolint:revive // NVML's name
	id = strings.ToLower(id)
	if domain, rest, ok := strings.Cut(id, ":"); ok && len(domain) == 8 {
		id = strings.TrimPrefix(domain, "0000") + ":" + rest
	}
	return l.find("nvmlDeviceGetHandleByPciBusId", func(s *snapshot, gpu int) bool { return s.Profile.GPUs[gpu].BusID == id })
}

func (l *libraryCalls) find(function string, match func(s *snapshot, gpu int) bool) (nvml.Device, nvml.Return) {
	snap, ret := l.enter(function)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, gpu := range snap.visible {
		if match(snap, gpu) {
			return l.handle(snap, gpu)
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

func (l *libraryCalls) findMIGDevice(function, uuid string) (nvml.Device, nvml.Return) {
	snap, ret := l.enter(function)
	if ret != nvml.SUCCESS {
		return nil, ret
	}
	for _, position := range snap.visible {
		for gi, ci := range snap.GPUs[position].MIG.devices() {
			if ci.UUID != uuid {
				continue
			}
			if _, ret := l.handle(snap, position); ret != nvml.SUCCESS {
				return nil, ret
			}
			return l.migDevice(position, gi.ID, ci.ID), nvml.SUCCESS
		}
	}
	return nil, nvml.ERROR_NOT_FOUND
}

// handle returns the handle of the GPU at a position; it is the same value every time.
func (l *libraryCalls) handle(snap *snapshot, position int) (nvml.Device, nvml.Return) {
	if snap.GPUs[position].Health == HealthLost {
		return nil, nvml.ERROR_GPU_IS_LOST
	}
	return l.device(position), nvml.SUCCESS
}

func (l *libraryCalls) device(position int) *gpu {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.gpus) <= position {
		l.gpus = append(l.gpus, newGPU(l, len(l.gpus)))
	}
	return l.gpus[position]
}
