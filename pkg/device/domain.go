// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import (
	"crypto/sha256"
	"encoding/base32"
	"fmt"
	"strconv"
	"strings"
)

// MaxDomainLength is the longest domain ID in characters: a string attribute of a device may hold no
// more (KEP-4381).
const MaxDomainLength = 64

// hashLength is how many base32 characters stand for the part of a node name that was cut off: 80 bits.
const hashLength = 16

// LocalDomain is the ID of the n-th NVSwitch domain of a node: "<node>.<n>". Where that exceeds
// MaxDomainLength, the node name is cut and ends in a hash of the whole name instead, so that nodes
// whose names differ only at the end keep different domains.
func LocalDomain(nodeName string, n int) string {
	suffix := "." + strconv.Itoa(n)
	if len(nodeName)+len(suffix) <= MaxDomainLength {
		return nodeName + suffix
	}
	sum := sha256.Sum256([]byte(nodeName))
	hash := strings.ToLower(base32.StdEncoding.EncodeToString(sum[:hashLength*5/8]))
	kept := strings.TrimRight(nodeName[:MaxDomainLength-len(suffix)-hashLength-1], "-.")
	return kept + "-" + hash + suffix
}

// FabricDomain is the ID of a multi-node NVLink fabric's clique: "<clusterUUID>.<cliqueId>", with the
// values of nvmlDeviceGetGpuFabricInfo. It is the same on every node of the fabric.
func FabricDomain(clusterUUID [16]byte, cliqueID uint32) string {
	u := clusterUUID
	return fmt.Sprintf("%x-%x-%x-%x-%x.%d", u[:4], u[4:6], u[6:8], u[8:10], u[10:], cliqueID)
}

// localNumber returns n of the node's own domain "<node>.<n>", and false for a fabric's domain.
func localNumber(nodeName, domain string) (int, bool) {
	dot := strings.LastIndexByte(domain, '.')
	if dot < 0 {
		return 0, false
	}
	n, err := strconv.Atoi(domain[dot+1:])
	if err != nil || n < 0 || LocalDomain(nodeName, n) != domain {
		return 0, false
	}
	return n, true
}
