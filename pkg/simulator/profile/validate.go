// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// MaxGPUs is the largest number of GPUs of a profile.
const MaxGPUs = 64

// MaxLinksPerGPU is NVML's limit on the NVLinks of a GPU (NVML_NVLINK_MAX_LINKS).
const MaxLinksPerGPU = 36

var (
	busIDPattern    = regexp.MustCompile(`^[0-9a-f]{4}:[0-9a-f]{2}:[01][0-9a-f]\.[0-7]$`)
	pcieRootPattern = regexp.MustCompile(`^pci[0-9a-f]{4}:[0-9a-f]{2}$`)
	versionPattern  = regexp.MustCompile(`^[0-9]+(\.[0-9]+)+$`)
	majorMinor      = regexp.MustCompile(`^[0-9]+\.[0-9]$`)
)

// Brands and Architectures are the words that the fields of a product accept.
var (
	Brands          = []string{"GeForce", "GeForceRTX", "NVIDIA", "Tesla"}
	Architectures   = []string{"Ada Lovelace", "Ampere", "Blackwell", "Hopper", "Turing", "Volta"}
	AddressingModes = []string{"", "ATS", "HMM", "None"}
)

// Validate reports everything that is wrong with the profile, each with the path of its field.
func Validate(p Profile) field.ErrorList {
	var errs field.ErrorList
	for _, msg := range validation.IsDNS1123Label(p.Name) {
		errs = append(errs, field.Invalid(field.NewPath("name"), p.Name, msg))
	}
	errs = append(errs, validateDriver(p.Driver, field.NewPath("driver"))...)
	errs = append(errs, validateProduct(p.Product, field.NewPath("product"))...)
	errs = append(errs, validateGPUs(p.GPUs, field.NewPath("gpus"))...)
	if p.NVLink != nil {
		errs = append(errs, validateNVLink(*p.NVLink, p.GPUs, field.NewPath("nvlink"))...)
	}
	if p.Fabric != nil {
		errs = append(errs, ValidateFabric(*p.Fabric, field.NewPath("fabric"))...)
	}
	return errs
}

func validateDriver(d Driver, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if !versionPattern.MatchString(d.Version) {
		errs = append(errs, field.Invalid(path.Child("version"), d.Version, `must be numbers and dots such as "580.105.08"`))
	}
	if !majorMinor.MatchString(d.CUDAVersion) {
		errs = append(errs, field.Invalid(path.Child("cudaVersion"), d.CUDAVersion, `must be major.minor such as "13.0", quoted`))
	}
	return errs
}

func validateProduct(p Product, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	switch {
	case p.Name == "":
		errs = append(errs, field.Required(path.Child("name"), `the name that nvidia-smi -L prints`))
	case len(p.Name) >= 96:
		errs = append(errs, field.TooLong(path.Child("name"), p.Name, 95))
	}
	errs = append(errs, oneOf(p.Brand, Brands, path.Child("brand"))...)
	errs = append(errs, oneOf(p.Architecture, Architectures, path.Child("architecture"))...)
	errs = append(errs, oneOf(p.AddressingMode, AddressingModes, path.Child("addressingMode"))...)
	if !majorMinor.MatchString(p.ComputeCapability) {
		errs = append(errs, field.Invalid(path.Child("computeCapability"), p.ComputeCapability, `must be major.minor such as "9.0", quoted`))
	}
	errs = append(errs, between(int(min(p.MemoryMiB, 1<<30)), 1, 1<<24, path.Child("memoryMiB"))...)
	if p.ReservedMiB > p.MemoryMiB {
		errs = append(errs, field.Invalid(path.Child("reservedMiB"), p.ReservedMiB, "must not exceed memoryMiB"))
	}
	errs = append(errs, between(p.Multiprocessors, 1, 1024, path.Child("multiprocessors"))...)
	errs = append(errs, between(p.CoresPerMultiprocessor, 1, 1024, path.Child("coresPerMultiprocessor"))...)
	if p.PCIDeviceID == 0 {
		errs = append(errs, field.Required(path.Child("pciDeviceID"), `for example "0x233010DE"`))
	}
	errs = append(errs, between(p.PowerLimitWatts, 0, 10000, path.Child("powerLimitWatts"))...)
	errs = append(errs, between(p.PCIe.Generation, 1, 8, path.Child("pcie", "generation"))...)
	errs = append(errs, between(p.PCIe.Width, 1, 32, path.Child("pcie", "width"))...)
	if p.MIG != nil {
		errs = append(errs, validateMIG(*p.MIG, path.Child("mig"))...)
	}
	return errs
}

func validateGPUs(gpus []GPU, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	if len(gpus) == 0 {
		return append(errs, field.Required(path, "a node without GPUs needs no profile"))
	}
	if len(gpus) > MaxGPUs {
		return append(errs, field.TooMany(path, len(gpus), MaxGPUs))
	}
	seen := map[string]bool{}
	modules := map[int]bool{}
	for i, gpu := range gpus {
		path := path.Index(i)
		errs = append(errs, validateGPU(gpu, path)...)
		if seen[gpu.BusID] {
			errs = append(errs, field.Duplicate(path.Child("busID"), gpu.BusID))
		}
		seen[gpu.BusID] = true
		if i > 0 && gpu.BusID < gpus[i-1].BusID {
			errs = append(errs, field.Invalid(path.Child("busID"), gpu.BusID, "GPUs must be in the order of their PCI addresses, as NVML's indexes are"))
		}
		if gpu.ModuleID != 0 && modules[gpu.ModuleID] {
			errs = append(errs, field.Duplicate(path.Child("moduleID"), gpu.ModuleID))
		}
		modules[gpu.ModuleID] = true
	}
	return append(errs, validateTree(gpus, seen, path)...)
}

func validateGPU(gpu GPU, path *field.Path) field.ErrorList {
	errs := busID(gpu.BusID, path.Child("busID"))
	if !pcieRootPattern.MatchString(gpu.PCIeRoot) {
		errs = append(errs, field.Invalid(path.Child("pcieRoot"), gpu.PCIeRoot, `must be a root complex such as "pci0000:48"`))
	}
	for i, bridge := range gpu.Bridges {
		errs = append(errs, busID(bridge, path.Child("bridges").Index(i))...)
	}
	errs = append(errs, numaNode(gpu.NUMANode, path.Child("numaNode"))...)
	return append(errs, numaNode(gpu.MemoryNUMANode, path.Child("memoryNUMANode"))...)
}

// validateTree holds bridges to their place: each hangs off one parent, and none is a GPU.
func validateTree(gpus []GPU, addresses map[string]bool, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	parents := map[string]string{}
	for i, gpu := range gpus {
		parent := gpu.PCIeRoot
		for j, bridge := range gpu.Bridges {
			path := path.Index(i).Child("bridges").Index(j)
			if addresses[bridge] {
				errs = append(errs, field.Invalid(path, bridge, "is the address of a GPU"))
			}
			if known, ok := parents[bridge]; ok && known != parent {
				errs = append(errs, field.Invalid(path, bridge, "hangs off "+known+" in another entry and off "+parent+" here"))
			}
			parents[bridge] = parent
			parent = bridge
		}
	}
	return errs
}

func validateNVLink(n NVLink, gpus []GPU, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	errs = append(errs, between(n.Version, 1, 5, path.Child("version"))...)
	errs = append(errs, between(n.LinksPerGPU, 1, MaxLinksPerGPU, path.Child("linksPerGPU"))...)
	errs = append(errs, between(n.MBPerSecond, 0, 1<<20, path.Child("mbPerSecond"))...)
	if n.Remotes != "" {
		errs = append(errs, oneOf(n.Remotes, []Remotes{RemotesHidden, RemotesOpaque, RemotesVisible}, path.Child("remotes"))...)
	}

	taken := map[string]bool{}
	for _, gpu := range gpus {
		taken[gpu.BusID] = true
	}
	used := make([]int, len(gpus))
	use := func(index, links int, path *field.Path) {
		if index < 0 || index >= len(gpus) {
			errs = append(errs, field.Invalid(path, index, "is not the index of a GPU"))
			return
		}
		used[index] += links
		if used[index] > n.LinksPerGPU && used[index]-links <= n.LinksPerGPU {
			errs = append(errs, field.Invalid(path, index, "has more links than linksPerGPU with this entry"))
		}
	}
	for i, sw := range n.Switches {
		path := path.Child("switches").Index(i)
		errs = append(errs, busID(sw.BusID, path.Child("busID"))...)
		if taken[sw.BusID] {
			errs = append(errs, field.Duplicate(path.Child("busID"), sw.BusID))
		}
		taken[sw.BusID] = true
		errs = append(errs, between(sw.Links, 1, MaxLinksPerGPU, path.Child("links"))...)
		if len(sw.GPUs) == 0 {
			errs = append(errs, field.Required(path.Child("gpus"), "the indexes of the GPUs it joins"))
		}
		for j, index := range sw.GPUs {
			if slices.Index(sw.GPUs, index) != j {
				errs = append(errs, field.Duplicate(path.Child("gpus").Index(j), index))
				continue
			}
			use(index, sw.Links, path.Child("gpus").Index(j))
		}
	}
	pairs := map[[2]int]bool{}
	for i, peer := range n.Peers {
		path := path.Child("peers").Index(i)
		errs = append(errs, between(peer.Links, 1, MaxLinksPerGPU, path.Child("links"))...)
		if peer.GPUs[0] >= peer.GPUs[1] {
			errs = append(errs, field.Invalid(path.Child("gpus"), peer.GPUs, "must be two indexes, the smaller first"))
			continue
		}
		if pairs[peer.GPUs] {
			errs = append(errs, field.Duplicate(path.Child("gpus"), peer.GPUs))
		}
		pairs[peer.GPUs] = true
		use(peer.GPUs[0], peer.Links, path.Child("gpus").Index(0))
		use(peer.GPUs[1], peer.Links, path.Child("gpus").Index(1))
	}
	return errs
}

// ValidateFabric reports what is wrong with a fabric.
func ValidateFabric(f Fabric, path *field.Path) field.ErrorList {
	errs := oneOf(f.State, FabricStates(), path.Child("state"))
	if _, err := uuid.Parse(f.ClusterUUID); err != nil || len(f.ClusterUUID) != 36 {
		errs = append(errs, field.Invalid(path.Child("clusterUUID"), f.ClusterUUID, `must be a UUID; all zeros for a single board`))
	}
	return errs
}

func busID(id string, path *field.Path) field.ErrorList {
	if busIDPattern.MatchString(id) {
		return nil
	}
	return field.ErrorList{field.Invalid(path, id, `must be a PCI address in lower case with a domain of four digits, such as "0000:53:00.0", quoted`)}
}

func numaNode(node *int, path *field.Path) field.ErrorList {
	if node == nil {
		return nil
	}
	return between(*node, 0, 1023, path)
}

func between(value, low, high int, path *field.Path) field.ErrorList {
	if msgs := validation.IsInRange(value, low, high); len(msgs) > 0 {
		return field.ErrorList{field.Invalid(path, value, strings.Join(msgs, "; "))}
	}
	return nil
}

func oneOf[T ~string](value T, allowed []T, path *field.Path) field.ErrorList {
	if slices.Contains(allowed, value) {
		return nil
	}
	return field.ErrorList{field.NotSupported(path, value, allowed)}
}
