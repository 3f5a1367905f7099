// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
)

// Reasons of the Events on the Node object. (Errors of a Prepare need none: the kubelet reports them
// on the pod.)
const (
	reasonNVMLUnavailable      = "NVMLUnavailable"
	reasonNVMLRecovered        = "NVMLRecovered"
	reasonGPUUnhealthy         = "GPUUnhealthy"
	reasonGPUDegraded          = "GPUDegraded"
	reasonGPUUnidentified      = "GPUUnidentified"
	reasonGPUNotShared         = "GPUNotShared"
	reasonGPURecovered         = "GPURecovered"
	reasonCDIFailed            = "CDIFailed"
	reasonCheckpointCorrupt    = "CheckpointCorrupt"
	reasonClaimAdopted         = "ClaimAdopted"
	reasonClaimConflict        = "ClaimConflict"
	reasonPublishDroppedFields = "ResourceSliceFieldsDropped"
	reasonPublishInvalid       = "ResourceSliceInvalid"
	reasonMIGChanged           = "MIGPartitionsChanged"
	reasonMPSDaemonEnded       = "MPSDaemonEnded"
	reasonPreflightFailed      = "PreflightFailed"
)

// nodeEvents writes Events on the node the plugin runs on: what it finds wrong concerns the node,
// and that is where an administrator looks first.
type nodeEvents struct {
	recorder record.EventRecorder
	node     *corev1.ObjectReference
}

func newNodeEvents(recorder record.EventRecorder, nodeName string) nodeEvents {
	return nodeEvents{
		recorder: recorder,
		// The kubelet uses the node's name as UID in its own Events; kubectl describe node shows both.
		node: &corev1.ObjectReference{Kind: "Node", APIVersion: "v1", Name: nodeName, UID: types.UID(nodeName)},
	}
}

func (e nodeEvents) warn(reason, format string, args ...any) {
	e.recorder.Eventf(e.node, corev1.EventTypeWarning, reason, format, args...)
}

func (e nodeEvents) normal(reason, format string, args ...any) {
	e.recorder.Eventf(e.node, corev1.EventTypeNormal, reason, format, args...)
}
