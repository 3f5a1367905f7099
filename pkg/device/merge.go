// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"cmp"
	"slices"
)

// Merge combines what was known of a node on this boot with what was just seen. The result is what to
// publish, and what to know the next time. It is idempotent and changes neither argument. The caller
// forgets known on a new boot, since only then a GPU may have been taken out for good.
//
//   - A known GPU that is not seen is lost: it stays listed with all that is known of it, loses its
//     links and its domain, and is unhealthy. So the number of devices never falls.
//   - A seen GPU replaces the known one. What an unhealthy GPU no longer answers is kept as it was.
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

// lose returns a known GPU as one that is not seen any more.
func lose(old GPU) GPU {
	old.LastDomain = cmp.Or(old.NVSwitchDomain, old.LastDomain)
	old.NVSwitchDomain = ""
	old.NVLinks = 0
	if old.Health.Reason != ReasonLost {
		old.Health = Health{Reason: ReasonLost, Message: "NVML does not list the GPU any more"}
	}
	return old
}

// countDomains sets every GPU's NVSwitchDomainSize.
func countDomains(gpus []GPU) {
	sizes := make(map[string]int, len(gpus))
	for _, gpu := range gpus {
		sizes[gpu.NVSwitchDomain]++
	}
	sizes[""] = 0
	for i := range gpus {
		gpus[i].NVSwitchDomainSize = sizes[gpus[i].NVSwitchDomain]
	}
}

// stableDomains returns the name that each node-local domain of seen gets, so that it keeps the one
// under which most of its GPUs are known. An inventory that names no node gets none.
func stableDomains(known, seen Inventory) map[string]string {
	if seen.NodeName == "" || known.NodeName != seen.NodeName {
		return nil
	}
	node := seen.NodeName
	knownAs := make(map[string]int, len(known.GPUs)) // UUID to number
	used := map[int]bool{}
	for _, gpu := range known.GPUs {
		if n, ok := localNumber(node, cmp.Or(gpu.NVSwitchDomain, gpu.LastDomain)); ok {
			knownAs[gpu.UUID] = n
			used[n] = true
		}
	}

	type match struct{ now, was, gpus int }
	overlap := map[match]int{} // without gpus
	var local []int
	for _, gpu := range seen.GPUs {
		now, ok := localNumber(node, gpu.NVSwitchDomain)
		if !ok {
			continue
		}
		if !slices.Contains(local, now) {
			local = append(local, now)
		}
		if was, ok := knownAs[gpu.UUID]; ok {
			overlap[match{now: now, was: was}]++
		}
	}
	slices.Sort(local)
	matches := make([]match, 0, len(overlap))
	for m, gpus := range overlap {
		m.gpus = gpus
		matches = append(matches, m)
	}
	slices.SortFunc(matches, func(a, b match) int {
		return cmp.Or(cmp.Compare(b.gpus, a.gpus), cmp.Compare(a.was, b.was), cmp.Compare(a.now, b.now))
	})

	numbers := make(map[int]int, len(local))
	taken := map[int]bool{}
	for _, m := range matches {
		if _, named := numbers[m.now]; !named && !taken[m.was] {
			numbers[m.now] = m.was
			taken[m.was] = true
		}
	}
	names := make(map[string]string, len(local))
	next := 0
	for _, now := range local {
		number, named := numbers[now]
		if !named {
			for used[next] {
				next++
			}
			number = next
			used[next] = true
		}
		names[LocalDomain(node, now)] = LocalDomain(node, number)
	}
	return names
}
