// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package integration runs the kubelet plugin as a program, on simulated GPUs, against a real API
// server and with the rights that the manifests give it. A stand-in for the kubelet makes the calls
// and the tests write the allocations, so that every order of events can be had.
//
// The tests look from outside only: at API objects, CDI specs, files, sockets, metrics and answers of
// calls. They need the tag integration and, for the control plane, bin/localcluster:
//
//	make test-integration
package integration
