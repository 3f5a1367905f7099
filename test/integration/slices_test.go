// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/pkg/simulator"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// domainsOf lists the runs of published devices with the same NVSwitch domain, each as the positions
// of its GPUs: a domain whose devices are not contiguous is there twice. A GPU without a domain is in
// none.
func (n *node) domainsOf(devices []resourceapi.Device) (domains [][]int, names []string) {
	for _, device := range devices {
		attribute, ok := device.Attributes["nvswitchDomain"]
		if !ok {
			continue
		}
		position := slices.Index(n.devices, device.Name)
		if last := len(names) - 1; last >= 0 && names[last] == *attribute.StringValue {
			domains[last] = append(domains[last], position)
			continue
		}
		names = append(names, *attribute.StringValue)
		domains = append(domains, []int{position})
	}
	for _, domain := range domains {
		slices.Sort(domain) // inside a domain the order is by NUMA node
	}
	return domains, names
}

// wantDomains waits until the domains are published and checks their sizes.
func (n *node) wantDomains(t *testing.T, want ...[]int) []string {
	t.Helper()
	var domains [][]int
	var names []string
	eventually(t, fmt.Sprintf("the domains are %v", want), func() error {
		if domains, names = n.domainsOf(n.published(t)); !slices.EqualFunc(domains, want, slices.Equal) {
			return fmt.Errorf("they are %v", domains)
		}
		return nil
	})
	for _, device := range n.published(t) {
		domain := slices.IndexFunc(want, func(d []int) bool { return slices.Contains(d, slices.Index(n.devices, device.Name)) })
		size, ok := device.Attributes["nvswitchDomainSize"]
		switch {
		case domain < 0 && ok:
			t.Errorf("device %s has no domain and yet a domain's size", device.Name)
		case domain >= 0 && (!ok || *size.IntValue != int64(len(want[domain]))):
			t.Errorf("device %s tells another size than %d for its domain", device.Name, len(want[domain]))
		}
	}
	return names
}

// A domain is a contiguous run of devices, because first-fit allocation makes order packing.
func TestProfilesPublishTheirDomains(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][][]int{
		"dgx-a100":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"a100-2x4":        {{0, 1, 2, 3}, {4, 5, 6, 7}},
		"hgx-h100":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"hgx-h200":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"hgx-b200":        {{0, 1, 2, 3, 4, 5, 6, 7}},
		"gb200-nvl72":     {{0, 1, 2, 3}},
		"dgx1-v100":       {{0, 1, 2, 3}, {4, 5, 6, 7}},
		"a100-pcie-pairs": {{0, 1}, {2, 3}},
		"l40s-pcie":       {},
		"t4":              {},
		"a30-pcie":        {{0, 1}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			n.running(t, plugin.Options{})
			names := n.wantDomains(t, want...)
			for i, domain := range names {
				if fabric := "00000001-0000-0000-0000-000000000001.2"; name == "gb200-nvl72" && domain != fabric {
					t.Errorf("domain is %q, want that of the fabric, %q", domain, fabric)
				} else if local := fmt.Sprintf("%s.%d", n.Name, i); name != "gb200-nvl72" && domain != local {
					t.Errorf("domain %d is %q, want %q", i, domain, local)
				}
			}
			hardware, err := profile.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, device := range n.published(t) {
				checkDevice(t, device, hardware, slices.Index(n.devices, device.Name))
			}
		})
	}
}

func TestEveryProfileHasATestOfItsDomains(t *testing.T) {
	t.Parallel()
	// The list of the test above is by hand, because its values are.
	if got := len(profile.Names()); got != 11 {
		t.Errorf("there are %d profiles, and TestProfilesPublishTheirDomains knows 11", got)
	}
}

// checkDevice compares what is published of a GPU with the profile.
func checkDevice(t *testing.T, device resourceapi.Device, hardware profile.Profile, position int) {
	t.Helper()
	text := func(name resourceapi.QualifiedName) string {
		attribute := device.Attributes[name]
		switch {
		case attribute.StringValue != nil:
			return *attribute.StringValue
		case attribute.VersionValue != nil:
			return *attribute.VersionValue
		case attribute.IntValue != nil:
			return fmt.Sprint(*attribute.IntValue)
		}
		return "(none)"
	}
	gpu := hardware.GPUs[position]
	want := map[resourceapi.QualifiedName]string{
		"type":                            "gpu",
		"index":                           fmt.Sprint(position),
		"minor":                           fmt.Sprint(position),
		"productName":                     hardware.Product.Name,
		"brand":                           hardware.Product.Brand,
		"architecture":                    hardware.Product.Architecture,
		"cudaComputeCapability":           hardware.Product.ComputeCapability + ".0",
		"cudaDriverVersion":               hardware.Driver.CUDAVersion + ".0",
		"resource.kubernetes.io/pciBusID": gpu.BusID,
		"resource.kubernetes.io/pcieRoot": gpu.PCIeRoot,
		"resource.kubernetes.io/numaNode": "(none)",
	}
	if gpu.NUMANode != nil {
		want["resource.kubernetes.io/numaNode"] = fmt.Sprint(*gpu.NUMANode)
	}
	for name, value := range want {
		if got := text(name); !strings.EqualFold(got, value) { // NVML spells brands in its own way
			t.Errorf("GPU %d: attribute %s is %q, want %q", position, name, got, value)
		}
	}
	if got := strings.ToLower(text("uuid")); got != device.Name {
		t.Errorf("GPU %d: uuid is %q, and the device's name %q", position, got, device.Name)
	}
	if got := text("id"); len(got) != 8 {
		t.Errorf("GPU %d: id is %q, want 8 characters", position, got)
	}
	if got := device.Capacity["memory"].Value; got.Value() != int64(hardware.Product.MemoryMiB)<<20 {
		t.Errorf("GPU %d: memory is %s, want %d MiB", position, got.String(), hardware.Product.MemoryMiB)
	}
	if got := device.Capacity["multiprocessors"].Value; got.Value() != int64(hardware.Product.Multiprocessors) {
		t.Errorf("GPU %d: multiprocessors are %s, want %d", position, got.String(), hardware.Product.Multiprocessors)
	}
}

// A node with twice the GPUs of an HGX board in one domain: more than any machine that there is a
// profile of.
func TestSixteenGPUs(t *testing.T) {
	t.Parallel()
	hardware, err := profile.Load("hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	hardware.Name = "sixteen"
	for i, gpu := range hardware.GPUs {
		gpu.BusID = strings.Replace(gpu.BusID, "0000:", "0001:", 1)
		gpu.PCIeRoot = strings.Replace(gpu.PCIeRoot, "pci0000:", "pci0001:", 1)
		gpu.Bridges = nil
		gpu.ModuleID = 0
		hardware.GPUs[i].ModuleID = 0
		hardware.GPUs = append(hardware.GPUs, gpu)
	}
	for i := range hardware.NVLink.Switches {
		hardware.NVLink.Switches[i].GPUs = nil
		for gpu := range hardware.GPUs {
			hardware.NVLink.Switches[i].GPUs = append(hardware.NVLink.Switches[i].GPUs, gpu)
		}
	}
	text, err := yaml.Marshal(hardware)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "sixteen.yaml")
	if err := os.WriteFile(path, text, 0o644); err != nil {
		t.Fatal(err)
	}

	n := newNode(t, path)
	n.running(t, plugin.Options{})
	all := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	n.wantDomains(t, all)
	c := n.gpus(t, "claim", n.devices...)
	if got := n.sees(t, n.prepare(t, c)...); len(got) != 16 {
		t.Errorf("a container with all GPUs sees %q", got)
	}
	n.unprepare(t, c)
	n.wantNothingLeft(t)
}

func TestDevicesAreContiguousByDomain(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a100-2x4")
	n.running(t, plugin.Options{})
	var names []string
	for _, device := range n.published(t) {
		names = append(names, device.Name)
	}
	if !slices.Equal(names, n.devices) {
		t.Errorf("devices are published in the order %q, want %q", names, n.devices)
	}
}

func TestFieldCase26_DomainOfAFabricSpansNodes(t *testing.T) {
	t.Parallel()
	a, b := newNode(t, "gb200-nvl72"), newNode(t, "gb200-nvl72")
	a.running(t, plugin.Options{})
	b.running(t, plugin.Options{})
	inA, inB := a.wantDomains(t, []int{0, 1, 2, 3}), b.wantDomains(t, []int{0, 1, 2, 3})
	if inA[0] != inB[0] {
		t.Errorf("two trays of a rack have the domains %q and %q", inA[0], inB[0])
	}
}

func TestLongestNodeName(t *testing.T) {
	t.Parallel()
	n := newNamedNode(t, strings.Repeat(strings.Repeat("n", 61)+".", 4)+"trail", "a100-2x4")
	n.running(t, plugin.Options{})
	for _, domain := range n.wantDomains(t, []int{0, 1, 2, 3}, []int{4, 5, 6, 7}) {
		if len(domain) > resourceapi.DeviceAttributeMaxValueLength {
			t.Errorf("domain %q has %d characters", domain, len(domain))
		}
	}
	n.wantSees(t, n.prepare(t, n.gpus(t, "claim", n.devices[1])), 1)
}

// versions are the resource versions of the node's slices by name: any write changes them.
func (n *node) versions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, slice := range n.slices(t) {
		versions[slice.Name] = slice.ResourceVersion
	}
	return versions
}

func TestFieldCase13d_SlicesAreNotRewrittenAtRestart(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"a100-2x4", "gb200-nvl72", "l40s-pcie"} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, name)
			p := n.running(t, plugin.Options{})
			before := n.versions(t)
			for range 3 {
				p.Kill()
				p = n.running(t, plugin.Options{})
				metric(t, p, atLeast(2), "switchyard_kubelet_plugin_discoveries_total", "result", "ok")
			}
			metric(t, p, equal(0), "switchyard_kubelet_plugin_resourceslice_writes_total")
			if after := n.versions(t); !maps.Equal(before, after) {
				t.Errorf("slices were %v and are %v after restarts", before, after)
			}
		})
	}
}

// taintOf waits until the taint of a device is as wanted; empty: none.
func (n *node) wantTaint(t *testing.T, position int, want string) {
	t.Helper()
	eventually(t, fmt.Sprintf("the taints of GPU %d are %q", position, want), func() error {
		devices := n.published(t)
		if len(devices) != len(n.devices) {
			return fmt.Errorf("%d devices are published, want %d at any time", len(devices), len(n.devices))
		}
		var taints []string
		for _, taint := range devices[slices.IndexFunc(devices, func(d resourceapi.Device) bool { return d.Name == n.devices[position] })].Taints {
			taints = append(taints, fmt.Sprintf("%s=%s:%s", taint.Key, taint.Value, taint.Effect))
		}
		if got := strings.Join(taints, " "); got != want {
			return fmt.Errorf("they are %q", got)
		}
		return nil
	})
}

const (
	lostTaint = "gpu.switchyard.dev/unhealthy=Lost:NoSchedule"
	// peerTaint is that of the GPUs that had NVLinks to a lost one; it keeps nobody away.
	peerTaint = "gpu.switchyard.dev/degraded=NVLinkDown:None"
)

// Field cases 20 and 21: a taint goes with its cause, and is of the one GPU.
func TestLostGPUStaysListedWithATaint(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(*simulator.Node) error{
		"fallen off the bus":  func(n *simulator.Node) error { return n.LoseGPU(2) },
		"not listed any more": func(n *simulator.Node) error { return n.RemoveGPU(2) },
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, "a100-2x4")
			p := n.running(t, plugin.Options{})
			if err := lose(n.GPUs); err != nil {
				t.Fatal(err)
			}
			n.wantTaint(t, 2, lostTaint)
			for _, position := range []int{0, 1, 3} {
				n.wantTaint(t, position, peerTaint)
			}
			for _, position := range []int{4, 5, 6, 7} {
				n.wantTaint(t, position, "")
			}
			n.wantDomains(t, []int{0, 1, 3}, []int{4, 5, 6, 7})
			metric(t, p, equal(1), "switchyard_kubelet_plugin_unhealthy_devices")

			p.Kill()
			p = n.running(t, plugin.Options{})
			n.wantTaint(t, 2, lostTaint) // remembered over a restart

			if err := n.GPUs.RecoverGPU(2); err != nil {
				t.Fatal(err)
			}
			for position := range n.devices {
				n.wantTaint(t, position, "")
			}
			n.wantDomains(t, []int{0, 1, 2, 3}, []int{4, 5, 6, 7})
			metric(t, p, equal(0), "switchyard_kubelet_plugin_unhealthy_devices")
			n.wantSees(t, n.prepare(t, n.gpus(t, "claim", n.devices[2])), 2)
		})
	}
}

func TestLostGPUIsForgottenAfterAReboot(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a100-2x4")
	p := n.running(t, plugin.Options{})
	if err := n.GPUs.RemoveGPU(2); err != nil {
		t.Fatal(err)
	}
	n.wantTaint(t, 2, lostTaint)
	p.Kill()
	if err := n.Reboot(); err != nil {
		t.Fatal(err)
	}
	n.start(t, plugin.Options{})
	eventually(t, "seven GPUs are published", func() error {
		if got := len(n.published(t)); got != 7 {
			return fmt.Errorf("%d are", got)
		}
		return nil
	})
}

func TestLinksThatGoDownChangeTheDomain(t *testing.T) {
	t.Parallel()
	n := newNode(t, "a100-2x4")
	n.running(t, plugin.Options{})
	n.wantDomains(t, []int{0, 1, 2, 3}, []int{4, 5, 6, 7})
	if err := n.GPUs.SetNVLinks(0, false); err != nil {
		t.Fatal(err)
	}
	n.wantDomains(t, []int{1, 2, 3}, []int{4, 5, 6, 7})
	if err := n.GPUs.SetNVLinks(0, true); err != nil {
		t.Fatal(err)
	}
	n.wantDomains(t, []int{0, 1, 2, 3}, []int{4, 5, 6, 7})
}

func TestFabricThatIsStillFormingIsPublishedLater(t *testing.T) {
	t.Parallel()
	n := newNode(t, "gb200-nvl72")
	state, err := n.GPUs.State()
	if err != nil {
		t.Fatal(err)
	}
	complete := *state.Fabric
	forming := complete
	forming.State = profile.FabricInProgress
	if err := n.GPUs.SetFabric(simulator.AllGPUs, forming); err != nil {
		t.Fatal(err)
	}
	n.running(t, plugin.Options{})
	n.wantDomains(t) // the GPUs are there, and none has a domain
	if err := n.GPUs.SetFabric(simulator.AllGPUs, complete); err != nil {
		t.Fatal(err)
	}
	n.wantDomains(t, []int{0, 1, 2, 3})
}
