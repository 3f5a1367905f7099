// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package health

import "slices"

// Class is what an XID says about the GPU.
type Class string

// The classes of XIDs.
const (
	// ClassApplication is an error of what runs on the GPU, which stays as good as it was.
	ClassApplication Class = "application"
	// ClassInformational needs nobody to do anything.
	ClassInformational Class = "informational"
	// ClassDeferred needs a reset when the GPU is idle; until then it works.
	ClassDeferred Class = "deferred"
	// ClassDevice is an error of the GPU, its links or its board: a reset, a reboot or a repair is needed.
	ClassDevice Class = "device"
	// ClassUnknown is a code that the catalog does not class, or does not have.
	ClassUnknown Class = "unknown"
)

// XID is what an error number of NVIDIA's driver means.
type XID struct {
	Code    uint64
	Meaning string
	Class   Class
	// Fatal says that nothing on the GPU can go on.
	Fatal bool
	// Summarised says that the GPU's recovery action takes the code into account, so that the action None
	// means that nothing needs to be done about it.
	Summarised bool
}

// CodeRecoveryAction is the XID that tells that the recovery action changed.
const CodeRecoveryAction = 154

// codeFallenOffBus is the XID of a GPU that has fallen off the bus.
const codeFallenOffBus = 79

// xidRange is a row of the table: the codes from first to last.
type xidRange struct {
	first, last uint64
	class       Class
	meaning     string
}

// xidTable follows the column "immediate action" of the XID catalog
// (docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html, Ampere and newer), by code. RESTART_APP is
// application, IGNORE and no action informational, the rest device. Where other sources disagree:
//
//   - 109, a context switch timeout, is of the device: RESET_GPU in the catalog, fatal for EKS. NVIDIA's
//     device plugin and DRA driver count it as the application's.
//   - 63, a row remapping that was recorded, takes effect at the next reset. DCGM and EKS see more in it.
//   - 94, a contained memory error, ends one application; the pending remapping is found by looking.
//   - 144 to 146, 149 and 150 are decided by a sub-code that NVML's event does not carry: of the device,
//     unless the recovery action says None.
//   - 171 and 172 are details of 48.
var xidTable = []xidRange{
	{8, 8, ClassApplication, "GPU stopped processing (FIFO idle timeout)"},
	{11, 11, ClassApplication, "invalid or corrupted push buffer stream"},
	{13, 13, ClassApplication, "graphics engine exception"},
	{14, 14, ClassInformational, "fake error injected from user space"},
	{25, 25, ClassApplication, "invalid or illegal push buffer stream"},
	{31, 31, ClassApplication, "GPU memory page fault"},
	{32, 32, ClassApplication, "invalid or corrupted push buffer stream (PBDMA)"},
	{37, 37, ClassInformational, "driver firmware error (FECS, unimplemented method)"},
	{38, 38, ClassInformational, "driver firmware error (FECS watchdog)"},
	{39, 41, ClassApplication, "copy engine exception"},
	{43, 43, ClassInformational, "GPU stopped processing: software-induced fault of an application"},
	{44, 44, ClassInformational, "graphics engine fault during context switch"},
	{45, 45, ClassApplication, "preemptive cleanup after an earlier error"},
	{46, 46, ClassDevice, "GPU stopped processing (GPU timeout)"},
	{48, 48, ClassDevice, "double-bit (uncorrectable) ECC error"},
	{54, 54, ClassDevice, "auxiliary power not connected to the board"},
	{60, 60, ClassApplication, "video processor exception (SEC2)"},
	{62, 62, ClassDevice, "internal micro-controller halt"},
	{63, 63, ClassDeferred, "row remapping or page retirement recorded"},
	{64, 64, ClassDevice, "row remapping or page retirement failed"},
	{66, 67, ClassInformational, "illegal access by driver"},
	{68, 68, ClassApplication, "video decoder exception"},
	{69, 69, ClassApplication, "graphics engine class error"},
	{70, 72, ClassApplication, "copy engine error"},
	{74, 74, ClassDevice, "NVLink error"},
	{75, 77, ClassApplication, "copy engine error"},
	{78, 78, ClassInformational, "vGPU start error"},
	{79, 79, ClassDevice, "GPU has fallen off the bus"},
	{80, 80, ClassApplication, "corrupted data sent to GPU (push buffer CRC)"},
	{82, 82, ClassApplication, "JPEG engine error"},
	{83, 84, ClassApplication, "video decoder error"},
	{85, 85, ClassApplication, "copy engine error"},
	{86, 86, ClassApplication, "optical flow accelerator exception"},
	{88, 89, ClassApplication, "video decoder error"},
	{92, 92, ClassInformational, "high single-bit ECC error rate"},
	{93, 93, ClassInformational, "InfoROM erase limit exceeded"},
	{94, 94, ClassApplication, "contained memory error"},
	{95, 95, ClassDevice, "uncontained memory error"},
	{96, 98, ClassApplication, "video decoder error"},
	{99, 105, ClassApplication, "JPEG engine error"},
	{106, 107, ClassInformational, "SMBPBI test message"},
	{108, 108, ClassInformational, "NVLink remote translation error"},
	{109, 109, ClassDevice, "context switch timeout"},
	{110, 110, ClassDevice, "security fault"},
	{119, 119, ClassDevice, "GSP RPC timeout"},
	{120, 120, ClassDevice, "GSP error"},
	{121, 121, ClassInformational, "corrected C2C link errors"},
	{126, 135, ClassApplication, "copy engine error"},
	{136, 136, ClassDevice, "NVLink training failed"},
	{137, 137, ClassInformational, "NVLink privilege error (illegal peer access by an application)"},
	{139, 139, ClassApplication, "optical flow accelerator error"},
	{140, 140, ClassDevice, "unrecovered ECC error"},
	{141, 141, ClassInformational, "CUDA fast path error"},
	{142, 142, ClassDevice, "video encoder error"},
	{143, 143, ClassDevice, "GPU initialization error"},
	{144, 144, ClassDevice, "NVLink error (SAW)"},
	{145, 145, ClassDevice, "NVLink error (RLW)"},
	{146, 146, ClassDevice, "NVLink error (TLW)"},
	{147, 147, ClassInformational, "NVLink error (TREX)"},
	{148, 148, ClassInformational, "NVLink error (NVLPW_CTRL)"},
	{149, 149, ClassDevice, "NVLink error (NETIR)"},
	{150, 150, ClassDevice, "NVLink error (MSE)"},
	{151, 151, ClassDevice, "key rotation error (confidential computing)"},
	{152, 152, ClassInformational, "DLA SMMU error"},
	{153, 153, ClassInformational, "DLA timeout"},
	{154, 154, ClassInformational, "GPU recovery action changed"},
	{155, 155, ClassDevice, "NVLink software-defined error"},
	{156, 156, ClassDevice, "resource retirement event"},
	{157, 157, ClassInformational, "resource retirement failure"},
	{158, 158, ClassDevice, "GPU fatal timeout"},
	{159, 159, ClassInformational, "CHI non-data error (C2C)"},
	{160, 160, ClassInformational, "channel retirement event"},
	{161, 161, ClassInformational, "channel retirement failure"},
	{162, 165, ClassInformational, "power smoothing"},
	{166, 166, ClassInformational, "NVLink secure crypto error"},
	{167, 167, ClassUnknown, "PCIe fatal timeout"},
	{168, 168, ClassInformational, "reduced memory capacity"},
	{169, 169, ClassUnknown, "internal micro-controller halt (SEC2)"},
	{170, 170, ClassInformational, "interrupt seen in confidential computing mode"},
	{171, 171, ClassDevice, "uncorrectable DRAM error"},
	{172, 172, ClassDevice, "uncorrectable SRAM error"},
}

// fatalXIDs are those after which nothing on the GPU can go on.
var fatalXIDs = []uint64{codeFallenOffBus, 95}

// summarisedXIDs are those that the recovery action summarises: the catalog's column "Xid 154 linkage".
var summarisedXIDs = []uint64{
	48, 62, 63, 64, 74, 79, 94, 95, 109, 110, 120, 136, 143, 144, 145, 146, 147, 148, 149, 150,
	155, 156, 158, 159, 160, 161,
}

// Classify returns what is known of an XID. A code that no table has is of ClassUnknown, and left to the
// GPU's recovery action where there is one.
func Classify(code uint64) XID {
	xid := XID{Code: code, Class: ClassUnknown, Meaning: "not in the XID catalog"}
	if i := slices.IndexFunc(xidTable, func(r xidRange) bool { return r.first <= code && code <= r.last }); i >= 0 {
		xid.Class, xid.Meaning = xidTable[i].class, xidTable[i].meaning
	}
	xid.Fatal = slices.Contains(fatalXIDs, code)
	xid.Summarised = xid.Class == ClassUnknown || slices.Contains(summarisedXIDs, code)
	return xid
}

// XIDs returns all codes that the table has, in order, for the documentation.
func XIDs() []XID {
	var all []XID
	for _, r := range xidTable {
		for code := r.first; code <= r.last; code++ {
			all = append(all, Classify(code))
		}
	}
	return all
}
