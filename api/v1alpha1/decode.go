// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	kjson "sigs.k8s.io/json"
)

// Decode reads the opaque parameters that a claim or a class carries for driver gpu.switchyard.dev
// (resource.k8s.io/v1 OpaqueDeviceConfiguration.parameters.raw) and returns them defaulted and valid.
//
// It is strict: an unknown or doubled field, a value of the wrong type, another kind or apiVersion,
// or anything after the object is an error, and the error names the field and the fix. A dropped
// field would mean a pod that runs without what it asked for.
func Decode(raw []byte) (Config, error) {
	if len(raw) > resourceapi.OpaqueParametersMaxLength {
		return nil, fmt.Errorf("parameters: must be at most %d bytes, got %d", resourceapi.OpaqueParametersMaxLength, len(raw))
	}
	config, err := newConfig(raw)
	if err != nil {
		return nil, err
	}
	strictErrs, err := kjson.UnmarshalStrict(raw, config)
	if err != nil {
		return nil, typeError(raw, config, err)
	}
	if len(strictErrs) > 0 {
		return nil, describeStrict(config, strictErrs)
	}
	config.Default()
	if err := config.Validate().ToAggregate(); err != nil {
		return nil, err
	}
	return config, nil
}

// newConfig returns an empty object of the kind that raw says it is.
func newConfig(raw []byte) (Config, error) {
	var meta *metav1.TypeMeta
	if err := kjson.UnmarshalCaseSensitivePreserveInts(raw, &meta); err != nil {
		if _, offset := kjson.SyntaxErrorOffset(err); offset > 0 || len(raw) == 0 {
			return nil, fmt.Errorf("parameters: must be one JSON object: %w (at byte %d)", err, offset)
		}
		return nil, typeError(raw, &metav1.TypeMeta{}, err)
	}
	if meta == nil {
		return nil, errors.New("parameters: must be one JSON object, not null")
	}
	kinds := make([]string, 0, len(configKinds))
	for _, known := range configKinds {
		kinds = append(kinds, known.kind)
	}
	var errs field.ErrorList
	switch meta.APIVersion {
	case APIVersion:
	case "":
		errs = append(errs, field.Required(field.NewPath("apiVersion"), "set it to "+APIVersion))
	default:
		errs = append(errs, field.NotSupported(field.NewPath("apiVersion"), meta.APIVersion, []string{APIVersion}))
	}
	if meta.Kind == "" {
		errs = append(errs, field.Required(field.NewPath("kind"), "set it to "+strings.Join(kinds, " or ")))
	}
	if len(errs) > 0 {
		return nil, errs.ToAggregate()
	}
	for _, known := range configKinds {
		if meta.Kind == known.kind {
			return known.new(), nil
		}
	}
	return nil, field.NotSupported(field.NewPath("kind"), meta.Kind, kinds)
}

// describeStrict turns unknown and doubled fields into errors that say what may stand there.
func describeStrict(config any, strictErrs []error) error {
	errs := make([]error, 0, len(strictErrs))
	for _, err := range strictErrs {
		var fieldErr kjson.FieldError
		if !errors.As(err, &fieldErr) {
			errs = append(errs, err)
			continue
		}
		path := fieldErr.FieldPath()
		if strings.HasPrefix(err.Error(), "duplicate field") {
			errs = append(errs, fmt.Errorf("%s: field is given twice; keep one", path))
			continue
		}
		errs = append(errs, fmt.Errorf("%s: unknown field; fields here are %s", path, strings.Join(siblings(config, path), ", ")))
	}
	return errors.Join(errs...)
}

// typeError names the field whose value has the wrong type and says what it must be.
func typeError(raw []byte, into any, err error) error {
	var wrongType *json.UnmarshalTypeError
	if errors.As(err, &wrongType) && wrongType.Field == "" {
		return fmt.Errorf("parameters: must be one JSON object, not %s", wrongType.Value)
	}
	path, value, want := locate(raw, into)
	if path == nil {
		return fmt.Errorf("parameters: %w", err)
	}
	return field.TypeInvalid(path, value, want)
}
