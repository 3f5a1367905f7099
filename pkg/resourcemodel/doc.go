// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package resourcemodel turns a node's inventory into what Kubernetes schedules on: the devices of one
// pool, with attributes, capacities and taints, cut into ResourceSlices.
//
// It is pure: values in, values out, the same for the same inventory. It may import pkg/device, pkg/mig, the
// api packages, k8s.io/api, k8s.io/apimachinery and k8s.io/dynamic-resource-allocation, never
// client-go. It promises slices that the API server accepts, and a number of devices in each slice
// that is constant while the inventory only merges (device.Merge).
//
// # Order
//
// The scheduler takes the first devices that fit, slice by slice and in the order inside a slice, so
// order is packing:
//
//  1. GPUs that were never in an NVSwitch domain: a pod that does not care should not break one.
//  2. Then domain by domain, in the order of their first GPU in the inventory, which is by index at
//     first. A GPU that is lost, or that has no domain for now, keeps its place in the domain it was in.
//  3. Inside a domain by NUMA node, those without one first.
//  4. Then in the order of the inventory: by index when first seen, and not moving when another GPU is
//     lost and indexes shift.
//
// So a device moves only when it joins another domain, in which case its attributes change as well.
// Moving is harmless to allocations, which go by name; it costs a write of the slice.
//
// # Slices
//
// A slice holds at most 64 devices, the API's limit once any device of it has a taint. With the limit
// of 128 for slices without taints, a single lost GPU would cut all slices anew. GPUs that appear later
// go into slices of their own (device.GPU.Batch), and a node without GPUs has a pool without slices
// rather than an empty one: a slice that gains devices as a DeviceTaintRule changes can panic the stock
// scheduler of Kubernetes 1.37.
//
// # MIG partitions
//
// A GPU that is in MIG mode when it is first seen, or gets there, has further devices: one for each place
// that a partition can be in, whether or not there is one. They consume from the counters of the GPU, and
// so does the GPU itself, all of them. They come behind all GPUs: first slices of counter sets, at most
// eight in one, then slices of partitions, of one GPU each, so that a GPU whose MIG mode is turned on adds
// slices and changes the devices of none. A GPU that was never in MIG mode has no counters: an empty set
// is refused by the API.
//
// # Shares
//
// A GPU that several claims may have at the same time (device.GPU.Shares) is the same device, under the same name, in
// another form: of type share, with allowMultipleAllocations and with a request policy on every capacity, since
// of one without the first claim would take all. The allocator keeps apart who holds a device alone and who has a
// share of it, and looks only at the one that goes with the form: nothing may change the form of a device that is
// allocated. Who decides when it changes is pkg/kubeletplugin.
package resourcemodel
