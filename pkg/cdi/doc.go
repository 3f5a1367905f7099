// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package cdi writes the CDI specs through which a container runtime gives claimed devices to
// containers: one transient spec per claim, of kind gpu.switchyard.dev/claim.
//
// What a container needs (device nodes, driver libraries, hooks) is computed by nvcdi of the NVIDIA
// Container Toolkit: Refresh asks it, once per change of the inventory, and keeps the answer.
// WriteClaim puts a claim's spec together from what is kept: no NVML call, no program, a few stat(2)
// and one file. It may import go-nvml (to hand it on), nvcdi, the CDI library, pkg/device,
// internal/atomicfile, apimachinery and klog.
//
// # What it promises
//
//   - A spec is complete or absent, never half written (rename), and its bytes follow from the claim
//     and the driver alone. A spec that is right already is not written again, one that is missing or
//     different is: WriteClaim is also how a spec is ensured.
//   - WriteClaim writes nothing unless every device node that a container needs is there, as a
//     character device with the number that the spec names. A node that is missing is an error that
//     names it. Nodes that changed or appeared since the last Refresh (a driver that was reloaded, a
//     nvidia-uvm that was loaded late) make it ask nvcdi again, once.
//   - One GPU that cannot be asked does not keep the others from being used.
//   - An nvcdi that hangs holds nobody up for longer than a bounded time, and only the first: until it
//     comes back no other is asked, and who needs one gets ErrNotResponding at once.
//   - A GPU that is lost, or cannot be asked any more, keeps the edits that it had, so that a spec in use
//     can be written again; but not when its device node has become another GPU's.
//   - Nothing in the spec directory is touched but files named after this driver and class. Other
//     vendors write there, and so does the kubelet plugin helper, for device metadata (KEP-5304):
//     gpu.switchyard.dev_metadata_<claim UID>_<request>.json, kind gpu.switchyard.dev/metadata.
//
// # No fsync
//
// The CDI directory usually is a tmpfs; where it is not, a spec may be gone or empty after a power
// loss. No container runs then, each is started anew, and the prepare that comes first ensures the
// spec. That the claim is prepared, which has to outlive the power loss, is pkg/checkpoint's.
//
// # Three roots
//
// nvcdi looks at the driver's files where this process sees them, and the spec needs their paths on
// the host. DriverRootMount is where the process sees DriverRoot: what nvcdi finds under the one is
// put under the other. DevRoot, the directory above dev, is a path of this process too: below
// DriverRootMount it is translated with it, elsewhere (such as "/") it is taken to be the same on
// the host.
//
// # Hooks
//
// The edits call nvidia-cdi-hook on the host when a container is created: it makes symbolic links,
// updates the container's linker cache and keeps the driver from making device nodes. Without a
// HookPath there are no hooks: then libraries are in the container, in their place, but the linker
// cache does not know them, which is enough for images that set LD_LIBRARY_PATH and for simulated
// nodes. The hook apply-cuda-memory-limits is off: it lets any container change a setting of the GPU
// by an environment variable, which is a matter of the claim, and runs once per GPU and container.
package cdi
