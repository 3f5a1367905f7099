// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// allocatedHere returns the results of a claim's allocation that are devices of this node. Results
// of other drivers are theirs, and so are this driver's results in other pools. A claim whose devices
// of this driver are all elsewhere has no business here.
func allocatedHere(claim *resourceapi.ResourceClaim, pool string) ([]resourceapi.DeviceRequestAllocationResult, error) {
	if claim.Status.Allocation == nil {
		return nil, newError(kindInvalidAllocation, "the claim is not allocated")
	}
	var here []resourceapi.DeviceRequestAllocationResult
	var elsewhere []string
	for _, result := range claim.Status.Allocation.Devices.Results {
		switch {
		case result.Driver != v1alpha1.DriverName:
		case result.Pool != pool:
			elsewhere = append(elsewhere, result.Pool)
		default:
			here = append(here, result)
		}
	}
	if len(here) == 0 && len(elsewhere) > 0 {
		slices.Sort(elsewhere)
		return nil, newError(kindInvalidAllocation, "the claim is allocated in pool %s, but the pool of this node is %s",
			strings.Join(slices.Compact(elsewhere), ", "), pool)
	}
	return here, checkDuplicates(here)
}

// checkDuplicates refuses a device that a claim gets twice. Two shares of a device are two different
// things, and adminAccess comes on top of what is allocated.
func checkDuplicates(results []resourceapi.DeviceRequestAllocationResult) error {
	type share struct {
		device string
		id     types.UID
	}
	requests := make(map[share]string, len(results))
	for _, result := range results {
		if ptr.Deref(result.AdminAccess, false) {
			continue
		}
		key := share{device: result.Device, id: ptr.Deref(result.ShareID, "")}
		if first, ok := requests[key]; ok {
			return newError(kindInvalidAllocation, "device %s is allocated twice in this claim, for requests %s and %s", result.Device, first, result.Request)
		}
		requests[key] = result.Request
	}
	return nil
}

// configOf decodes every opaque configuration that applies to a result, and returns the one that counts: configuration of the claim goes before that of the class,
// and within one of them the last goes before earlier ones. A configuration that names a parent request
// applies to its subrequests.
//
// Every configuration that applies must be valid, also one that does not count: it is somebody's
// mistake either way.
func configOf(claim *resourceapi.ResourceClaim, result resourceapi.DeviceRequestAllocationResult) (v1alpha1.Config, error) {
	_, isPartition := device.ParsePartitionName(result.Device)
	var config v1alpha1.Config = v1alpha1.DefaultGPUConfig()
	configs := resourceclaim.ConfigForResult(claim.Status.Allocation.Devices.Config, result)
	slices.SortStableFunc(configs, func(a, b resourceapi.DeviceAllocationConfiguration) int {
		return sourceRank(a.Source) - sourceRank(b.Source)
	})
	for _, candidate := range configs {
		if candidate.Opaque.Driver != v1alpha1.DriverName {
			continue
		}
		decoded, err := v1alpha1.Decode(candidate.Opaque.Parameters.Raw)
		if err != nil {
			return nil, newError(kindInvalidConfig, "%s: %w", describeConfig(candidate, result), err)
		}
		if _, forPartitions := decoded.(*v1alpha1.MIGConfig); forPartitions != isPartition {
			what, kind := "a whole GPU", v1alpha1.GPUConfigKind
			if isPartition {
				what, kind = "a MIG partition", v1alpha1.MIGConfigKind
			}
			return nil, newError(kindInvalidConfig, "%s: kind is %s, but device %s is %s: use %s",
				describeConfig(candidate, result), decoded.GetObjectKind().GroupVersionKind().Kind, result.Device, what, kind)
		}
		config = decoded
	}
	return config, nil
}

// configsOf is configOf for each result.
func configsOf(claim *resourceapi.ResourceClaim, results []resourceapi.DeviceRequestAllocationResult) ([]v1alpha1.Config, error) {
	configs := make([]v1alpha1.Config, len(results))
	for i, result := range results {
		var err error
		if configs[i], err = configOf(claim, result); err != nil {
			return nil, err
		}
	}
	return configs, nil
}

func sourceRank(source resourceapi.AllocationConfigSource) int {
	if source == resourceapi.AllocationConfigSourceClass {
		return 0
	}
	return 1
}

func describeConfig(config resourceapi.DeviceAllocationConfiguration, result resourceapi.DeviceRequestAllocationResult) string {
	origin := "ResourceClaim"
	if config.Source == resourceapi.AllocationConfigSourceClass {
		origin = "DeviceClass"
	}
	return fmt.Sprintf("opaque configuration of the %s for request %s", origin, result.Request)
}
