// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
)

// HexID is a PCI id that is written as "0x233010DE", because that is how data sheets and tools spell it.
type HexID uint32

// MarshalJSON writes the id as a quoted hexadecimal number.
func (id HexID) MarshalJSON() ([]byte, error) {
	return json.Marshal(fmt.Sprintf("0x%08X", uint32(id)))
}

// UnmarshalJSON accepts a quoted or bare number, hexadecimal with 0x.
func (id *HexID) UnmarshalJSON(data []byte) error {
	text := strings.Trim(string(data), `"`)
	n, err := strconv.ParseUint(text, 0, 32)
	if err != nil {
		return fmt.Errorf("PCI id %q is not a 32-bit number such as \"0x233010DE\"", text)
	}
	*id = HexID(n)
	return nil
}
