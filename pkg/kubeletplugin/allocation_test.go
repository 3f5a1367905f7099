// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

const validConfig = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig"}`

func opaque(source resourceapi.AllocationConfigSource, driver, parameters string, requests ...string) resourceapi.DeviceAllocationConfiguration {
	return resourceapi.DeviceAllocationConfiguration{
		Source:   source,
		Requests: requests,
		DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
			Driver:     driver,
			Parameters: runtime.RawExtension{Raw: []byte(parameters)},
		}},
	}
}

func allocated(results []resourceapi.DeviceRequestAllocationResult, configs ...resourceapi.DeviceAllocationConfiguration) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{}
	claim.Name, claim.Namespace, claim.UID = "claim", "default", "claim-uid"
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: results, Config: configs}}
	return claim
}

func result(request, pool, device string) resourceapi.DeviceRequestAllocationResult {
	return resourceapi.DeviceRequestAllocationResult{Request: request, Driver: v1alpha1.DriverName, Pool: pool, Device: device}
}

func TestAllocatedHere(t *testing.T) {
	other := resourceapi.DeviceRequestAllocationResult{Request: "nic", Driver: "nic.example.com", Pool: "node-a", Device: "nic-0"}
	share := func(id types.UID) resourceapi.DeviceRequestAllocationResult {
		r := result("gpu", "node-a", "gpu-0")
		r.ShareID = &id
		return r
	}
	admin := result("monitor", "node-a", "gpu-0")
	admin.AdminAccess = ptr.To(true)

	for name, test := range map[string]struct {
		results []resourceapi.DeviceRequestAllocationResult
		want    int
		err     string
	}{
		"devices of this pool are ours":                  {results: []resourceapi.DeviceRequestAllocationResult{result("a", "node-a", "gpu-0"), result("b", "node-a", "gpu-1")}, want: 2},
		"results of other drivers are ignored":           {results: []resourceapi.DeviceRequestAllocationResult{other, result("gpu", "node-a", "gpu-0")}, want: 1},
		"a claim without results of ours needs nothing":  {results: []resourceapi.DeviceRequestAllocationResult{other}},
		"devices in other pools next to ours are theirs": {results: []resourceapi.DeviceRequestAllocationResult{result("a", "node-b", "gpu-9"), result("b", "node-a", "gpu-1")}, want: 1},
		"a claim that is all elsewhere is refused":       {results: []resourceapi.DeviceRequestAllocationResult{result("a", "node-b", "gpu-9")}, err: "allocated in pool node-b, but the pool of this node is node-a"},
		"a device cannot serve two requests":             {results: []resourceapi.DeviceRequestAllocationResult{result("a", "node-a", "gpu-0"), result("b", "node-a", "gpu-0")}, err: "device gpu-0 is allocated twice in this claim, for requests a and b"},
		"two shares of a device are two things":          {results: []resourceapi.DeviceRequestAllocationResult{share("1"), share("2")}, want: 2},
		"adminAccess comes on top":                       {results: []resourceapi.DeviceRequestAllocationResult{result("gpu", "node-a", "gpu-0"), admin}, want: 2},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := allocatedHere(allocated(test.results), "node-a")
			if test.err == "" && err != nil || test.err != "" && (err == nil || !strings.Contains(err.Error(), test.err)) {
				t.Fatalf("allocatedHere = %v, want %q", err, test.err)
			}
			if err == nil && len(got) != test.want {
				t.Errorf("got %d results, want %d", len(got), test.want)
			}
		})
	}

	t.Run("a claim without an allocation is refused", func(t *testing.T) {
		if _, err := allocatedHere(&resourceapi.ResourceClaim{}, "node-a"); err == nil {
			t.Error("no error")
		}
	})
}

func TestConfigOf(t *testing.T) {
	const (
		class   = resourceapi.AllocationConfigSourceClass
		claim   = resourceapi.AllocationConfigSourceClaim
		unknown = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","shering":{}}`
		mig     = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"MIGConfig"}`
		sharing = `{"apiVersion":"switchyard.dev/v1alpha1","kind":"GPUConfig","sharing":{"strategy":"TimeSlicing"}}`
	)
	driver := v1alpha1.DriverName
	for name, test := range map[string]struct {
		request string
		configs []resourceapi.DeviceAllocationConfiguration
		errs    []string
		shares  bool
	}{
		"no configuration is fine":                          {},
		"a valid configuration is fine":                     {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, driver, validConfig)}},
		"an unknown field is refused by name":               {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, driver, unknown)}, errs: []string{"ResourceClaim", "request gpu", "shering"}},
		"the class's mistakes are named as the class's":     {configs: []resourceapi.DeviceAllocationConfiguration{opaque(class, driver, unknown)}, errs: []string{"DeviceClass"}},
		"a mistake counts although the claim overrides it":  {configs: []resourceapi.DeviceAllocationConfiguration{opaque(class, driver, unknown), opaque(claim, driver, validConfig)}, errs: []string{"DeviceClass"}},
		"other drivers' configurations are theirs":          {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, "nic.example.com", `{"x":1}`)}},
		"a configuration of another request does not apply": {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, driver, unknown, "other")}},
		"a MIG configuration does not suit a whole GPU":     {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, driver, mig)}, errs: []string{"MIGConfig", "use GPUConfig"}},
		"sharing is returned":                               {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, driver, sharing)}, shares: true},
		"the claim's configuration goes before the class's": {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, driver, validConfig), opaque(class, driver, sharing)}},
		"the class's configuration counts without one":      {configs: []resourceapi.DeviceAllocationConfiguration{opaque(class, driver, sharing)}, shares: true},
		"of one source, the last counts":                    {configs: []resourceapi.DeviceAllocationConfiguration{opaque(claim, driver, sharing), opaque(claim, driver, validConfig)}},
	} {
		t.Run(name, func(t *testing.T) {
			r := result("gpu", "node-a", "gpu-0")
			config, err := configOf(allocated([]resourceapi.DeviceRequestAllocationResult{r}, test.configs...), r)
			if (err != nil) != (len(test.errs) > 0) {
				t.Fatalf("configOf = %v, want an error with %q", err, test.errs)
			}
			for _, want := range test.errs {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("the error %q does not say %q", err, want)
				}
			}
			if err == nil && (config.SharingConfig() != nil) != test.shares {
				t.Errorf("configOf returned %+v, want sharing: %t", config, test.shares)
			}
		})
	}
}

func TestFieldCase11_ConfigOfAParentRequestAppliesToItsSubrequests(t *testing.T) {
	r := result("gpu/big", "node-a", "gpu-0")
	for name, test := range map[string]struct {
		requests []string
		applies  bool
	}{
		"named by the parent request":  {[]string{"gpu"}, true},
		"named by the subrequest":      {[]string{"gpu/big"}, true},
		"named by no request at all":   {nil, true},
		"named by another subrequest":  {[]string{"gpu/small"}, false},
		"named by a request like it":   {[]string{"gpu2"}, false},
		"named by the subrequest only": {[]string{"big"}, false},
	} {
		t.Run(name, func(t *testing.T) {
			claim := allocated([]resourceapi.DeviceRequestAllocationResult{r},
				opaque(resourceapi.AllocationConfigSourceClaim, v1alpha1.DriverName, `{"kind":"Nonsense"}`, test.requests...))
			if _, err := configOf(claim, r); (err != nil) != test.applies {
				t.Errorf("configOf = %v, the configuration applies: %v", err, test.applies)
			}
		})
	}
}
