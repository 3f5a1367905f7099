// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package driver is what the driver's programs do on a simulated node, as far as this project uses them:
// nvidia-cuda-mps-control, as daemon (-f) and as client, and nvidia-smi compute-policy.
//
// It imports golang.org/x/sys and the standard library without net: the program goes into containers, where it has to
// run without a C library. It may be imported by cmd/switchyard-sim-driver and pkg/simulator only. What the programs
// do is seen in the node's directory:
//
//	<dir>/mps/<pid>.json       a daemon that runs; the file is locked (flock(2)) for as long as it does
//	<dir>/mps.json             how daemons are to fail
//	<dir>/timeslices/<UUID>    the time slice of a GPU, 1 to 3; no file means the driver's choice
//
// A simulated daemon has, like the real one, a socket "control", a lock and a log. It starts no server, and what a
// client writes to the socket is the command as text, not the driver's protocol.
package driver
