// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package kubectl is kubectl-switchyard: a kubectl plugin for those who run gangs or a cluster of GPUs.
//
// New has the root command; each subcommand has a file of its own. A subcommand computes a value and hands
// it to output, which prints it as -o asks for: JSON and YAML are the value, a table is made of it. Text
// with styles goes through lipgloss.Fprint, which takes them away where the output is no terminal.
//
// Commands that look at a cluster read it once (snapshot) and let the packages of the controller answer: see
// docs/design/kubectl.md.
//
// It may import anything that wires; only cmd/kubectl-switchyard imports it. It promises that results go to
// standard output and everything else to standard error, and that a command that fails says what is wrong
// with which flag, file or object, and has changed nothing.
package kubectl
