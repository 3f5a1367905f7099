// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// index holds the records in memory, by claim and by device. It is not safe for concurrent use.
type index struct {
	entries map[types.UID]entry
	// holders are the claims whose records name a device: one, but for shares and admin access.
	holders map[deviceKey][]types.UID
}

// entry is a record and the file that it was read from or written to.
type entry struct {
	record Record
	file   fileID
}

func newIndex() index {
	return index{entries: map[types.UID]entry{}, holders: map[deviceKey][]types.UID{}}
}

func (x *index) set(e entry) {
	uid := e.record.ClaimUID
	x.drop(uid)
	x.entries[uid] = e
	for _, device := range e.record.Devices {
		if key := device.key(); !slices.Contains(x.holders[key], uid) {
			x.holders[key] = append(x.holders[key], uid)
		}
	}
}

func (x *index) drop(uid types.UID) {
	for _, device := range x.entries[uid].record.Devices {
		key := device.key()
		x.holders[key] = slices.DeleteFunc(x.holders[key], func(holder types.UID) bool { return holder == uid })
		if len(x.holders[key]) == 0 {
			delete(x.holders, key)
		}
	}
	delete(x.entries, uid)
}

// conflict finds a device of the record that another claim holds. Records of another boot hold
// nothing: what was prepared then does not exist any more.
func (x *index) conflict(record Record) error {
	for _, device := range record.Devices {
		for _, uid := range x.holders[device.key()] {
			held := x.entries[uid].record
			if uid != record.ClaimUID && held.BootID == record.BootID && slices.ContainsFunc(held.Devices, device.excludes) {
				return &DeviceInUseError{Device: device, By: uid, ByNamespace: held.Namespace, ByName: held.Name}
			}
		}
	}
	return nil
}

// uids returns the claims that have a record, sorted.
func (x *index) uids() []types.UID {
	uids := make([]types.UID, 0, len(x.entries))
	for uid := range x.entries {
		uids = append(uids, uid)
	}
	slices.Sort(uids)
	return uids
}
