// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package placement answers where a gang fits: cluster state and gangs in, plans or reasons out.
package placement
