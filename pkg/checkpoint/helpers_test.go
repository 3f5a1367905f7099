// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"slices"
	"testing"
)

// seal puts a header that fits before a body.
func seal(t *testing.T, body []byte) []byte {
	t.Helper()
	sum := sha256.Sum256(body)
	head, err := json.Marshal(header{formatName, formatVersion, len(body), hex.EncodeToString(sum[:])})
	if err != nil {
		t.Fatal(err)
	}
	return slices.Concat(head, []byte{'\n'}, body)
}
