// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"
)

func TestDeepCopyKeepsEveryField(t *testing.T) {
	sharing := &Sharing{
		Strategy:    MPSStrategy,
		TimeSlicing: &TimeSlicingConfig{Interval: ShortTimeSlice},
		MPS:         &MPSConfig{ActiveThreadPercentage: ptr.To[int32](10), PinnedDeviceMemoryLimit: new(resource.MustParse("1Gi"))},
	}
	gpu := &GPUConfig{TypeMeta: gpuMeta(), Sharing: sharing}
	mig := &MIGConfig{TypeMeta: gpuMeta(), Sharing: sharing}
	for name, pair := range map[string][2]any{
		"GPUConfig":         {gpu, gpu.DeepCopy()},
		"MIGConfig":         {mig, mig.DeepCopy()},
		"Sharing":           {sharing, sharing.DeepCopy()},
		"TimeSlicingConfig": {sharing.TimeSlicing, sharing.TimeSlicing.DeepCopy()},
		"MPSConfig":         {sharing.MPS, sharing.MPS.DeepCopy()},
		"no GPUConfig":      {(*GPUConfig)(nil), (*GPUConfig)(nil).DeepCopy()},
		"no Sharing":        {(*Sharing)(nil), (*Sharing)(nil).DeepCopy()},
	} {
		if diff := cmp.Diff(pair[0], pair[1]); diff != "" {
			t.Errorf("%s (-original +copy):\n%s", name, diff)
		}
	}
}
