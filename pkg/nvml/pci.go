// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

// busIDPattern is a PCI address as NVML prints it: a domain of eight hexadecimal digits, in old
// versions of four.
var busIDPattern = regexp.MustCompile(`^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\.([0-7])$`)

// pciAddress returns the address as the kernel prints it, "0008:06:00.0": at least four digits of
// domain, lower case. The domain is never cut: on GB300 GPUs differ in nothing else. It returns "" if
// NVML does not tell: an address that is empty, of zeros (that is a host bridge), or of only F, as NVML
// calls what it hides.
func pciAddress(info gonvml.PciInfo) string {
	busID := cString(info.BusId[:])
	if busID == "" {
		busID = cString(info.BusIdLegacy[:])
	}
	if busID == "" {
		busID = fmt.Sprintf("%08x:%02x:%02x.0", info.Domain, info.Bus, info.Device)
	}
	digits := strings.NewReplacer(":", "", ".", "").Replace(busID)
	if strings.Trim(digits, "0") == "" || strings.Trim(digits, "fF") == "" || strings.HasPrefix(strings.ToLower(busID), "ffffffff:") {
		return ""
	}
	match := busIDPattern.FindStringSubmatch(busID)
	if match == nil {
		return ""
	}
	domain, err := strconv.ParseUint(match[1], 16, 32)
	if err != nil {
		return ""
	}
	return strings.ToLower(fmt.Sprintf("%04x:%s:%s.%s", domain, match[2], match[3], match[4]))
}

// cString returns the characters before the first NUL.
func cString(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return strings.TrimSpace(b.String())
}
