// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/validation/field"
)

// Config is an opaque device configuration: *GPUConfig or *MIGConfig.
//
// +kubebuilder:object:generate=false
type Config interface {
	runtime.Object
	// Default fills in what the user left out. Calling it twice changes nothing.
	Default()
	// Validate reports every fault, with the path of its field.
	Validate() field.ErrorList
	// SharingConfig is the wish to share the device; nil when there is none.
	SharingConfig() *Sharing
}

var (
	_ Config = &GPUConfig{}
	_ Config = &MIGConfig{}
)

// configKinds is every kind that Decode accepts, in the order in which errors list them.
var configKinds = []struct {
	kind string
	new  func() Config
}{
	{GPUConfigKind, func() Config { return &GPUConfig{} }},
	{MIGConfigKind, func() Config { return &MIGConfig{} }},
}

// DefaultGPUConfig is what a whole GPU gets when no configuration names it.
func DefaultGPUConfig() *GPUConfig {
	config := &GPUConfig{TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: GPUConfigKind}}
	config.Default()
	return config
}

// Default implements Config.
func (c *GPUConfig) Default() { c.Sharing.setDefaults() }

// Default implements Config.
func (c *MIGConfig) Default() { c.Sharing.setDefaults() }

// SharingConfig implements Config.
func (c *GPUConfig) SharingConfig() *Sharing { return c.Sharing }

// SharingConfig implements Config.
func (c *MIGConfig) SharingConfig() *Sharing { return c.Sharing }

// setDefaults gives MPS its settings. It guesses no strategy, and no time slice: that is not touched unless it is
// asked for.
func (s *Sharing) setDefaults() {
	if s != nil && s.Strategy == MPSStrategy && s.MPS == nil {
		s.MPS = &MPSConfig{}
	}
}
