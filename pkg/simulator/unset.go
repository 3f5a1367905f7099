// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package simulator

import (
	"errors"
	"reflect"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

var (
	returnType = reflect.TypeFor[nvml.Return]()
	errorType  = reflect.TypeFor[error]()
	deviceType = reflect.TypeFor[nvml.Device]()
)

// errNotSimulated is what functions return that report a Go error.
var errNotSimulated = errors.New("not simulated")

// fillUnset gives every function field of one of go-nvml's mocks that has none a body: it reports the
// function's C name, and returns zero values and ERROR_FUNCTION_NOT_FOUND. The mocks panic otherwise.
//
// prefix is what the C names begin with, such as "nvmlDevice".
func fillUnset(mock any, prefix string, report func(function string)) {
	value := reflect.ValueOf(mock).Elem()
	for i := range value.NumField() {
		name, isFunction := strings.CutSuffix(value.Type().Field(i).Name, "Func")
		field := value.Field(i)
		if !isFunction || field.Kind() != reflect.Func || !field.IsNil() {
			continue
		}
		function := prefix + name
		signature := field.Type()
		field.Set(reflect.MakeFunc(signature, func([]reflect.Value) []reflect.Value {
			report(function)
			return failed(signature, nvml.ERROR_FUNCTION_NOT_FOUND)
		}))
	}
}

// failed returns zero values for the results of a function, except that it failed.
func failed(signature reflect.Type, ret nvml.Return) []reflect.Value {
	results := make([]reflect.Value, signature.NumOut())
	for i := range results {
		switch out := signature.Out(i); out {
		case returnType:
			results[i] = reflect.ValueOf(ret)
		case errorType:
			results[i] = reflect.ValueOf(&errNotSimulated).Elem()
		default:
			results[i] = reflect.Zero(out)
		}
	}
	return results
}

// forwardToDevice gives the library's functions that take a device first (DeviceGetName) the body that
// go-nvml's own have: they call the method of the device (GetName).
func forwardToDevice(mock any) {
	value := reflect.ValueOf(mock).Elem()
	for i := range value.NumField() {
		name, isFunction := strings.CutSuffix(value.Type().Field(i).Name, "Func")
		field := value.Field(i)
		if !isFunction || field.Kind() != reflect.Func || !field.IsNil() {
			continue
		}
		signature := field.Type()
		method, ok := deviceType.MethodByName(strings.TrimPrefix(name, "Device"))
		if !ok || !forwards(signature, method.Type) {
			continue
		}
		field.Set(reflect.MakeFunc(signature, func(args []reflect.Value) []reflect.Value {
			if args[0].IsNil() {
				return failed(signature, nvml.ERROR_INVALID_ARGUMENT)
			}
			return args[0].Elem().MethodByName(method.Name).Call(args[1:])
		}))
	}
}

// forwards says whether a function is a method with the device as its first argument.
func forwards(function, method reflect.Type) bool {
	if function.NumIn() != method.NumIn()+1 || function.In(0) != deviceType || function.NumOut() != method.NumOut() {
		return false
	}
	for i := range method.NumIn() {
		if function.In(i+1) != method.In(i) {
			return false
		}
	}
	for i := range method.NumOut() {
		if function.Out(i) != method.Out(i) {
			return false
		}
	}
	return true
}
