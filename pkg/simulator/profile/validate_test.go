// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package profile

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// valid is a profile with everything in it, as text that the tests damage.
const valid = `
name: test
driver: {version: "580.105.08", cudaVersion: "13.0"}
product:
  name: NVIDIA Test
  brand: NVIDIA
  architecture: Hopper
  computeCapability: "9.0"
  memoryMiB: 1024
  multiprocessors: 10
  coresPerMultiprocessor: 128
  pciDeviceID: "0x233010DE"
  pcie: {generation: 5, width: 16}
  mig:
    maxInstances: 7
    computeSlices: 3
    memorySlices: 4
    engines: {copy: 3, jpeg: 1}
    profiles:
    - {name: 1g.1gb, kind: 1_SLICE, id: 19, max: 3, slices: 1, memoryMiB: 256, sm: 3, copy: 1, starts: [0, 1, 2], size: 1}
    - {name: 3g.1gb, kind: 3_SLICE, id: 9, max: 1, slices: 3, memoryMiB: 1024, sm: 10, copy: 3, jpeg: 1, starts: [0], size: 4}
gpus:
- {busID: "0000:10:00.0", pcieRoot: "pci0000:0f", bridges: ["0000:0f:01.0"], numaNode: 0, moduleID: 1}
- {busID: "0000:20:00.0", pcieRoot: "pci0000:1f", bridges: ["0000:1f:01.0"], numaNode: 1, moduleID: 2}
nvlink:
  version: 4
  linksPerGPU: 6
  switches:
  - {busID: "0000:05:00.0", gpus: [0, 1], links: 2}
  peers:
  - {gpus: [0, 1], links: 4}
fabric: {state: Completed, clusterUUID: "00000000-0000-0000-0000-000000000000", cliqueID: 0}
`

func TestParseNamesTheFieldThatIsWrong(t *testing.T) {
	if _, err := Parse([]byte(valid)); err != nil {
		t.Fatalf("the profile that the cases damage: %v", err)
	}
	cases := map[string]struct{ old, new, want string }{
		"unknown field":            {"brand: NVIDIA", "colour: green", `unknown field "product.colour"`},
		"repeated field":           {"brand: NVIDIA", "brand: NVIDIA\n  brand: Tesla", `"brand" already set`},
		"second document":          {"cliqueID: 0}", "cliqueID: 0}\n---\nname: other", "one document"},
		"text for a number":        {"memoryMiB: 1024", "memoryMiB: much", "product.memoryMiB"},
		"name":                     {"name: test", "name: Test!", "name: Invalid value"},
		"driver version":           {"580.105.08", "latest", "driver.version"},
		"CUDA version":             {`cudaVersion: "13.0"`, `cudaVersion: "13"`, "driver.cudaVersion"},
		"no product name":          {"name: NVIDIA Test", `name: ""`, "product.name: Required"},
		"long product name":        {"name: NVIDIA Test", "name: " + strings.Repeat("x", 96), "product.name: Too long"},
		"brand":                    {"brand: NVIDIA", "brand: Acme", `product.brand: Unsupported value: "Acme"`},
		"architecture":             {"Hopper", "Gothic", "product.architecture"},
		"compute capability":       {`"9.0"`, `"nine"`, "product.computeCapability"},
		"no memory":                {"memoryMiB: 1024", "memoryMiB: 0", "product.memoryMiB"},
		"reserved memory":          {"memoryMiB: 1024", "memoryMiB: 1024\n  reservedMiB: 2048", "product.reservedMiB"},
		"multiprocessors":          {"multiprocessors: 10", "multiprocessors: 0", "product.multiprocessors"},
		"PCI id":                   {`"0x233010DE"`, `"H100"`, `PCI id "H100" is not a 32-bit number`},
		"no PCI id":                {`  pciDeviceID: "0x233010DE"` + "\n", "", "product.pciDeviceID: Required"},
		"PCIe":                     {"generation: 5", "generation: 0", "product.pcie.generation"},
		"MIG":                      {"maxInstances: 7", "maxInstances: 0", "product.mig.maxInstances"},
		"MIG compute slices":       {"computeSlices: 3", "computeSlices: 9", "product.mig.computeSlices"},
		"MIG memory slices":        {"memorySlices: 4", "memorySlices: 0", "product.mig.memorySlices"},
		"MIG profile name":         {"name: 1g.1gb", `name: ""`, "product.mig.profiles[0].name: Required"},
		"MIG profile name twice":   {"name: 3g.1gb", "name: 1g.1gb", "product.mig.profiles[1].name: Duplicate"},
		"MIG profile ID twice":     {"id: 9", "id: 19", "product.mig.profiles[1].id: Duplicate"},
		"MIG profile kind":         {"3_SLICE", "5_SLICE", "product.mig.profiles[1].kind: Unsupported"},
		"MIG profile kind twice":   {"3_SLICE", "1_SLICE", "product.mig.profiles[1].kind: Duplicate"},
		"MIG profile max":          {"max: 3", "max: 0", "product.mig.profiles[0].max"},
		"MIG profile slices":       {"slices: 3", "slices: 4", "product.mig.profiles[1].slices"},
		"MIG profile memory":       {"memoryMiB: 256", "memoryMiB: 0", "product.mig.profiles[0].memoryMiB: Required"},
		"MIG profile SM":           {"sm: 3", "sm: 0", "product.mig.profiles[0].sm"},
		"MIG profile engines":      {"copy: 3, jpeg: 1, starts", "copy: 3, jpeg: 2, starts", "product.mig.profiles[1].jpeg: Invalid value: 2: must be between 0 and the 1 of the whole GPU"},
		"MIG placement size":       {"size: 4", "size: 0", "product.mig.profiles[1].size"},
		"no MIG placement":         {"starts: [0]", "starts: []", "product.mig.profiles[1].starts: Required"},
		"MIG placement too far":    {"starts: [0, 1, 2]", "starts: [0, 1, 4]", "product.mig.profiles[0].starts[2]: Invalid value: 4: ends behind the last of 4"},
		"MIG placement order":      {"starts: [0, 1, 2]", "starts: [0, 2, 1]", "product.mig.profiles[0].starts[2]: Invalid value: 1: must be in ascending order"},
		"PCI address":              {"0000:20:00.0", "20:00.0", "gpus[1].busID"},
		"PCI address in capitals":  {"0000:10:00.0", "0000:1A:00.0", "gpus[0].busID"},
		"two GPUs at an address":   {"0000:20:00.0", "0000:10:00.0", "gpus[1].busID: Duplicate"},
		"order of GPUs":            {"0000:20:00.0", "0000:01:00.0", "gpus[1].busID: Invalid value: \"0000:01:00.0\": GPUs must be in the order"},
		"root complex":             {"pci0000:0f", "0000:0f", "gpus[0].pcieRoot"},
		"bridge":                   {`["0000:0f:01.0"]`, `["switch"]`, "gpus[0].bridges[0]"},
		"bridge in two places":     {"0000:1f:01.0", "0000:0f:01.0", `gpus[1].bridges[0]: Invalid value: "0000:0f:01.0": hangs off pci0000:0f`},
		"bridge that is a GPU":     {"0000:1f:01.0", "0000:10:00.0", "gpus[1].bridges[0]: Invalid value: \"0000:10:00.0\": is the address of a GPU"},
		"NUMA node":                {"numaNode: 1", "numaNode: -1", "gpus[1].numaNode"},
		"two modules of a number":  {"moduleID: 2", "moduleID: 1", "gpus[1].moduleID: Duplicate"},
		"NVLink version":           {"version: 4", "version: 0", "nvlink.version"},
		"too many links":           {"linksPerGPU: 6", "linksPerGPU: 5", "nvlink.peers[0].gpus[0]: Invalid value: 0: has more links than linksPerGPU"},
		"remotes":                  {"linksPerGPU: 6", "linksPerGPU: 6\n  remotes: foggy", "nvlink.remotes"},
		"switch at a GPU":          {"0000:05:00.0", "0000:20:00.0", "nvlink.switches[0].busID: Duplicate"},
		"switch of no GPU":         {"gpus: [0, 1], links: 2", "gpus: [], links: 2", "nvlink.switches[0].gpus: Required"},
		"switch of unknown GPU":    {"gpus: [0, 1], links: 2", "gpus: [0, 2], links: 2", "nvlink.switches[0].gpus[1]: Invalid value: 2: is not the index of a GPU"},
		"switch of one GPU twice":  {"gpus: [0, 1], links: 2", "gpus: [0, 0], links: 2", "nvlink.switches[0].gpus[1]: Duplicate"},
		"switch without links":     {"gpus: [0, 1], links: 2", "gpus: [0, 1], links: 0", "nvlink.switches[0].links"},
		"peers out of order":       {"gpus: [0, 1], links: 4", "gpus: [1, 0], links: 4", "nvlink.peers[0].gpus"},
		"peers twice":              {"- {gpus: [0, 1], links: 4}", "- {gpus: [0, 1], links: 1}\n  - {gpus: [0, 1], links: 1}", "nvlink.peers[1].gpus: Duplicate"},
		"fabric state":             {"state: Completed", "state: Done", "fabric.state"},
		"cluster UUID":             {"00000000-0000-0000-0000-000000000000", "rack-1", "fabric.clusterUUID"},
		"cluster UUID with braces": {`"00000000-0000-0000-0000-000000000000"`, `"{00000000-0000-0000-0000-000000000000}"`, "fabric.clusterUUID"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			text := strings.Replace(valid, c.old, c.new, 1)
			if text == valid {
				t.Fatal("the case changes nothing")
			}
			if _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want an error with %q", err, c.want)
			}
		})
	}
}

func TestParseRefusesNothing(t *testing.T) {
	for name, text := range map[string]string{"an empty file": "", "blanks": " \n", "comments": "# GPUs of the lab\n---\n", "no GPUs": "name: test\n"} {
		if _, err := Parse([]byte(text)); err == nil {
			t.Errorf("%s is a profile", name)
		}
	}
}

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mine.yaml")
	if err := os.WriteFile(file, []byte(valid), 0o600); err != nil {
		t.Fatal(err)
	}
	cases := map[string]struct{ argument, name, err string }{
		"an embedded profile": {"t4", "t4", ""},
		"a file":              {file, "test", ""},
		"no such profile":     {"h100", "", `no profile is called "h100"; there are a100-2x4,`},
		"no such file":        {filepath.Join(dir, "none.yaml"), "", "no such file"},
		"a file without a /":  {"none.yaml", "", "no such file"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			p, err := Load(c.argument)
			if c.err == "" && err != nil || c.err != "" && (err == nil || !strings.Contains(err.Error(), c.err)) {
				t.Fatalf("got %v, want %q", err, c.err)
			}
			if p.Name != c.name {
				t.Errorf("got profile %q", p.Name)
			}
		})
	}
}

func TestMarshalIsReadBack(t *testing.T) {
	for _, name := range Names() {
		p, err := Load(name)
		if err != nil {
			t.Fatal(err)
		}
		text, err := Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		again, err := Parse(text)
		if err != nil {
			t.Fatalf("%s: %v\n%s", name, err, text)
		}
		if diff := cmp.Diff(p, again); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

func TestLinksAreNumberedAtBothEnds(t *testing.T) {
	p, err := Parse([]byte(valid))
	if err != nil {
		t.Fatal(err)
	}
	p.NVLink.LinksPerGPU = 7
	want := make(LinkTable, 2)
	for gpu, other := range []int{1, 0} {
		want[gpu] = []LinkEnd{
			{Kind: EndSwitch},
			{Kind: EndSwitch},
			{Kind: EndGPU, GPU: other, Link: 2},
			{Kind: EndGPU, GPU: other, Link: 3},
			{Kind: EndGPU, GPU: other, Link: 4},
			{Kind: EndGPU, GPU: other, Link: 5},
			{}, // goes nowhere
		}
	}
	if diff := cmp.Diff(want, p.Links()); diff != "" {
		t.Error(diff)
	}
	for gpu, links := range p.Links() {
		for link, end := range links {
			if end.Kind != EndGPU {
				continue
			}
			if back := p.Links()[end.GPU][end.Link]; back.GPU != gpu || back.Link != link {
				t.Errorf("link %d of GPU %d leads to link %d of GPU %d, which leads to link %d of GPU %d", link, gpu, end.Link, end.GPU, back.Link, back.GPU)
			}
		}
	}
}
