// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import (
	"context"
	"encoding/binary"
	"fmt"

	gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/switchyard-dev/switchyard/pkg/health"
)

// ReadHealth returns what the GPUs say of their health, by UUID: recovery action, uncorrected ECC errors,
// row remapping. A GPU that does not answer is not in the result. What a GPU or its driver does not have is
// absent from its readings, and what could not be read makes them incomplete: neither is an error.
//
// Errors and hanging calls are as with [Library.Discover].
func (l *Library) ReadHealth(ctx context.Context) (map[string]health.Readings, error) {
	result, err := l.await(ctx, "read the health of the GPUs", "health", func() (any, error) { return l.readHealth() })
	if err != nil {
		return nil, err
	}
	return result.(map[string]health.Readings), nil
}

func (l *Library) readHealth() (map[string]health.Readings, error) {
	l.busy <- struct{}{}
	defer func() { <-l.busy }()
	if err := l.initialise(); err != nil {
		return nil, err
	}
	r := newReader(l.lib, l.options, l.progress)
	r.progress("nvmlDeviceGetCount_v2")
	count, ret := r.lib.DeviceGetCount()
	if ret != gonvml.SUCCESS {
		return nil, unavailable("nvmlDeviceGetCount_v2", ret)
	}
	readings := make(map[string]health.Readings, count)
	for index := range count {
		r.progress(fmt.Sprintf("nvmlDeviceGetHandleByIndex_v2 of GPU at index %d", index))
		handle, ret := r.lib.DeviceGetHandleByIndex(index)
		if ret != gonvml.SUCCESS {
			continue
		}
		uuid, ret := handle.GetUUID()
		if ret != gonvml.SUCCESS {
			continue
		}
		q := healthQuery{reader: r, handle: handle, uuid: uuid}
		q.read()
		readings[uuid] = q.readings
	}
	return readings, nil
}

// healthQuery reads one GPU's health.
type healthQuery struct {
	*reader
	handle   gonvml.Device
	uuid     string
	readings health.Readings
}

func (q *healthQuery) read() {
	if q.asking("nvmlDeviceGetFieldValues") {
		fields := []gonvml.FieldValue{{FieldId: gonvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
		ret := q.handle.GetFieldValues(fields)
		if ret == gonvml.SUCCESS {
			ret = gonvml.Return(fields[0].NvmlReturn)
		}
		if q.answered(ret) {
			// An unsigned int (ValueType 1); integers of other widths begin with the same bytes.
			q.readings.RecoveryAction = new(health.RecoveryAction(binary.LittleEndian.Uint32(fields[0].Value[:4])))
		}
	}
	if q.asking("nvmlDeviceGetTotalEccErrors") {
		count, ret := q.handle.GetTotalEccErrors(gonvml.MEMORY_ERROR_TYPE_UNCORRECTED, gonvml.VOLATILE_ECC)
		if q.answered(ret) {
			q.readings.UncorrectableECC = &count
		}
	}
	if q.asking("nvmlDeviceGetRemappedRows") {
		_, _, pending, failure, ret := q.handle.GetRemappedRows()
		if q.answered(ret) {
			q.readings.RowRemapPending, q.readings.RowRemapFailure = &pending, &failure
		} else if q.migEnabled() {
			// Then it is not told, and what was known of the board stays true.
			q.readings.Incomplete = true
		}
	}
}

// asking records which call comes next and reports whether the library has it.
func (q *healthQuery) asking(call string) bool {
	q.progress(fmt.Sprintf("%s of GPU %s", call, q.uuid))
	return q.has(call)
}

// answered reports whether a call succeeded, and notes if that may be otherwise the next time.
func (q *healthQuery) answered(ret gonvml.Return) bool {
	switch ret {
	case gonvml.SUCCESS:
		return true
	case gonvml.ERROR_NOT_SUPPORTED, gonvml.ERROR_INVALID_ARGUMENT, gonvml.ERROR_FUNCTION_NOT_FOUND, gonvml.ERROR_NOT_FOUND, gonvml.ERROR_NO_PERMISSION:
		// The GPU or the driver does not have it.
	default:
		q.readings.Incomplete = true
	}
	return false
}

func (q *healthQuery) migEnabled() bool {
	if !q.asking("nvmlDeviceGetMigMode") {
		return false
	}
	current, _, ret := q.handle.GetMigMode()
	return ret == gonvml.SUCCESS && current == gonvml.DEVICE_MIG_ENABLE
}
