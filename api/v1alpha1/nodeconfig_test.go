// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const nodeHead = "apiVersion: switchyard.dev/v1alpha1\nkind: NodeConfig\n"

// shares is a node configuration with one entry of shares, which is sound but for what it is given.
func shares(fields string) string {
	return nodeHead + "shares: [{" + fields + "}]\n"
}

func TestDecodeNodeConfig(t *testing.T) {
	meta := metav1.TypeMeta{APIVersion: APIVersion, Kind: NodeConfigKind}
	duration := func(d time.Duration) *metav1.Duration { return &metav1.Duration{Duration: d} }
	for name, test := range map[string]struct {
		content string
		want    *NodeConfig
	}{
		"an object without settings changes nothing": {nodeHead, &NodeConfig{TypeMeta: meta}},
		"JSON is YAML": {`{"apiVersion": "switchyard.dev/v1alpha1", "kind": "NodeConfig"}`, &NodeConfig{TypeMeta: meta}},
		"comments and marks around the document are nothing": {"# GPUs of the lab\n---\n" + nodeHead + "...\n---\n# end\n", &NodeConfig{TypeMeta: meta}},
		"every setting": {
			nodeHead + `
mig: {gpus: "0,GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"}
shares:
- {gpus: "1,2", strategy: MPS, maxClaims: 4, memoryStep: 512Mi}
- {gpus: "3", strategy: TimeSlicing, maxClaims: 128}
sharing: {defaultTimeSlice: Long}
health: {effect: NoExecute, xids: {48: NoExecute, "94": None}}
discoveryInterval: 5s
reconcileInterval: 2m
orphanGrace: 0s
deviceWait: 20s
steeringInterval: 2s
`,
			&NodeConfig{
				TypeMeta: meta,
				MIG:      &NodeMIG{GPUs: "0,GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c"},
				Shares: []NodeShares{
					{GPUs: "1,2", Strategy: MPSStrategy, MaxClaims: 4, MemoryStep: new(resource.MustParse("512Mi"))},
					{GPUs: "3", Strategy: TimeSlicingStrategy, MaxClaims: 128, MemoryStep: new(resource.MustParse("1Gi"))},
				},
				Sharing:           &NodeSharing{DefaultTimeSlice: LongTimeSlice},
				Health:            &NodeHealth{Effect: "NoExecute", XIDs: map[string]string{"48": "NoExecute", "94": "None"}},
				DiscoveryInterval: duration(5 * time.Second), ReconcileInterval: duration(2 * time.Minute), OrphanGrace: duration(0), DeviceWait: duration(20 * time.Second),
				SteeringInterval: duration(2 * time.Second),
			},
		},
		"some GPUs are shared in one way and all others in another": {
			nodeHead + "shares: [{gpus: '0', strategy: MPS, maxClaims: 2}, {gpus: all, strategy: TimeSlicing, maxClaims: 2}]",
			&NodeConfig{TypeMeta: meta, Shares: []NodeShares{
				{GPUs: "0", Strategy: MPSStrategy, MaxClaims: 2, MemoryStep: new(resource.MustParse("1Gi"))},
				{GPUs: "all", Strategy: TimeSlicingStrategy, MaxClaims: 2, MemoryStep: new(resource.MustParse("1Gi"))},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := DecodeNodeConfig([]byte(test.content))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("config (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDecodeNodeConfigRefuses(t *testing.T) {
	const sound = "gpus: all, strategy: MPS, maxClaims: 4"
	for name, test := range map[string]struct {
		content string
		// want are parts of the error: the field and the fix.
		want []string
	}{
		"nothing":                 {"", []string{"one object", "kind: NodeConfig"}},
		"nothing but comments":    {"# apiVersion: switchyard.dev/v1alpha1\n", []string{"one object"}},
		"a list":                  {"- a", []string{"one object"}},
		"text":                    {"MPS", []string{"one object"}},
		"what is no YAML":         {"a: [", []string{"must be YAML"}},
		"two documents":           {nodeHead + "---\n" + nodeHead, []string{"one document"}},
		"text behind the end":     {nodeHead + "... # of the first\r\nmig: {gpus: none}\n", []string{"one document"}},
		"text on the end's line":  {nodeHead + "... mig: {gpus: none}\n", []string{"must be YAML", "mig: {gpus: none}"}},
		"too much":                {nodeHead + strings.Repeat("#", MaxNodeConfigSize), []string{"at most 1048576 bytes"}},
		"no apiVersion":           {"kind: NodeConfig", []string{"apiVersion", "switchyard.dev/v1alpha1"}},
		"another kind":            {"apiVersion: switchyard.dev/v1alpha1\nkind: GPUConfig\nsharing: {strategy: MPS}", []string{`kind: Unsupported value: "GPUConfig"`, "NodeConfig"}},
		"an unknown field":        {nodeHead + "migs: {}", []string{"migs: unknown field", "deviceWait, discoveryInterval, health"}},
		"an unknown field below":  {nodeHead + "mig: {gpu: all}", []string{"mig.gpu: unknown field", "gpus"}},
		"one in a list":           {shares(sound + ", replicas: 4"), []string{"shares[0].replicas: unknown field", "gpus, maxClaims, memoryStep, strategy"}},
		"a field in another case": {nodeHead + "MIG: {gpus: all}", []string{"MIG: unknown field"}},
		"a field twice":           {nodeHead + "mig: {gpus: all}\nmig: {gpus: none}", []string{`"mig"`, "already set"}},
		"a number for a list":     {nodeHead + "mig: {gpus: 0}", []string{"mig.gpus: Invalid value: 0", "must be a string"}},
		"an object for a list":    {nodeHead + "shares: {gpus: all}", []string{"shares: Invalid value", "must be a list"}},
		"text for a number":       {shares("gpus: all, strategy: MPS, maxClaims: four"), []string{`shares[0].maxClaims: Invalid value: "four"`, "whole number"}},
		"text for an object":      {nodeHead + "health: {xids: NoExecute}", []string{"health.xids: Invalid value", "must be an object"}},
		"a number for an effect":  {nodeHead + "health: {xids: {48: 1}}", []string{"health.xids[48]: Invalid value: 1", "must be a string"}},
		"a number for a duration": {nodeHead + "orphanGrace: 10", []string{"orphanGrace: Invalid value: 10", "must be a duration, for example 10s"}},
		"no duration":             {nodeHead + "orphanGrace: soon", []string{`orphanGrace: Invalid value: "soon"`, "must be a duration"}},
		"an interval too short":   {nodeHead + "discoveryInterval: 1ms", []string{"discoveryInterval: Invalid value", "1s or more"}},
		"the other too":           {nodeHead + "reconcileInterval: 0s", []string{"reconcileInterval: Invalid value", "1s or more"}},
		"a negative grace":        {nodeHead + "orphanGrace: -1s", []string{"orphanGrace: Invalid value", "0s or more"}},
		"a wait that is too long": {nodeHead + "deviceWait: 1m", []string{"deviceWait: Invalid value", "between 0s and 40s"}},
		"counts without a pause":  {nodeHead + "steeringInterval: 10ms", []string{"steeringInterval: Invalid value", "1s or more, or 0s for off"}},
		"no GPU":                  {nodeHead + "mig: {gpus: first}", []string{"mig.gpus: Invalid value", "nvidia-smi -L"}},
		"a part of a UUID":        {nodeHead + "mig: {gpus: GPU-4404041a}", []string{"mig.gpus: Invalid value", `"GPU-4404041a" is neither`, "nvidia-smi -L"}},
		"an empty entry":          {nodeHead + "mig: {gpus: '0,,1'}", []string{"mig.gpus: Invalid value", "empty entry"}},
		"an effect of a taint":    {nodeHead + "health: {effect: Evict}", []string{`health.effect: Unsupported value: "Evict"`, "NoExecute"}},
		"an effect of an XID":     {nodeHead + "health: {xids: {48: Evict}}", []string{`health.xids[48]: Unsupported value: "Evict"`, "Ignore"}},
		"an XID by name":          {nodeHead + "health: {xids: {ecc: Ignore}}", []string{"health.xids[ecc]: Invalid value", "number of an XID"}},
		"an XID of 0":             {nodeHead + "health: {xids: {0: Ignore}}", []string{"health.xids[0]: Invalid value"}},
		"an unknown interval":     {nodeHead + "sharing: {defaultTimeSlice: 5ms}", []string{`sharing.defaultTimeSlice: Unsupported value: "5ms"`, "Short"}},
		"shares of what":          {shares("strategy: MPS, maxClaims: 4"), []string{"shares[0].gpus: Required"}},
		"shares of nothing":       {shares("gpus: none, strategy: MPS, maxClaims: 4"), []string{"shares[0].gpus: Invalid value", "remove the entry"}},
		"shares of no GPU":        {shares("gpus: a, strategy: MPS, maxClaims: 4"), []string{"shares[0].gpus: Invalid value", "nvidia-smi -L"}},
		"shares without a way":    {shares("gpus: all, maxClaims: 4"), []string{"shares[0].strategy: Required", "MPS or TimeSlicing"}},
		"an unknown way":          {shares("gpus: all, strategy: mps, maxClaims: 4"), []string{"shares[0].strategy: Unsupported value", "MPS"}},
		"shares without a number": {shares("gpus: all, strategy: MPS"), []string{"shares[0].maxClaims: Required"}},
		"shares for one":          {shares("gpus: all, strategy: MPS, maxClaims: 1"), []string{"shares[0].maxClaims: Invalid value: 1", "between 2 and 48"}},
		"more than MPS takes":     {shares("gpus: all, strategy: MPS, maxClaims: 49"), []string{"shares[0].maxClaims: Invalid value: 49", "between 2 and 48"}},
		"more than is sensible":   {shares("gpus: all, strategy: TimeSlicing, maxClaims: 129"), []string{"shares[0].maxClaims: Invalid value: 129", "between 2 and 128"}},
		"a step of nothing":       {shares(sound + ", memoryStep: 0"), []string{"shares[0].memoryStep: Invalid value", "more than 0"}},
		"a step of no mebibytes":  {shares(sound + ", memoryStep: 1G"), []string{"shares[0].memoryStep: Invalid value", "mebibytes"}},
		"a step that is none":     {shares(sound + ", memoryStep: much"), []string{"shares[0].memoryStep: Invalid value", "quantity"}},
		"a GPU shared twice": {
			nodeHead + "shares: [{gpus: '0,GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c', strategy: MPS, maxClaims: 2}, {gpus: 'gpu-4404041A-04cf-1ccf-9e70-f139a9b1e23c', strategy: MPS, maxClaims: 3}]",
			[]string{"shares[1].gpus: Invalid value", "GPU gpu-4404041a-04cf-1ccf-9e70-f139a9b1e23c is named by shares[0].gpus"},
		},
		"an entry behind one for all": {
			nodeHead + "shares: [{gpus: all, strategy: MPS, maxClaims: 2}, {gpus: '0', strategy: MPS, maxClaims: 3}]",
			[]string{"shares[0].gpus: Invalid value", "shares[1]", "last"},
		},
		"a GPU partitioned and shared": {
			nodeHead + "mig: {gpus: '1, 0'}\nshares: [{gpus: '0', strategy: MPS, maxClaims: 2}]",
			[]string{"shares[0].gpus: Invalid value", "mig.gpus (1, 0) names GPU 0"},
		},
		"all GPUs partitioned, and one shared": {
			nodeHead + "mig: {gpus: all}\nshares: [{gpus: '0', strategy: MPS, maxClaims: 2}]",
			[]string{"shares[0].gpus: Invalid value", "mig.gpus (all)"},
		},
		"all GPUs shared, and one partitioned": {
			nodeHead + "mig: {gpus: '0'}\nshares: [{gpus: all, strategy: MPS, maxClaims: 2}]",
			[]string{"shares[0].gpus: Invalid value", "mig.gpus (0)"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			config, err := DecodeNodeConfig([]byte(test.content))
			if err == nil {
				t.Fatalf("decoded to %+v, want an error", config)
			}
			for _, part := range test.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q does not say %q", err, part)
				}
			}
		})
	}
}

// FuzzDecodeNodeConfig: no input panics, and what is accepted survives a round trip unchanged.
func FuzzDecodeNodeConfig(f *testing.F) {
	for _, seed := range []string{
		"", "null", "- a", nodeHead, nodeHead + "---\n" + nodeHead, "a: &a [*a]",
		shares("gpus: '0,GPU-4404041a-04cf-1ccf-9e70-f139a9b1e23c', strategy: MPS, maxClaims: 4, memoryStep: 512Mi"),
		nodeHead + "mig: {gpus: '0'}\nsharing: {defaultTimeSlice: Long}\nhealth: {effect: NoExecute, xids: {48: None}}\norphanGrace: 1h",
		nodeHead + "shares: [null]", nodeHead + "health: {xids: [1]}", nodeHead + "shares: [{a: 1}]",
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, content []byte) { roundTrip(t, DecodeNodeConfig, content, cmpopts.EquateEmpty()) })
}
