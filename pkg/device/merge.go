// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"maps"
	"slices"

	"github.com/switchyard-dev/switchyard/pkg/mig"
)

// Merge combines what was known of a node on this boot with what was just seen. The result is what to
// publish, and what to know the next time. It is idempotent and changes neither argument. The caller
// forgets known on a new boot, since only then a GPU may have been taken out for good.
//
//   - A known GPU that is not seen is lost: it stays listed with all that is known of it, loses its
//     links and its domain, and is unhealthy. So the number of devices never falls.
//   - A seen GPU replaces the known one. What an unhealthy GPU no longer answers is kept as it was.
//   - A GPU that had partitions keeps them listed, as withdrawn, when its MIG mode is turned off. A profile that it
//     had stays one that it has, whatever it answers now.
//   - GPUs keep their order: known ones first, new ones behind, by index, in a batch of their own. An
//     index says little about a GPU once another is lost.
//   - A node-local domain keeps its number while any of its GPUs stay in it, and a number is not given
//     to other GPUs: of two halves of a domain that fell apart, the one with the larger part of it
//     keeps the number, and the other gets a new one.
func Merge(known, seen Inventory) Inventory {
	merged := Inventory{
		NodeName:          cmp.Or(seen.NodeName, known.NodeName),
		DriverVersion:     cmp.Or(seen.DriverVersion, known.DriverVersion),
		CUDADriverVersion: cmp.Or(seen.CUDADriverVersion, known.CUDADriverVersion),
		Settling:          seen.Settling,
		Unidentified:      slices.Clone(seen.Unidentified),
	}
	fresh := make(map[string]GPU, len(seen.GPUs))
	names := stableDomains(known, seen)
	for _, gpu := range seen.GPUs {
		if name, ok := names[gpu.NVSwitchDomain]; ok {
			gpu.NVSwitchDomain = name
		}
		if _, twice := fresh[gpu.UUID]; !twice {
			fresh[gpu.UUID] = gpu
		}
	}

	listed := make(map[string]bool, len(known.GPUs)+len(seen.GPUs))
	add := func(gpu GPU) {
		if !listed[gpu.UUID] {
			listed[gpu.UUID] = true
			gpu.LastDomain = cmp.Or(gpu.NVSwitchDomain, gpu.LastDomain)
			gpu.MaxNVLinks = max(gpu.NVLinks, gpu.MaxNVLinks)
			merged.GPUs = append(merged.GPUs, gpu)
		}
	}
	for _, old := range known.GPUs {
		if now, ok := fresh[old.UUID]; ok {
			add(update(old, now))
		} else {
			add(lose(old))
		}
	}
	batch := 0
	for _, old := range known.GPUs {
		batch = max(batch, old.Batch+1)
	}
	for _, gpu := range seen.GPUs {
		gpu = fresh[gpu.UUID]
		gpu.Batch = batch
		add(gpu)
	}
	countDomains(merged.GPUs)
	return merged
}

// update returns the GPU as seen now, completed from what was known where it does not answer.
func update(old, now GPU) GPU {
	now.LastDomain = cmp.Or(now.LastDomain, old.NVSwitchDomain, old.LastDomain)
	now.Batch = old.Batch
	now.MaxNVLinks = old.MaxNVLinks
	if now.MIG == nil && old.MIG != nil {
		withdrawn := *old.MIG
		withdrawn.Withdrawn = old.MIG.Withdrawn || now.Health.Healthy()
		now.MIG = &withdrawn
	}
	if old.MIG != nil {
		now.MIG = keepProfiles(*old.MIG, *now.MIG)
	}
	if now.Health.Healthy() {
		return now
	}
	now.ProductName = cmp.Or(now.ProductName, old.ProductName)
	now.Brand = cmp.Or(now.Brand, old.Brand)
	now.Architecture = cmp.Or(now.Architecture, old.Architecture)
	now.ComputeCapability = cmp.Or(now.ComputeCapability, old.ComputeCapability)
	now.PCIBusID = cmp.Or(now.PCIBusID, old.PCIBusID)
	now.PCIeRoot = cmp.Or(now.PCIeRoot, old.PCIeRoot)
	now.Minor = cmp.Or(now.Minor, old.Minor)
	now.NUMANode = cmp.Or(now.NUMANode, old.NUMANode)
	now.MemoryBytes = cmp.Or(now.MemoryBytes, old.MemoryBytes)
	now.Multiprocessors = cmp.Or(now.Multiprocessors, old.Multiprocessors)
	now.MIGEnabled = now.MIGEnabled || old.MIGEnabled
	return now
}

// keepProfiles returns how a GPU can be partitioned now, with the profiles that it had. Without them allocated
// devices would leave their slice, and come back to it.
func keepProfiles(old, now MIG) *MIG {
	now.Profiles = slices.Clone(now.Profiles)
	for _, profile := range old.Profiles {
		if !slices.ContainsFunc(now.Profiles, func(p mig.Profile) bool { return p.ID == profile.ID }) {
			now.Profiles = append(now.Profiles, profile)
		}
	}
	slices.SortFunc(now.Profiles, func(a, b mig.Profile) int { return cmp.Compare(a.ID, b.ID) })
	return &now
}

// lose returns a known GPU as one that is not seen any more.
func lose(old GPU) GPU {
	old.LastDomain = cmp.Or(old.NVSwitchDomain, old.LastDomain)
	old.NVSwitchDomain = ""
	old.NVLinks, old.NVLinksPerPeer = 0, 0
	if old.Health.Reason != ReasonLost {
		old.Health = Health{Reason: ReasonLost, Message: "NVML does not list the GPU any more"}
	}
	return old
}

// countDomains sets every GPU's NVSwitchDomainSize.
func countDomains(gpus []GPU) {
	sizes := make(map[string]int, len(gpus))
	for _, gpu := range gpus {
		if !gpu.MIGEnabled {
			sizes[gpu.NVSwitchDomain]++
		}
	}
	sizes[""] = 0
	for i := range gpus {
		gpus[i].NVSwitchDomainSize = sizes[gpus[i].NVSwitchDomain]
	}
}

// stableDomains returns the name that each node-local domain of seen gets, so that it keeps the one
// under which most of its GPUs are known. An inventory that names no node gets none.
func stableDomains(known, seen Inventory) map[string]string {
	node := seen.NodeName
	if node == "" || known.NodeName != node {
		return nil
	}
	knownAs := localNumbers(node, known.GPUs, func(gpu GPU) string { return cmp.Or(gpu.NVSwitchDomain, gpu.LastDomain) })
	used := map[int]bool{}
	for _, n := range knownAs {
		used[n] = true
	}
	seenAs := localNumbers(node, seen.GPUs, func(gpu GPU) string { return gpu.NVSwitchDomain })
	keep := keptNumbers(knownAs, seenAs)

	names := map[string]string{}
	next := 0
	for _, now := range slices.Sorted(maps.Values(seenAs)) {
		number, kept := keep[now]
		if !kept {
			for used[next] {
				next++
			}
			number = next
			used[next] = true
			keep[now] = number
		}
		names[LocalDomain(node, now)] = LocalDomain(node, number)
	}
	return names
}

// localNumbers returns by UUID the number of each GPU's domain, of those in a node-local one.
func localNumbers(node string, gpus []GPU, domain func(GPU) string) map[string]int {
	numbers := make(map[string]int, len(gpus))
	for _, gpu := range gpus {
		if n, ok := localNumber(node, domain(gpu)); ok {
			numbers[gpu.UUID] = n
		}
	}
	return numbers
}

// keptNumbers matches the domains as seen with those known: the two that share most GPUs first, then
// those with the lowest numbers. It returns the known number of those that keep one.
func keptNumbers(knownAs, seenAs map[string]int) map[int]int {
	type match struct{ now, was int }
	shared := map[match]int{}
	for uuid, now := range seenAs {
		if was, ok := knownAs[uuid]; ok {
			shared[match{now, was}]++
		}
	}
	matches := slices.SortedFunc(maps.Keys(shared), func(a, b match) int {
		return cmp.Or(cmp.Compare(shared[b], shared[a]), cmp.Compare(a.was, b.was), cmp.Compare(a.now, b.now))
	})
	keep := map[int]int{}
	taken := map[int]bool{}
	for _, m := range matches {
		if _, named := keep[m.now]; !named && !taken[m.was] {
			keep[m.now] = m.was
			taken[m.was] = true
		}
	}
	return keep
}
