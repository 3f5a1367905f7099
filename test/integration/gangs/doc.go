// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package gangs runs the controller against a real control plane: API server, kube-scheduler and
// kube-controller-manager, with nodes that have simulated GPUs and no kubelets.
//
// The controller runs in the test's process, with the rights that the manifests give it, and can be
// crashed after any of its writes. The tests look at API objects only. They need the tag integration
// and bin/localcluster:
//
//	make test-integration
package gangs
