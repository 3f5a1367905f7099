// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/device"
	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
	"github.com/switchyard-dev/switchyard/test/harness/fleet"
)

// troubled is the journey's cluster with a GPU that is sick and a domain that is planned for a gang.
func troubled(t *testing.T) testCluster {
	t.Helper()
	c := journey(t)
	planned := waitingGang("soon", 1, 2)
	claim, ok := planned[0].(*v1alpha1.GangClaim)
	if !ok {
		t.Fatal("no gang")
	}
	claim.Status.Plan = &v1alpha1.GangPlan{Members: 1, Step: v1alpha1.StepQuiescing, Placements: []v1alpha1.GangPlacement{{
		Node: "node-a", Pool: "node-a", Domain: "node-a.0", Members: 1,
		Devices: []v1alpha1.GangDevice{{Name: deviceAt(t, c, "node-a", 4)}, {Name: deviceAt(t, c, "node-a", 5)}},
	}}}
	rule := func(name, device string, taint resourceapi.DeviceTaint) *resourceapi.DeviceTaintRule {
		return &resourceapi.DeviceTaintRule{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: resourceapi.DeviceTaintRuleSpec{
				DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(v1alpha1.DriverName), Pool: ptr.To("node-b"), Device: &device}, Taint: taint,
			},
		}
	}
	return c.with(planned...).with(
		rule("repair", deviceAt(t, c, "node-b", 7), resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNoExecute}),
		rule("fence", deviceAt(t, c, "node-b", 5), resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "uid-soon", Effect: resourceapi.DeviceTaintEffectNoSchedule}),
		rule("over", deviceAt(t, c, "node-b", 4), resourceapi.DeviceTaint{Key: v1alpha1.ReservedTaintKey, Value: "uid-soon", Effect: resourceapi.DeviceTaintEffectNone}),
	)
}

func TestTopologyOutput(t *testing.T) {
	c := journey(t)
	for file, args := range map[string][]string{
		"topology.txt":            {"topology"},
		"topology-node.txt":       {"topology", "node-b"},
		"topology-node-wide.txt":  {"topology", "node-b", "-o", "wide"},
		"topology-no-headers.txt": {"topology", "node-b", "--no-headers"},
		"topology-node.json":      {"topology", "node-b", "-o", "json"},
		"topology-node.yaml":      {"topology", "node-b", "-o", "yaml"},
	} {
		t.Run(file, func(t *testing.T) { c.golden(t, file, args...) })
	}
}

func TestTopologyShowsWhatKeepsDevicesFromClaims(t *testing.T) {
	troubled(t).golden(t, "topology-troubled.txt", "topology")
}

func TestTopologyOfOtherNodes(t *testing.T) {
	for file, hardware := range map[string]string{"topology-t4.txt": "t4", "topology-nvl72.txt": "gb200-nvl72", "topology-pairs.txt": "a100-pcie-pairs"} {
		t.Run(hardware, func(t *testing.T) { gpuNode(t, "node", hardware).golden(t, file, "topology", "node") })
	}
}

// GPU 5 is lost: it is shown where it was, and the domain has the other seven.
func TestTopologyOfALostGPU(t *testing.T) {
	inventory, err := fleet.Inventory(t.Context(), "node", "hgx-h100")
	if err != nil {
		t.Fatal(err)
	}
	seen := inventory
	seen.GPUs = nil
	for _, gpu := range inventory.GPUs {
		if gpu.NVSwitchDomainSize--; gpu.Index != 5 {
			seen.GPUs = append(seen.GPUs, gpu)
		}
	}
	c := gpuNode(t, "node", "")
	for _, slice := range fleet.Slices(device.Merge(inventory, seen)) {
		c = append(c, &slice)
	}
	c.golden(t, "topology-lost.txt", "topology")
	c.golden(t, "topology-lost.json", "topology", "-o", "json")
}

func TestHelpOfTopologyHasEachSymbol(t *testing.T) {
	t.Setenv("NO_COLOR", "1")
	help := newTopology(newKubeconfig()).Long
	for _, state := range []string{stateFree, stateInUse, stateReserved, stateShared, stateTainted} {
		if symbol := (&gpuView{State: state}).symbol(); !strings.Contains(help, symbol+" ") {
			t.Errorf("the help does not say what %s is (%s):\n%s", symbol, state, help)
		}
	}
}

func TestTopologyIsPlainTextInAFile(t *testing.T) {
	out, _, err := journey(t).run(t, "topology", "node-b", "-o", "wide")
	if err != nil || strings.Contains(out, "\x1b") {
		t.Errorf("got %v and %q", err, out)
	}
}

// What slices say of the connections agrees with nvidia-smi topo -m, or says less, and never more. How many NVLinks there are is
// known but where the peers differ.
func TestLinksAgreeWithNvidiaSMI(t *testing.T) {
	for _, name := range profile.Names() {
		t.Run(name, func(t *testing.T) {
			hardware, err := profile.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			out, _, err := gpuNode(t, "node", name).run(t, "topology", "node", "-o", "json")
			if err != nil {
				t.Fatal(err)
			}
			var got topologyView
			if err := json.Unmarshal([]byte(out), &got); err != nil {
				t.Fatal(err)
			}
			for i, row := range got.Nodes[0].Links {
				for j, cell := range row {
					nvlinks, far := sharedLinks(hardware, i, j), hardware.Distance(i, j).String()
					switch exact := fmt.Sprintf("NV%d", nvlinks); {
					case i == j && cell == "X":
					case nvlinks > 0 && (cell == exact || cell == "NVL" && name == "dgx1-v100"):
					case cell == "PHB" && (far == "PIX" || far == "PXB"): // nearer than it says
					case cell != far:
						t.Errorf("GPU%d and GPU%d have %d NVLinks and are at %s, got %s", i, j, nvlinks, far, cell)
					}
				}
			}
		})
	}
}

// sharedLinks is how many NVLinks nvidia-smi counts between two GPUs.
func sharedLinks(hardware profile.Profile, i, j int) int {
	links := hardware.Links()
	if links == nil {
		return 0
	}
	direct, switched := 0, 0
	for _, end := range links[i] {
		switch {
		case end.Kind == profile.EndGPU && end.GPU == j:
			direct++
		case end.Kind == profile.EndSwitch && slices.ContainsFunc(links[j], func(e profile.LinkEnd) bool { return e.Kind == profile.EndSwitch && e.Switch == end.Switch }):
			switched++
		}
	}
	return max(direct, switched)
}

func TestTopologyErrors(t *testing.T) {
	mustFail(t, journey(t).connection(t, interceptor.Funcs{}), `node "node-c" publishes no GPU of driver gpu.switchyard.dev: nodes that do are node-a, node-b`, "topology", "node-c")
	empty := gpuNode(t, "cpu", "")
	for _, command := range []string{"topology", "fragmentation"} {
		mustFail(t, empty.connection(t, interceptor.Funcs{}), "no ResourceSlice of driver gpu.switchyard.dev lists a GPU: the node plugin has to run", command)
	}
	mustFail(t, empty.connection(t, interceptor.Funcs{}), `--output "dot" is unknown`, "topology", "-o", "dot")
	mustFail(t, empty.connection(t, interceptor.Funcs{}), "accepts at most 1 arg", "topology", "a", "b")
}

// failing makes a list of one kind fail.
func failing[L client.ObjectList](err error) interceptor.Funcs {
	return interceptor.Funcs{List: func(ctx context.Context, c client.WithWatch, list client.ObjectList, options ...client.ListOption) error {
		if _, is := list.(L); is {
			return err
		}
		return c.List(ctx, list, options...)
	}}
}

func TestWhatCannotBeReadIsNamed(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Group: "resource.k8s.io", Resource: "resourceslices"}, "", nil)
	unknown := &meta.NoKindMatchError{GroupKind: schema.GroupKind{Group: "switchyard.dev", Kind: "GangClaim"}, SearchedVersions: []string{"v1alpha1"}}
	c := journey(t)
	t.Run("a right", func(t *testing.T) {
		mustFail(t, c.connection(t, failing[*resourceapi.ResourceSliceList](forbidden)),
			`list resourceslices.resource.k8s.io in all namespaces: the right is missing; it takes a role with verb "list" on "resourceslices.resource.k8s.io"`, "topology")
	})
	t.Run("a right in a namespace", func(t *testing.T) {
		mustFail(t, c.connection(t, failing[*v1alpha1.GangClaimList](forbidden)), "list gangclaims.switchyard.dev in namespace ml: the right is missing", "gangs")
	})
	t.Run("GangClaims are not installed", func(t *testing.T) {
		mustFail(t, c.connection(t, failing[*v1alpha1.GangClaimList](unknown)), "install Switchyard's controller", "gangs")
	})
	t.Run("GangClaims are not installed, and not needed", func(t *testing.T) {
		if _, _, err := runOn(t, c.connection(t, failing[*v1alpha1.GangClaimList](unknown)), "topology"); err != nil {
			t.Error(err)
		}
	})
	t.Run("Kubernetes without DRA", func(t *testing.T) {
		mustFail(t, c.connection(t, failing[*resourceapi.ResourceClaimList](unknown)), "Switchyard needs Kubernetes 1.37", "fragmentation")
	})
}

func TestAPoolThatIsBeingUpdated(t *testing.T) {
	c := gpuNode(t, "node", "hgx-h100")
	for _, o := range c {
		if slice, is := o.(*resourceapi.ResourceSlice); is {
			slice.Spec.Pool.ResourceSliceCount = 5
		}
	}
	out, _, err := c.run(t, "topology")
	if err != nil || !strings.Contains(out, "slices are being updated") {
		t.Errorf("got %v and %q", err, out)
	}
}

func TestRanges(t *testing.T) {
	for want, numbers := range map[string][]int64{"0-3": {0, 1, 2, 3}, "0,2": {2, 0}, "1-2,5": {1, 2, 5}, "": {}} {
		if got := ranges(numbers); got != want {
			t.Errorf("%v: got %q, want %q", numbers, got, want)
		}
	}
}

func TestColoursAreForTerminals(t *testing.T) {
	t.Setenv("TERM", "xterm-256color")
	t.Setenv("CLICOLOR_FORCE", "1") // as if it were one
	for name, tc := range map[string]struct {
		noColor string
		want    bool
	}{"on a terminal": {"", true}, "with NO_COLOR": {"1", false}} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("NO_COLOR", tc.noColor)
			out, _, err := journey(t).run(t, "topology", "node-b")
			if err != nil || strings.Contains(out, "\x1b[33m■") != tc.want {
				t.Errorf("got %v and %q", err, out)
			}
		})
	}
}

// A GPU of which a partition is in use is in use, and says which.
func TestTopologyNamesPartitions(t *testing.T) {
	c := gpuNode(t, "node", "hgx-h100")
	for _, o := range c {
		slice, is := o.(*resourceapi.ResourceSlice)
		if !is {
			continue
		}
		slice.Spec.Devices = append(slice.Spec.Devices[:2:2], resourceapi.Device{Name: "mig-1", Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{
			"type": {StringValue: ptr.To("mig")}, "parentUUID": slice.Spec.Devices[0].Attributes["uuid"], "profile": {StringValue: ptr.To("1g.10gb")},
		}})
		break
	}
	claim := claimOf(pendingPod("ml", "small", "x"), 1, "")
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{
		{Request: "gpu", Driver: v1alpha1.DriverName, Pool: "node", Device: "mig-1"},
	}}}
	out, _, err := c.with(claim).run(t, "topology")
	if err != nil || !strings.Contains(out, "■ □") || !strings.Contains(out, "(0: claim ml/small-gpus 1g.10gb)") {
		t.Errorf("got %v and %q", err, out)
	}
}

// A GPU for shares is no free GPU, whether or not somebody has a share, and says how large the shares are.
func TestTopologyNamesShares(t *testing.T) {
	c := gpuNode(t, "node", "hgx-h100")
	for _, o := range c {
		if slice, is := o.(*resourceapi.ResourceSlice); is {
			for i := range 2 {
				slice.Spec.Devices[i].Attributes["type"] = resourceapi.DeviceAttribute{StringValue: ptr.To("share")}
				slice.Spec.Devices[i].AllowMultipleAllocations = ptr.To(true)
			}
			break
		}
	}
	var claims []client.Object
	for i, memory := range []string{"10Gi", "20Gi"} {
		claim := claimOf(pendingPod("ml", fmt.Sprintf("small-%d", i), "x"), 1, "")
		claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{Results: []resourceapi.DeviceRequestAllocationResult{{
			Request: "gpu", Driver: v1alpha1.DriverName, Pool: "node", Device: deviceAt(t, c, "node", 0), ShareID: ptr.To(types.UID(memory)),
			ConsumedCapacity: map[resourceapi.QualifiedName]resource.Quantity{"memory": resource.MustParse(memory)},
		}}}}
		claims = append(claims, claim)
	}
	out, _, err := c.with(claims...).run(t, "topology")
	if err != nil || !strings.Contains(out, "■ ◫ □") || !strings.Contains(out, "6 of 8 free") || !strings.Contains(out, "(0: claim ml/small-0-gpus share of 10Gi, claim ml/small-1-gpus share of 20Gi)") {
		t.Errorf("got %v and %q", err, out)
	}
	out, _, err = c.with(claims...).run(t, "fragmentation", "--sizes", "8")
	if err != nil || !strings.Contains(out, "free 6 of 8 GPUs (1 more tainted, reserved or for shares); whole domains 0 of 1") {
		t.Errorf("got %v and %q", err, out)
	}
}
