// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// MaxNodeConfigSize is how large a node configuration may be, in bytes: that of a ConfigMap.
const MaxNodeConfigSize = 1 << 20

// DefaultMemoryStep is the least memory of a share where the node configuration does not say.
const DefaultMemoryStep = "1Gi"

// DecodeNodeConfig reads a node configuration in YAML or JSON and returns it defaulted and valid.
//
// It is strict, as [Decode] is: an unknown or doubled field, a value of the wrong type or a second document
// is an error that names the field and the fix.
func DecodeNodeConfig(content []byte) (*NodeConfig, error) {
	if len(content) > MaxNodeConfigSize {
		return nil, fmt.Errorf("the file must be at most %d bytes, got %d", MaxNodeConfigSize, len(content))
	}
	document, err := OnlyDocument(content)
	if err != nil {
		return nil, err
	}
	raw, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return nil, fmt.Errorf("the file must be YAML in which no field is given twice: %w", err)
	}
	config := &NodeConfig{}
	if !bytes.HasPrefix(raw, []byte("{")) {
		return nil, fmt.Errorf("the file must be one object with apiVersion: %s and kind: %s, got %.40s", APIVersion, NodeConfigKind, raw)
	}
	strictErrs, err := kjson.UnmarshalStrict(raw, config)
	if err != nil {
		return nil, typeError(raw, config, err)
	}
	// Another kind has other fields: say only that.
	if errs := validateTypeMeta(config.APIVersion, config.Kind, NodeConfigKind); len(errs) > 0 {
		return nil, errs.ToAggregate()
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

// OnlyDocument returns the one YAML document of a file, nil where there is nothing but comments. A second one is an
// error: a reader of YAML stops at the end of the first.
func OnlyDocument(content []byte) ([]byte, error) {
	var only []byte
	var marked bytes.Buffer
	for line := range bytes.Lines(content) {
		// The reader below knows but one of the two marks between documents.
		if rest, is := bytes.CutPrefix(line, []byte("...")); is && (len(rest) == 0 || bytes.ContainsAny(rest[:1], " \t\r\n")) {
			line = append([]byte("---"), rest...)
		}
		marked.Write(line)
	}
	documents := utilyaml.NewYAMLReader(bufio.NewReader(&marked))
	for {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return only, nil
		}
		if err != nil {
			return nil, fmt.Errorf("the file must be YAML: %w", err)
		}
		var value any
		if yaml.Unmarshal(document, &value) == nil && value == nil {
			continue // nothing but comments
		}
		if only != nil {
			return nil, errors.New("the file must hold one document, but there is another one behind a line \"---\" or \"...\": keep one")
		}
		only = document
	}
}

// Default fills in what the file left out and what follows from nothing else. Calling it twice changes nothing.
func (c *NodeConfig) Default() {
	for i := range c.Shares {
		if c.Shares[i].MemoryStep == nil {
			c.Shares[i].MemoryStep = new(resource.MustParse(DefaultMemoryStep))
		}
	}
}

// Validate reports every fault, with the path of its field.
func (c *NodeConfig) Validate() field.ErrorList {
	errs := validateTypeMeta(c.APIVersion, c.Kind, NodeConfigKind)
	if c.MIG != nil && c.MIG.GPUs != "" {
		_, selectErrs := validateSelection(field.NewPath("mig", "gpus"), c.MIG.GPUs)
		errs = append(errs, selectErrs...)
	}
	for i, shares := range c.Shares {
		errs = append(errs, shares.validate(field.NewPath("shares").Index(i))...)
	}
	errs = append(errs, c.validateSelections()...)
	if c.Sharing != nil && c.Sharing.DefaultTimeSlice != "" {
		interval := TimeSlicingConfig{Interval: c.Sharing.DefaultTimeSlice}
		for _, err := range interval.validate(field.NewPath("sharing")) {
			err.Field = "sharing.defaultTimeSlice"
			errs = append(errs, err)
		}
	}
	errs = append(errs, c.Health.validate(field.NewPath("health"))...)
	return append(errs, c.validateDurations()...)
}
