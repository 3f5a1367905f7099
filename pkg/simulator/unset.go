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
