// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

const (
	gpuHead = `"apiVersion": "switchyard.dev/v1alpha1", "kind": "GPUConfig"`
	migHead = `"apiVersion": "switchyard.dev/v1alpha1", "kind": "MIGConfig"`
)

func gpuMeta() metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: APIVersion, Kind: GPUConfigKind}
}

func TestDecode(t *testing.T) {
	for name, test := range map[string]struct {
		raw  string
		want Config
	}{
		"a config without sharing touches no setting": {
			raw:  `{` + gpuHead + `}`,
			want: &GPUConfig{TypeMeta: gpuMeta()},
		},
		"null sharing is no sharing": {
			raw:  `{` + gpuHead + `, "sharing": null}`,
			want: &GPUConfig{TypeMeta: gpuMeta()},
		},
		"time-slicing without an interval touches no setting": {
			raw:  `{` + gpuHead + `, "sharing": {"strategy": "TimeSlicing"}}`,
			want: &GPUConfig{TypeMeta: gpuMeta(), Sharing: &Sharing{Strategy: TimeSlicingStrategy}},
		},
		"limits of single devices are kept": {
			raw: `{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"0": "1Gi", "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c": "2Gi"}}}}`,
			want: &GPUConfig{TypeMeta: gpuMeta(), Sharing: &Sharing{Strategy: MPSStrategy, MPS: &MPSConfig{
				PerDevicePinnedMemoryLimit: map[string]resource.Quantity{
					"0": resource.MustParse("1Gi"), "GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c": resource.MustParse("2Gi"),
				},
			}}},
		},
		"a chosen interval is kept": {
			raw: `{` + gpuHead + `, "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}}`,
			want: &GPUConfig{TypeMeta: gpuMeta(), Sharing: &Sharing{
				Strategy: TimeSlicingStrategy, TimeSlicing: &TimeSlicingConfig{Interval: LongTimeSlice},
			}},
		},
		"MPS without settings has no limits": {
			raw:  `{` + gpuHead + `, "sharing": {"strategy": "MPS"}}`,
			want: &GPUConfig{TypeMeta: gpuMeta(), Sharing: &Sharing{Strategy: MPSStrategy, MPS: &MPSConfig{}}},
		},
		"MPS limits are kept": {
			raw: `{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "10Gi"}}}`,
			want: &GPUConfig{TypeMeta: gpuMeta(), Sharing: &Sharing{Strategy: MPSStrategy, MPS: &MPSConfig{
				ActiveThreadPercentage: ptr.To[int32](50), PinnedDeviceMemoryLimit: new(resource.MustParse("10Gi")),
			}}},
		},
		"a partition time-slices without an interval": {
			raw: `{` + migHead + `, "sharing": {"strategy": "TimeSlicing"}}`,
			want: &MIGConfig{
				TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: MIGConfigKind},
				Sharing:  &Sharing{Strategy: TimeSlicingStrategy},
			},
		},
		"a partition has MPS limits": {
			raw: `{` + migHead + `, "sharing": {"strategy": "MPS"}}`,
			want: &MIGConfig{
				TypeMeta: metav1.TypeMeta{APIVersion: APIVersion, Kind: MIGConfigKind},
				Sharing:  &Sharing{Strategy: MPSStrategy, MPS: &MPSConfig{}},
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := Decode([]byte(test.raw))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeRefuses(t *testing.T) {
	for name, test := range map[string]struct {
		raw string
		// want are parts of the error: the field and the fix.
		want []string
	}{
		"nothing":               {``, []string{"parameters: must be one JSON object"}},
		"text that is not JSON": {`strategy: MPS`, []string{"parameters: must be one JSON object", "at byte 1"}},
		"a cut object":          {`{` + gpuHead, []string{"parameters: must be one JSON object", "unexpected end"}},
		"data after the object": {`{` + gpuHead + `} {}`, []string{"parameters: must be one JSON object", "after top-level value"}},
		"a list":                {`[]`, []string{"parameters: must be one JSON object, not array"}},
		"a string":              {`"GPUConfig"`, []string{"parameters: must be one JSON object, not string"}},
		"null":                  {`null`, []string{"parameters: must be one JSON object, not null"}},
		"no apiVersion":         {`{"kind": "GPUConfig"}`, []string{"apiVersion: Required", "switchyard.dev/v1alpha1"}},
		"no kind":               {`{"apiVersion": "switchyard.dev/v1alpha1"}`, []string{"kind: Required", "GPUConfig or MIGConfig"}},
		"an apiVersion of another group": {
			`{"apiVersion": "gpu.nvidia.com/v1beta1", "kind": "GpuConfig"}`,
			[]string{`apiVersion: Unsupported value: "gpu.nvidia.com/v1beta1"`, `supported values: "switchyard.dev/v1alpha1"`},
		},
		"a kind that does not exist": {
			`{"apiVersion": "switchyard.dev/v1alpha1", "kind": "GpuConfig"}`,
			[]string{`kind: Unsupported value: "GpuConfig"`, `"GPUConfig", "MIGConfig"`},
		},
		"a kind of the wrong type":      {`{"apiVersion": "switchyard.dev/v1alpha1", "kind": 1}`, []string{"kind: Invalid value: 1", "must be a string"}},
		"apiVersion in the wrong case":  {`{"apiversion": "switchyard.dev/v1alpha1", "kind": "GPUConfig"}`, []string{"apiVersion: Required"}},
		"sharing that is not an object": {`{` + gpuHead + `, "sharing": "MPS"}`, []string{`sharing: Invalid value: "MPS"`, "must be an object"}},
		"a percentage that is text": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": "50%"}}}`,
			[]string{`sharing.mps.activeThreadPercentage: Invalid value: "50%"`, "must be a whole number"},
		},
		"a percentage that is a fraction": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": 12.5}}}`,
			[]string{`sharing.mps.activeThreadPercentage: Invalid value: 12.5`, "must be a whole number"},
		},
		"a percentage beyond 32 bits": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": 4294967297}}}`,
			[]string{`sharing.mps.activeThreadPercentage: Invalid value`, "must be a whole number"},
		},
		"a percentage of 0": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": 0}}}`,
			[]string{"sharing.mps.activeThreadPercentage: Invalid value: 0", "between 1 and 100"},
		},
		"a percentage of 101": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": 101}}}`,
			[]string{"sharing.mps.activeThreadPercentage: Invalid value: 101", "between 1 and 100"},
		},
		"a limit that is no quantity": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"pinnedDeviceMemoryLimit": "10 gigs"}}}`,
			[]string{`sharing.mps.pinnedDeviceMemoryLimit: Invalid value: "10 gigs"`, "10Gi"},
		},
		"a limit that is an object": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"pinnedDeviceMemoryLimit": {}}}}`,
			[]string{`sharing.mps.pinnedDeviceMemoryLimit: Invalid value`, "10Gi"},
		},
		"a limit of nothing": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"pinnedDeviceMemoryLimit": "0"}}}`,
			[]string{"sharing.mps.pinnedDeviceMemoryLimit: Invalid value", "more than 0"},
		},
		"a negative limit": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"pinnedDeviceMemoryLimit": "-1Gi"}}}`,
			[]string{"sharing.mps.pinnedDeviceMemoryLimit: Invalid value", "more than 0"},
		},
		"a limit that MPS would round": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"pinnedDeviceMemoryLimit": "10G"}}}`,
			[]string{"sharing.mps.pinnedDeviceMemoryLimit: Invalid value", "whole number of mebibytes"},
		},
		"a limit beyond 64 bits": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"pinnedDeviceMemoryLimit": "1e30"}}}`,
			[]string{"sharing.mps.pinnedDeviceMemoryLimit: Invalid value", "whole number of mebibytes"},
		},
		"a limit of a place that is no number": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"00": "1Gi"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Invalid value: \"00\"", "or its UUID"},
		},
		"a limit of a place beyond a claim": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"32": "1Gi"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Invalid value: \"32\""},
		},
		"a limit of a cut UUID": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"GPU-4404041a": "1Gi"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Invalid value: \"GPU-4404041a\""},
		},
		"a limit of a UUID with a wrong digit": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23g": "1Gi"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Invalid value"},
		},
		"a limit of a UUID with a hyphen elsewhere": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"GPU-4404041a0-4cf-1ccf-9e70-f139a9b1e23c": "1Gi"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Invalid value"},
		},
		"limits of one UUID in two spellings": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c": "1Gi", "gpu-4404041a-04cf-1ccf-9e70-f139a9b1e23c": "1Gi"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Invalid value", "same UUID"},
		},
		"a limit of a device that MPS would round": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"0": "1G"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit[0]: Invalid value", "whole number of mebibytes"},
		},
		"limits of single partitions": {
			`{` + migHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {"0": "1Gi"}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Forbidden", "pinnedDeviceMemoryLimit"},
		},
		"limits of more devices than a claim has": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"perDevicePinnedMemoryLimit": {` + manyLimits() + `}}}}`,
			[]string{"sharing.mps.perDevicePinnedMemoryLimit: Too many", "32"},
		},
		"sharing without a strategy": {`{` + gpuHead + `, "sharing": {}}`, []string{"sharing.strategy: Required", "TimeSlicing or MPS"}},
		"a strategy that does not exist": {
			`{` + gpuHead + `, "sharing": {"strategy": "mps"}}`,
			[]string{`sharing.strategy: Unsupported value: "mps"`, `"TimeSlicing", "MPS"`},
		},
		"an interval that does not exist": {
			`{` + gpuHead + `, "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "5ms"}}}`,
			[]string{`sharing.timeSlicing.interval: Unsupported value: "5ms"`, `"Short"`},
		},
		"MPS settings with another strategy": {
			`{` + gpuHead + `, "sharing": {"strategy": "TimeSlicing", "mps": {}}}`,
			[]string{"sharing.mps: Forbidden", "strategy: MPS"},
		},
		"a time slice with another strategy": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "timeSlicing": {"interval": "Long"}}}`,
			[]string{"sharing.timeSlicing: Forbidden", "strategy: TimeSlicing"},
		},
		"a time slice on a partition": {
			`{` + migHead + `, "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}}`,
			[]string{"sharing.timeSlicing: Forbidden", "MIG partition"},
		},
		"a time slice with MPS on a partition": {
			`{` + migHead + `, "sharing": {"strategy": "MPS", "timeSlicing": {}}}`,
			[]string{"sharing.timeSlicing: Forbidden"},
		},
		"more than the API allows": {`{` + gpuHead + `, "x": "` + strings.Repeat("x", 10*1024) + `"}`, []string{"parameters: must be at most 10240 bytes"}},
	} {
		t.Run(name, func(t *testing.T) { refused(t, test.raw, test.want) })
	}
}

// A field that is dropped silently leaves a pod without what it asked for.
func TestFieldCase12_UnknownConfigFieldsAreRefusedByName(t *testing.T) {
	for name, test := range map[string]struct {
		raw  string
		want []string
	}{
		"unknown at the top": {`{` + gpuHead + `, "shareing": {}}`, []string{"shareing: unknown field", "apiVersion, kind, sharing"}},
		"unknown below": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mpsConfig": {}}}`,
			[]string{"sharing.mpsConfig: unknown field", "mps, strategy, timeSlicing"},
		},
		"unknown at the bottom": {
			`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreads": 1}}}`,
			[]string{"sharing.mps.activeThreads: unknown field", "activeThreadPercentage, perDevicePinnedMemoryLimit, pinnedDeviceMemoryLimit"},
		},
		"known but for its case": {`{` + gpuHead + `, "Sharing": {"strategy": "MPS"}}`, []string{"Sharing: unknown field", "sharing"}},
		"two at once":            {`{` + gpuHead + `, "a": 1, "b": 2}`, []string{"a: unknown field", "b: unknown field"}},
		"a name given twice":     {`{` + gpuHead + `, "sharing": {"strategy": "MPS", "strategy": "TimeSlicing"}}`, []string{"sharing.strategy: field is given twice"}},
		"an object given twice":  {`{` + gpuHead + `, "sharing": {"strategy": "MPS"}, "sharing": {"strategy": "MPS"}}`, []string{"sharing: field is given twice"}},
	} {
		t.Run(name, func(t *testing.T) { refused(t, test.raw, test.want) })
	}
}

// manyLimits are the limits of 33 GPUs.
func manyLimits() string {
	limits := make([]string, 33)
	for i := range limits {
		limits[i] = fmt.Sprintf(`"GPU-000000%02d-0000-0000-0000-000000000000": "1Gi"`, i)
	}
	return strings.Join(limits, ", ")
}

func refused(t *testing.T, raw string, want []string) {
	t.Helper()
	config, err := Decode([]byte(raw))
	if err == nil {
		t.Fatalf("decoded to %+v, want an error", config)
	}
	for _, part := range want {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error %q does not say %q", err, part)
		}
	}
}

func TestDefaultGPUConfigIsValidAndShareless(t *testing.T) {
	config := DefaultGPUConfig()
	if err := config.Validate().ToAggregate(); err != nil {
		t.Error(err)
	}
	if config.Sharing != nil {
		t.Errorf("sharing is %+v, want none", config.Sharing)
	}
}

func TestValidateChecksTypeMeta(t *testing.T) {
	for _, config := range []Config{&GPUConfig{}, &MIGConfig{}} {
		errs := config.Validate().ToAggregate()
		if errs == nil || !strings.Contains(errs.Error(), "apiVersion") || !strings.Contains(errs.Error(), "kind") {
			t.Errorf("%T: error %v does not name apiVersion and kind", config, errs)
		}
	}
}

func TestDefaultIsIdempotentAndDeepCopyIsDeep(t *testing.T) {
	for _, head := range []string{gpuHead, migHead} {
		config, err := Decode([]byte(`{` + head + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "1Gi"}}}`))
		if err != nil {
			t.Fatal(err)
		}
		before := config.DeepCopyObject().(Config)
		config.Default()
		if diff := cmp.Diff(before, config); diff != "" {
			t.Errorf("second Default changed (-before +after):\n%s", diff)
		}
		*config.SharingConfig().MPS.ActiveThreadPercentage = 1
		if got := *before.SharingConfig().MPS.ActiveThreadPercentage; got != 50 {
			t.Errorf("the copy changed with the original: %d", got)
		}
	}
}

// FuzzDecode: no input panics, and what is accepted survives a round trip unchanged.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		``, `null`, `[]`, `{` + gpuHead + `}`, `{` + migHead + `, "sharing": {"strategy": "TimeSlicing"}}`,
		`{` + gpuHead + `, "sharing": {"strategy": "MPS", "mps": {"activeThreadPercentage": 50, "pinnedDeviceMemoryLimit": "10Gi"}}}`,
		`{` + gpuHead + `, "sharing": {"strategy": "TimeSlicing", "timeSlicing": {"interval": "Long"}}}`,
		`{` + gpuHead + `, "sharing": {"strategy": 1, "mps": {"pinnedDeviceMemoryLimit": []}}}`,
		`{` + gpuHead + `, "a.b": {"c": 1}}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, raw []byte) { roundTrip(t, Decode, raw) })
}

// roundTrip fails unless what is accepted is the same when it is encoded and decoded again.
func roundTrip[T any](t *testing.T, decode func([]byte) (T, error), raw []byte, options ...cmp.Option) {
	t.Helper()
	config, err := decode(raw)
	if err != nil {
		if err.Error() == "" {
			t.Error("an error without a message")
		}
		return
	}
	encoded, err := json.Marshal(config)
	if err != nil {
		t.Fatalf("encode %+v: %v", config, err)
	}
	again, err := decode(encoded)
	if err != nil {
		t.Fatalf("decode %s again: %v", encoded, err)
	}
	if diff := cmp.Diff(config, again, options...); diff != "" {
		t.Errorf("round trip (-first +second):\n%s", diff)
	}
}
