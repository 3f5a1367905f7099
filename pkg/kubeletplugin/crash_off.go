// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build !crashpoints

package kubeletplugin

func crashAt(crashPoint) {}
