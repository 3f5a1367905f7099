// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package sharing lets several processes share a device: it keeps the control daemons of NVIDIA's Multi-Process
// Service (MPS), and sets the time slices of GPUs.
//
// It is an edge. It may import internal/atomicfile, fsnotify, klog, moby/sys/symlink, golang.org/x/sys and the standard library. It
// knows nothing of claims, Kubernetes or NVML.
//
// # Two processes
//
// An MPS daemon that ends takes the CUDA programs that use it along. So it is not the kubelet plugin that
// runs the daemons, which is restarted for each update, but a program of its own, the [Supervisor]. The two
// speak through a directory:
//
//	specs/<id>.json     written by the plugin ([Daemons]): there is to be a daemon, for these devices
//	status/<id>.json    written by the supervisor: how it is
//	daemons/<id>/pipe   CUDA_MPS_PIPE_DIRECTORY, which containers get
//	daemons/<id>/log    CUDA_MPS_LOG_DIRECTORY
//	supervisor.lock     held (flock(2)) by the supervisor for as long as it lives
//
// # What it promises
//
//   - [Daemons.Ensure] returns when the daemon answers and has the limits of this very spec, or says why it does
//     not; [Daemons.Remove] when it is gone.
//   - A daemon that dies is started again, with pauses that grow to a minute. Those that died with a supervisor
//     are started by the next one. There is no daemon without a spec of this boot.
//   - Daemons are programs of the driver, started without a shell and without chroot, as root but with
//     no more than the capabilities they need and with no_new_privs, each with a /dev/shm of its own.
//   - Files are replaced as a whole and have a version. They are read strictly: a limit that an older supervisor
//     does not know must not be dropped silently. What cannot be read is told, and disturbs no other daemon.
package sharing
