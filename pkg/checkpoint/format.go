// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
)

const (
	formatName    = "switchyard.dev/checkpoint"
	formatVersion = 1
	// maxHeader and maxFile are far above what is ever written: a record of 32 devices, the most that
	// a claim can have, takes about 10 KiB.
	maxHeader = 1 << 10
	maxFile   = 1 << 20
)

// header is the first line of a file.
type header struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
	// Bytes and SHA256 are of all that follows the header's line.
	Bytes  int    `json:"bytes"`
	SHA256 string `json:"sha256"`
}

// Reason is a stable CamelCase word for a kind of damage.
type Reason string

const (
	// Truncated means that the file ends before its record does.
	Truncated Reason = "Truncated"
	// Malformed means that the file is not a record, or more than one.
	Malformed Reason = "Malformed"
	// ChecksumMismatch means that bytes of the record have changed.
	ChecksumMismatch Reason = "ChecksumMismatch"
	// UnknownVersion means that the file was written in a version of the format that this release does not read.
	UnknownVersion Reason = "UnknownVersion"
	// Invalid means that the record lacks a field, or a field has a value that it cannot have.
	Invalid Reason = "Invalid"
	// WrongName means that the record is of another claim than the file name says.
	WrongName Reason = "WrongName"
	// NotRegular means that a directory, a symbolic link or the like stands in the place of the file.
	NotRegular Reason = "NotRegular"
	// Unreadable means that the file system refuses to read the file.
	Unreadable Reason = "Unreadable"
	// MovedByOther means that another process has moved the file aside, and knows why.
	MovedByOther Reason = "MovedByOther"
)

// damageError says why a file cannot be believed.
type damageError struct {
	reason Reason
	err    error
}

func (e *damageError) Error() string { return fmt.Sprintf("%s: %v", e.reason, e.err) }
func (e *damageError) Unwrap() error { return e.err }

func damaged(reason Reason, format string, args ...any) error {
	return &damageError{reason, fmt.Errorf(format, args...)}
}

// encode is the content of the record's file.
func encode(record Record) ([]byte, error) {
	body, err := json.MarshalIndent(record, "", "  ")
	if err != nil {
		return nil, err
	}
	body = append(body, '\n')
	sum := sha256.Sum256(body)
	head, err := json.Marshal(header{formatName, formatVersion, len(body), hex.EncodeToString(sum[:])})
	if err != nil {
		return nil, err
	}
	return slices.Concat(head, []byte{'\n'}, body), nil
}

// decode is the opposite of encode. Every error is a *damageError.
func decode(data []byte) (Record, error) {
	if len(data) == 0 {
		return Record{}, damaged(Truncated, "the file is empty")
	}
	end := bytes.IndexByte(data[:min(len(data), maxHeader)], '\n')
	if end < 0 && len(data) < maxHeader && data[0] == '{' {
		return Record{}, damaged(Truncated, "the file ends in its header")
	}
	if end < 0 {
		return Record{}, damaged(Malformed, "there is no header in the first %d bytes", maxHeader)
	}
	var head header
	if err := json.Unmarshal(data[:end], &head); err != nil {
		return Record{}, damaged(Malformed, "read header: %w", err)
	}
	if head.Format != formatName {
		return Record{}, damaged(Malformed, "format is %q, not %q", head.Format, formatName)
	}
	if head.Version != formatVersion {
		return Record{}, damaged(UnknownVersion, "written in version %d of the format; this release reads version %d", head.Version, formatVersion)
	}
	body := data[end+1:]
	if len(body) < head.Bytes {
		return Record{}, damaged(Truncated, "the record has %d of %d bytes", len(body), head.Bytes)
	}
	if len(body) > head.Bytes {
		return Record{}, damaged(Malformed, "%d bytes follow the record", len(body)-head.Bytes)
	}
	if sum := sha256.Sum256(body); hex.EncodeToString(sum[:]) != head.SHA256 {
		return Record{}, damaged(ChecksumMismatch, "sha256 of the record is %x, not %s", sum, head.SHA256)
	}
	var record Record
	if err := json.Unmarshal(body, &record); err != nil {
		return Record{}, damaged(Malformed, "read record: %w", err)
	}
	if err := record.validate(); err != nil {
		return Record{}, damaged(Invalid, "%w", err)
	}
	return record, nil
}

// The types without their methods, for the methods' own use.
type (
	recordFields Record
	deviceFields Device
)

// MarshalJSON writes the unknown fields after the known ones.
func (r Record) MarshalJSON() ([]byte, error) { return marshalWith(recordFields(r), r.Unknown) }

// MarshalJSON writes the unknown fields after the known ones.
func (d Device) MarshalJSON() ([]byte, error) { return marshalWith(deviceFields(d), d.Unknown) }

// UnmarshalJSON keeps fields that it does not know.
func (r *Record) UnmarshalJSON(data []byte) (err error) {
	if err := json.Unmarshal(data, (*recordFields)(r)); err != nil {
		return err
	}
	r.Unknown, err = unknownFields(data, reflect.TypeFor[Record]())
	return err
}

// UnmarshalJSON keeps fields that it does not know.
func (d *Device) UnmarshalJSON(data []byte) (err error) {
	if err := json.Unmarshal(data, (*deviceFields)(d)); err != nil {
		return err
	}
	d.Unknown, err = unknownFields(data, reflect.TypeFor[Device]())
	return err
}

func marshalWith(known any, unknown map[string]json.RawMessage) ([]byte, error) {
	data, err := json.Marshal(known)
	if err != nil || len(unknown) == 0 {
		return data, err
	}
	more, err := json.Marshal(unknown)
	if err != nil {
		return nil, err
	}
	// Both are objects with at least one field: join them at their braces.
	return slices.Concat(data[:len(data)-1], []byte{','}, more[1:]), nil
}

func unknownFields(data []byte, of reflect.Type) (map[string]json.RawMessage, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil {
		return nil, err
	}
	for field := range of.Fields() {
		name, _, _ := strings.Cut(field.Tag.Get("json"), ",")
		delete(fields, name)
	}
	for name, value := range fields {
		var compact bytes.Buffer
		if err := json.Compact(&compact, value); err != nil {
			return nil, errors.Join(fmt.Errorf("field %s", name), err)
		}
		fields[name] = compact.Bytes()
	}
	if len(fields) == 0 {
		return nil, nil
	}
	return fields, nil
}
