// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	resourceapi "k8s.io/api/resource/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	utilruntime "k8s.io/apimachinery/pkg/util/runtime"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/kubernetes/scheme"
	dracel "k8s.io/dynamic-resource-allocation/cel"
	"sigs.k8s.io/yaml"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

// kinds are those of Kubernetes and ours.
var kinds = func() *runtime.Scheme {
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, apiextensionsv1.AddToScheme, v1alpha1.AddToScheme} {
		utilruntime.Must(add(kinds))
	}
	return kinds
}()

// decode reads YAML documents as the objects they claim to be. An unknown kind or field is an error, as is
// a field that is set twice.
func decode(content string) ([]runtime.Object, error) {
	decoder := serializer.NewCodecFactory(kinds, serializer.EnableStrict).UniversalDeserializer()
	documents := utilyaml.NewYAMLReader(bufio.NewReader(strings.NewReader(content)))
	var objects []runtime.Object
	for i := 1; ; i++ {
		document, err := documents.Read()
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		if isNodeConfig(document) {
			if _, err := v1alpha1.DecodeNodeConfig(document); err != nil {
				return nil, fmt.Errorf("document %d: %w", i, err)
			}
			continue
		}
		object, _, err := decoder.Decode(document, nil, nil)
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		if err := checkGang(object); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		if err := oursOf(object).check(); err != nil {
			return nil, fmt.Errorf("document %d: %w", i, err)
		}
		objects = append(objects, object)
	}
}

// isNodeConfig reports whether a document is the node plugin's configuration, which is no object of the API server.
func isNodeConfig(document []byte) bool {
	var meta metav1.TypeMeta
	return yaml.Unmarshal(document, &meta) == nil && meta.Kind == v1alpha1.NodeConfigKind
}

// checkGang checks a GangClaim as the controller does.
func checkGang(object runtime.Object) error {
	claim, ok := object.(*v1alpha1.GangClaim)
	if !ok {
		return nil
	}
	return v1alpha1.ValidateGangClaim(claim).ToAggregate()
}

// ours are the parts of an object that our driver and the scheduler read: opaque configurations and CEL
// selectors.
type ours struct {
	configs   []resourceapi.DeviceConfiguration
	selectors []resourceapi.DeviceSelector
	// ofPartitions are the selectors of requests whose class has let nothing but partitions through.
	ofPartitions []resourceapi.DeviceSelector
	// devices are some that the selectors must be able to judge.
	devices []dracel.Device
}

func oursOf(object runtime.Object) ours {
	found := ours{devices: []dracel.Device{bareGPU}}
	add := func(class string, selectors []resourceapi.DeviceSelector) {
		if class == "mig.gpu.switchyard.dev" {
			found.ofPartitions = append(found.ofPartitions, selectors...)
		} else {
			found.selectors = append(found.selectors, selectors...)
		}
	}
	claim := func(spec resourceapi.DeviceClaim) {
		for _, config := range spec.Config {
			found.configs = append(found.configs, config.DeviceConfiguration)
		}
		for _, request := range spec.Requests {
			if request.Exactly != nil {
				add(request.Exactly.DeviceClassName, request.Exactly.Selectors)
			}
			for _, alternative := range request.FirstAvailable {
				add(alternative.DeviceClassName, alternative.Selectors)
			}
		}
	}
	switch o := object.(type) {
	case *resourceapi.DeviceClass:
		for _, config := range o.Spec.Config {
			found.configs = append(found.configs, config.DeviceConfiguration)
		}
		found.selectors = o.Spec.Selectors
		// A class sees the devices of all drivers; a claim's selectors those that its class has let through.
		found.devices = append(found.devices, dracel.Device{Driver: "nic.example.com"})
	case *v1alpha1.GangClaim:
		found.selectors = o.Spec.Selectors
	case *resourceapi.ResourceClaim:
		claim(o.Spec.Devices)
	case *resourceapi.ResourceClaimTemplate:
		claim(o.Spec.Spec.Devices)
	}
	return found
}

// check decodes configurations as the driver does, and evaluates selectors as the scheduler does: one that
// fails on any device fails the pod.
func (o ours) check() error {
	for _, config := range o.configs {
		if config.Opaque == nil || config.Opaque.Driver != v1alpha1.DriverName {
			continue
		}
		if _, err := v1alpha1.Decode(config.Opaque.Parameters.Raw); err != nil {
			return err
		}
	}
	for _, selector := range o.selectors {
		for _, d := range o.devices {
			if _, err := matches(selector.CEL.Expression, d); err != nil {
				return err
			}
		}
	}
	for _, selector := range o.ofPartitions {
		if _, err := matches(selector.CEL.Expression, barePartition()); err != nil {
			return err
		}
	}
	return nil
}

var manifestFolders = []string{"deployments/manifests", "deployments/mps", "test/manifests", "demo/manifests"}

func TestManifestsAreWhatTheySay(t *testing.T) {
	for _, file := range files(t, []string{".yaml"}, manifestFolders...) {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		if _, err := decode(patchDirective.ReplaceAllString(read(t, file), "")); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// patchDirective is a line of a strategic merge patch that is no field of an object.
var patchDirective = regexp.MustCompile(`(?m)^ *\$patch: (delete|replace)\n`)

// example is a block of YAML in Markdown.
var example = regexp.MustCompile("(?s)```yaml\n(.*?)```")

func TestExamplesInDocumentationAreWhatTheySay(t *testing.T) {
	checked := 0
	for _, file := range files(t, []string{".md"}) {
		for _, match := range example.FindAllStringSubmatch(read(t, file), -1) {
			if !strings.Contains(match[1], "apiVersion: ") {
				continue // a fragment
			}
			checked++
			if _, err := decode(match[1]); err != nil {
				t.Errorf("%s: %v in\n%s", file, err, match[1])
			}
		}
	}
	if checked == 0 {
		t.Error("no example found: the check checked nothing")
	}
}

func TestDecodeRefusesWhatKubernetesWouldDrop(t *testing.T) {
	tests := map[string]struct{ content, want string }{
		"an unknown field": {"apiVersion: v1\nkind: Namespace\nmetadata: {name: a}\nspecs: {}", `unknown field "specs"`},
		"an unknown kind":  {"apiVersion: v1\nkind: Namespaze\nmetadata: {name: a}", "no kind"},
		"a field twice":    {"apiVersion: v1\nkind: Namespace\nmetadata: {name: a, name: b}", "already set"},
		"a fault in a GangClaim": {"apiVersion: switchyard.dev/v1alpha1\nkind: GangClaim\nmetadata: {name: a}\n" +
			"spec: {members: 2, devicesPerMember: 4, tolerations: [{operator: Exists}]}", "spec.tolerations[0].key"},
		"an unknown field in our own configuration": {"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\n" +
			"spec: {config: [{opaque: {driver: gpu.switchyard.dev, parameters: {apiVersion: switchyard.dev/v1alpha1, kind: GPUConfig, sharring: {}}}}]}", "sharring"},
		"a fault in a node configuration": {"apiVersion: switchyard.dev/v1alpha1\nkind: NodeConfig\nshares: [{gpus: all}]", "shares[0].maxClaims"},
		"a selector of partitions that fails on one": {"apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: a}\n" +
			`spec: {devices: {requests: [{name: a, exactly: {deviceClassName: mig.gpu.switchyard.dev, selectors: [{cel: {expression: 'device.attributes["gpu.switchyard.dev"].index == 0'}}]}}]}}`, "no such key"},
		"a selector that fails on a device without the attribute": {"apiVersion: resource.k8s.io/v1\nkind: DeviceClass\nmetadata: {name: a}\n" +
			`spec: {selectors: [{cel: {expression: 'device.attributes["gpu.switchyard.dev"].nvswitchDomain == "a"'}}]}`, "no such key"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := decode(test.content); err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want one with %q", err, test.want)
			}
		})
	}
}

func TestKustomizationsListEveryManifest(t *testing.T) {
	for _, file := range files(t, []string{".yaml"}, manifestFolders...) {
		if filepath.Base(file) != "kustomization.yaml" {
			continue
		}
		var kustomization struct {
			Resources          []string
			Patches            []struct{ Path string }
			ConfigMapGenerator []struct{ Files []string }
		}
		if err := yaml.Unmarshal([]byte(read(t, file)), &kustomization); err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		listed := slices.Clone(kustomization.Resources)
		for _, patch := range kustomization.Patches {
			listed = append(listed, patch.Path)
		}
		for _, generator := range kustomization.ConfigMapGenerator {
			listed = append(listed, generator.Files...)
		}
		entries, err := os.ReadDir(filepath.Join(root, filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		for _, entry := range entries {
			if name := entry.Name(); name != "kustomization.yaml" && !entry.IsDir() && !slices.Contains(listed, name) {
				t.Errorf("%s does not list %s", file, name)
			}
		}
		for _, name := range listed {
			if _, err := os.Stat(filepath.Join(root, filepath.Dir(file), name)); name != "" && err != nil {
				t.Errorf("%s lists %s: %v", file, name, err)
			}
		}
	}
}

// object returns an object of the manifests, by its type and name.
func object[T runtime.Object](t *testing.T, name string) T {
	t.Helper()
	for _, file := range files(t, []string{".yaml"}, "deployments/manifests") {
		if filepath.Base(file) == "kustomization.yaml" {
			continue
		}
		objects, err := decode(read(t, file))
		if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		for _, o := range objects {
			typed, ok := o.(T)
			if !ok {
				continue
			}
			if accessor, err := meta.Accessor(o); err == nil && accessor.GetName() == name {
				return typed
			}
		}
	}
	var none T
	t.Fatalf("the manifests have no %T %s", none, name)
	return none
}

// A policy that names another service account than the DaemonSet uses would hold nobody back.
func TestNodePolicyBindsTheServiceAccountOfTheDaemonSet(t *testing.T) {
	const name = "switchyard-kubelet-plugin-resourceslices"
	daemonSet := object[*appsv1.DaemonSet](t, "switchyard-kubelet-plugin")
	policy := object[*admissionv1.ValidatingAdmissionPolicy](t, name)
	binding := object[*admissionv1.ValidatingAdmissionPolicyBinding](t, name)

	account := fmt.Sprintf("%q", "system:serviceaccount:"+daemonSet.Namespace+":"+daemonSet.Spec.Template.Spec.ServiceAccountName)
	if condition := policy.Spec.MatchConditions[0].Expression; !strings.Contains(condition, account) {
		t.Errorf("the policy applies to %s, the DaemonSet runs as %s", condition, account)
	}
	if binding.Spec.PolicyName != policy.Name {
		t.Errorf("the binding names policy %s, want %s", binding.Spec.PolicyName, policy.Name)
	}
}

// An attribute that the policy does not know could be published with any type.
func TestNodePolicyKnowsTheTypeOfEachAttribute(t *testing.T) {
	policy := object[*admissionv1.ValidatingAdmissionPolicy](t, "switchyard-kubelet-plugin-resourceslices")
	got := map[string][]string{}
	for _, v := range policy.Spec.Variables {
		if strings.HasPrefix(v.Expression, "[") {
			for _, name := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(v.Expression, -1) {
				got[v.Name] = append(got[v.Name], name[1])
			}
			slices.Sort(got[v.Name])
		}
	}
	variables := map[string]string{"string": "strings", "int": "integers", "bool": "booleans", "version": "versions"}
	want := map[string][]string{}
	for _, f := range slices.Concat(resourcemodel.AttributeTable(), resourcemodel.SteeringAttributeTable(),
		resourcemodel.PartitionAttributeTable(), resourcemodel.ShareAttributeTable()) {
		want[variables[f.Type]] = append(want[variables[f.Type]], string(f.Name))
	}
	for name, list := range want {
		slices.Sort(list)
		want[name] = slices.Compact(list)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the policy has the types %v, want %v", got, want)
	}
}
