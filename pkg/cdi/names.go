// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const (
	// Vendor is the first half of the kind of every spec of this package.
	Vendor = v1alpha1.DriverName
	// Class is the second.
	Class = "claim"

	specSuffix = ".json"
)

// validUID reports whether a UID may be in a file name and in a CDI device name: 1 to 128 letters,
// digits, '-' or '_', a letter or digit first and last. Kubernetes UIDs are UUIDs. (Not a regular
// expression: compiling one is milliseconds of the plugin's start.)
func validUID(uid string) bool {
	for i, c := range []byte(uid) {
		alphanumeric := '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
		if !alphanumeric && (i == 0 || i == len(uid)-1 || c != '-' && c != '_') {
			return false
		}
	}
	return 0 < len(uid) && len(uid) <= 128
}

// ClaimDevice is one device of a claim.
type ClaimDevice struct {
	// Name is the device's name in its pool.
	Name string
	// ShareID tells shares of one device apart (KEP-5075); empty for a device that is not shared.
	ShareID types.UID
	// Partition is the MIG partition that it is; none for a whole GPU.
	Partition Partition
	// Sharing is what containers need to share it; nil for nothing.
	Sharing *Sharing
}

// Sharing is what containers need beside the device itself.
type Sharing struct {
	// Env are variables, as NAME=VALUE.
	Env    []string
	Mounts []Mount
}

// Mount is a directory of the host in the container. It takes the place of what is mounted there otherwise.
type Mount struct{ HostPath, ContainerPath string }

// deviceName is the name of the claim's device within its spec. The claim's UID is in it because
// containers of several claims run at once and a qualified name must mean one thing on the node; the
// share's because one claim may hold two shares of a device.
func (d ClaimDevice) deviceName(claim types.UID) string {
	name := string(claim) + "-" + d.Name
	if d.ShareID != "" {
		name += "-" + string(d.ShareID)
	}
	return name
}

// QualifiedName is the CDI device ID that the container runtime gets for a device of a claim.
func QualifiedName(claim types.UID, device ClaimDevice) string {
	return parser.QualifiedName(Vendor, Class, device.deviceName(claim))
}

func validateNames(claim types.UID, devices []ClaimDevice) error {
	if !validUID(string(claim)) {
		return fmt.Errorf("claim UID %q: must be 1 to 128 letters, digits, '-' or '_'", claim)
	}
	for _, device := range devices {
		if device.Name == "" {
			return fmt.Errorf("claim UID %s: a device has no name", claim)
		}
		if err := parser.ValidateDeviceName(device.deviceName(claim)); err != nil {
			return fmt.Errorf("device %q of claim UID %s cannot be named in CDI: %w", device.Name, claim, err)
		}
	}
	return nil
}

// specName is the base name of a claim's spec file, which the CDI library gives to transient specs.
func specName(claim types.UID) string {
	return cdi.GenerateTransientSpecName(Vendor, Class, string(claim)) + specSuffix
}

// claimOf is the claim of a spec file's base name.
func claimOf(name string) (types.UID, bool) {
	rest, ours := strings.CutPrefix(name, cdi.GenerateTransientSpecName(Vendor, Class, ""))
	uid, spec := strings.CutSuffix(rest, specSuffix)
	return types.UID(uid), ours && spec && validUID(uid)
}
