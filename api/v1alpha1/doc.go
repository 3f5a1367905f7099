// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package v1alpha1 holds the API types of Switchyard: the opaque device configurations that a
// ResourceClaim or a DeviceClass carries for driver gpu.switchyard.dev (GPUConfig, MIGConfig), the
// GangClaim, and the node plugin's configuration file (NodeConfig).
//
// It holds types, defaults, validation and strict decoding, and decides nothing else. It may import
// k8s.io/api and k8s.io/apimachinery only. It promises that what Decode and DecodeNodeConfig return is
// defaulted and valid, and that every error names the field at fault and what to write instead.
//
// +kubebuilder:object:generate=true
// +groupName=switchyard.dev
package v1alpha1
