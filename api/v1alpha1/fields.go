// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bytes"
	"encoding/json"
	"reflect"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

var quantityType = reflect.TypeFor[resource.Quantity]()

// siblings returns the names of the fields that may stand where path points, sorted.
func siblings(object any, path string) []string {
	current := indirect(reflect.TypeOf(object))
	parents := strings.Split(path, ".")
	for _, name := range parents[:len(parents)-1] {
		next, ok := jsonFields(current)[name]
		if !ok {
			return nil
		}
		current = indirect(next)
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
	if want.Kind() == reflect.Struct && want != quantityType {
		var values map[string]json.RawMessage
		if json.Unmarshal(raw, &values) != nil {
			return path, printable(raw), "must be an object"
		}
		fields := jsonFields(want)
		names := make([]string, 0, len(values))
		for name := range values {
			names = append(names, name)
		}
		slices.Sort(names)
		for _, name := range names {
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
	if json.Unmarshal(raw, reflect.New(want).Interface()) == nil {
		return nil, nil, ""
	}
	switch {
	case want == quantityType:
		return path, printable(raw), "must be a quantity of bytes, for example 512Mi or 10Gi"
	case want.Kind() == reflect.String:
		return path, printable(raw), "must be a string"
	default:
		return path, printable(raw), "must be a whole number"
	}
}

// jsonFields maps the JSON names of a struct's fields, inlined ones included, to their types.
func jsonFields(object reflect.Type) map[string]reflect.Type {
	fields := map[string]reflect.Type{}
	if object.Kind() != reflect.Struct || object == quantityType {
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
