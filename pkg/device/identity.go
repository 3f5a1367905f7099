// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"crypto/sha256"
	"encoding/base32"
	"strings"
)

// Name is the device's name in its pool: the UUID in lower case, a DNS label. An allocation names
// the device by it, so it must never change and never move to other hardware.
func (g GPU) Name() string { return strings.ToLower(g.UUID) }

// ID is the short identity that plans pin: the first eight base32 characters of the SHA-256 of the
// UUID, in lower case. Two GPUs of one cluster may collide; a planner has to look.
func (g GPU) ID() string { return shortID(g.UUID) }

func shortID(identity string) string {
	sum := sha256.Sum256([]byte(identity))
	return strings.ToLower(base32.StdEncoding.EncodeToString(sum[:5]))
}

// ByName returns the GPU with the given device name.
func (inv Inventory) ByName(name string) (GPU, bool) {
	for _, gpu := range inv.GPUs {
		if gpu.Name() == name {
			return gpu, true
		}
	}
	return GPU{}, false
}
