// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/checkpoint"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// applySharing puts what the configurations of a claim's devices ask for into its record. What cannot be is refused, with
// the name of the field.
func applySharing(record *checkpoint.Record, configs []v1alpha1.Config, seen *snapshot) error {
	var with []int // the devices with MPS
	for i := range record.Devices {
		dev, wish := &record.Devices[i], configs[i].SharingConfig()
		if wish == nil || wish.Strategy == v1alpha1.TimeSlicingStrategy && (wish.TimeSlicing == nil || wish.TimeSlicing.Interval == "") {
			continue // nothing to be set
		}
		if dev.AdminAccess {
			return newError(kindInvalidConfig, "request %s: sharing: must not be set with adminAccess, which changes nothing of a device that others use: remove it", dev.Request)
		}
		if wish.Strategy == v1alpha1.TimeSlicingStrategy {
			dev.TimeSlice = string(wish.TimeSlicing.Interval)
			continue
		}
		if err := checkMPS(*dev, seen); err != nil {
			return err
		}
		dev.MPSDaemon = string(record.ClaimUID)
		dev.MPSActiveThreadPercentage = ptr.Deref(wish.MPS.ActiveThreadPercentage, 0)
		with = append(with, i)
	}
	if len(with) == 0 {
		return nil
	}
	first := with[0]
	if err := checkOneDaemon(*record, configs, first); err != nil {
		return err
	}
	return limitMemory(record, configs[first].SharingConfig().MPS, with)
}

// checkMPS refuses MPS on a device that cannot have it.
func checkMPS(dev checkpoint.Device, seen *snapshot) error {
	known, _ := seen.find(dev.Name)
	if err := known.gpu.CheckMPS(); err != nil {
		return newError(kindUnsupportedConfig, "request %s: sharing.strategy: device %s has %w: choose TimeSlicing, or select another device", dev.Request, dev.Name, err)
	}
	return nil
}

// checkOneDaemon refuses a claim with MPS whose devices differ in what they want of it: a claim has one daemon, and a
// program that uses a daemon sees no other devices.
func checkOneDaemon(record checkpoint.Record, configs []v1alpha1.Config, first int) error {
	mps := configs[first].SharingConfig().MPS
	devices, partitions := 0, 0
	for i, dev := range record.Devices {
		if dev.AdminAccess {
			continue
		}
		devices++
		if _, ok := device.ParsePartitionName(dev.Name); ok {
			partitions++
		}
		var other *v1alpha1.MPSConfig
		if wish := configs[i].SharingConfig(); wish != nil {
			other = wish.MPS
		}
		if !equality.Semantic.DeepEqual(mps, other) {
			return newError(kindInvalidConfig, "requests %s and %s: sharing.mps: the devices of a claim have one MPS daemon, and these differ in its settings or in having it: give them the same, or a claim each",
				record.Devices[first].Request, dev.Request)
		}
	}
	if partitions > 0 && devices > 1 {
		return newError(kindInvalidConfig, "request %s: sharing.strategy: an MPS daemon serves one MIG partition and nothing else, since CUDA does, and the claim has %d devices: use a claim for each",
			record.Devices[first].Request, devices)
	}
	return nil
}

// limitMemory puts the memory limits of a claim with MPS into its record.
func limitMemory(record *checkpoint.Record, mps *v1alpha1.MPSConfig, with []int) error {
	for key := range mps.PerDevicePinnedMemoryLimit {
		if place, err := strconv.Atoi(key); err == nil && place >= len(with) {
			return newError(kindInvalidConfig, "request %s: sharing.mps.perDevicePinnedMemoryLimit[%s]: the claim has %s here, counted from 0: use a smaller place, or the UUID of a GPU",
				record.Devices[with[0]].Request, key, plural(len(with), "device"))
		}
	}
	for place, i := range with {
		dev := &record.Devices[i]
		limit := mps.PinnedDeviceMemoryLimit
		byPlace, hasPlace := mps.PerDevicePinnedMemoryLimit[strconv.Itoa(place)]
		if hasPlace {
			limit = &byPlace
		}
		for key, byUUID := range mps.PerDevicePinnedMemoryLimit {
			if !strings.EqualFold(key, cmp.Or(dev.UUID, dev.Name)) {
				continue
			}
			if hasPlace && byUUID.Cmp(byPlace) != 0 {
				return newError(kindInvalidConfig, "request %s: sharing.mps.perDevicePinnedMemoryLimit: %q and %q are one device, with limits %s and %s: keep one",
					dev.Request, strconv.Itoa(place), key, byPlace.String(), byUUID.String())
			}
			limit = &byUUID
		}
		if limit != nil {
			dev.MPSPinnedMemoryBytes = limit.Value()
		}
	}
	return nil
}

func plural(count int, what string) string {
	if count == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", count, what)
}
