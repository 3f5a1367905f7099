// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

// crashPoint names a step at which a build with the tag crashpoints can be told to die as by
// kill -9, so that tests can show what a restart makes of it. See crash_on.go for how; the binary
// that users install is built without the tag and carries none of it.
type crashPoint string

const (
	crashBeforeCheckpoint crashPoint = "prepare:before-checkpoint"
	crashAfterCheckpoint  crashPoint = "prepare:after-checkpoint"
	crashAfterCDI         crashPoint = "prepare:after-cdi"
	crashAfterPrepared    crashPoint = "prepare:after-prepared"

	crashBeforeGPUInstance    crashPoint = "partition:before-gpu-instance"
	crashAfterGPUInstance     crashPoint = "partition:after-gpu-instance"
	crashAfterComputeInstance crashPoint = "partition:after-compute-instance"

	crashBeforePartitionRemoval      crashPoint = "partition:before-removal"
	crashAfterComputeInstanceRemoval crashPoint = "partition:after-compute-instance-removal"
	crashAfterGPUInstanceRemoval     crashPoint = "partition:after-gpu-instance-removal"

	crashBeforeSettings        crashPoint = "sharing:before-settings"
	crashAfterSettings         crashPoint = "sharing:after-settings"
	crashBeforeDaemon          crashPoint = "sharing:before-daemon"
	crashAfterDaemon           crashPoint = "sharing:after-daemon"
	crashAfterDaemonRemoval    crashPoint = "sharing:after-daemon-removal"
	crashAfterSettingsRestored crashPoint = "sharing:after-settings-restored"

	crashBeforeUnprepare    crashPoint = "unprepare:before-cdi-removal"
	crashAfterCDIRemoval    crashPoint = "unprepare:after-cdi-removal"
	crashAfterRecordRemoval crashPoint = "unprepare:after-record-removal"
)
