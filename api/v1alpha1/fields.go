// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Structs that are not objects in JSON.
var (
	quantityType = reflect.TypeFor[resource.Quantity]()
	durationType = reflect.TypeFor[metav1.Duration]()
)

// siblings returns the names of the fields that may stand where path points, sorted.
func siblings(object any, path string) []string {
	current := indirect(reflect.TypeOf(object))
	parents := strings.Split(path, ".")
	for _, name := range parents[:len(parents)-1] {
		name, _, inList := strings.Cut(name, "[")
		next, ok := jsonFields(current)[name]
		if !ok {
			return nil
		}
		if current = indirect(next); inList && current.Kind() == reflect.Slice {
			current = indirect(current.Elem())
		}
	}
	names := make([]string, 0)
	for name := range jsonFields(current) {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// locate finds the first field of raw whose value does not fit its type in object. The decoder
// does not always tell: an error of a type's own UnmarshalJSON carries no field.
func locate(raw []byte, object any) (path *field.Path, value any, want string) {
	return locateIn(nil, raw, indirect(reflect.TypeOf(object)))
}

func locateIn(path *field.Path, raw []byte, want reflect.Type) (*field.Path, any, string) {
	switch {
	case want.Kind() == reflect.Struct && !isScalar(want):
		return locateInObject(path, raw, jsonFields(want))
	case want.Kind() == reflect.Map:
		return locateInMap(path, raw, indirect(want.Elem()))
	case want.Kind() == reflect.Slice:
		return locateInList(path, raw, indirect(want.Elem()))
	}
	if json.Unmarshal(raw, reflect.New(want).Interface()) == nil {
		return nil, nil, ""
	}
	switch {
	case want == quantityType:
		return path, printable(raw), "must be a quantity of bytes, for example 512Mi or 10Gi"
	case want == durationType:
		return path, printable(raw), "must be a duration, for example 10s or 2m"
	case want.Kind() == reflect.String:
		return path, printable(raw), "must be a string"
	default:
		return path, printable(raw), "must be a whole number"
	}
}

func locateInObject(path *field.Path, raw []byte, fields map[string]reflect.Type) (*field.Path, any, string) {
	var values map[string]json.RawMessage
	if json.Unmarshal(raw, &values) != nil {
		return path, printable(raw), "must be an object"
	}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		fieldType, known := fields[name]
		if !known || bytes.Equal(values[name], []byte("null")) {
			continue
		}
		child := field.NewPath(name)
		if path != nil {
			child = path.Child(name)
		}
		if found, value, message := locateIn(child, values[name], indirect(fieldType)); found != nil {
			return found, value, message
		}
	}
	return nil, nil, ""
}

func locateInMap(path *field.Path, raw []byte, element reflect.Type) (*field.Path, any, string) {
	var values map[string]json.RawMessage
	if json.Unmarshal(raw, &values) != nil {
		return path, printable(raw), "must be an object"
	}
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if found, value, message := locateIn(path.Key(key), values[key], element); found != nil {
			return found, value, message
		}
	}
	return nil, nil, ""
}

func locateInList(path *field.Path, raw []byte, element reflect.Type) (*field.Path, any, string) {
	var values []json.RawMessage
	if json.Unmarshal(raw, &values) != nil {
		return path, printable(raw), "must be a list"
	}
	for i, value := range values {
		if found, value, message := locateIn(path.Index(i), value, element); found != nil {
			return found, value, message
		}
	}
	return nil, nil, ""
}

// isScalar reports whether a struct is no object in JSON.
func isScalar(t reflect.Type) bool { return t == quantityType || t == durationType }

// jsonFields maps the JSON names of a struct's fields, inlined ones included, to their types.
func jsonFields(object reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	if object.Kind() != reflect.Struct || isScalar(object) {
		return fields
	}
	for _, f := range reflect.VisibleFields(object) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && f.IsExported() {
			fields[name] = f.Type
		}
	}
	return fields
}

func indirect(t reflect.Type) reflect.Type {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t
}

// printable is raw JSON as the value of an error.
func printable(raw []byte) any {
	var value any
	if json.Unmarshal(raw, &value) != nil {
		return string(raw)
	}
	return value
}
