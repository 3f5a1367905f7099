// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/restmapper"
)

// fieldManager owns the fields of applied objects.
const fieldManager = "switchyard-test"

// Apply applies all objects of the manifests (*.yaml) in a directory, as kubectl apply -f does.
// Namespaces come first. Fields that the API server does not know are an error. Kustomizations are no
// objects and are left out.
func (cp *ControlPlane) Apply(ctx context.Context, dir string) error {
	objects, err := readManifests(dir)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(cp.admin)
	if err != nil {
		return fmt.Errorf("apply manifests in %s: %w", dir, err)
	}
	groups, err := restmapper.GetAPIGroupResources(cp.client.Discovery())
	if err != nil {
		return fmt.Errorf("apply manifests in %s: %w", dir, err)
	}
	mapper := restmapper.NewDiscoveryRESTMapper(groups)
	for _, object := range objects {
		kind := object.GroupVersionKind()
		mapping, err := mapper.RESTMapping(kind.GroupKind(), kind.Version)
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		// An empty namespace makes the request one for a cluster-wide object.
		resource := client.Resource(mapping.Resource).Namespace(object.GetNamespace())
		data, err := object.MarshalJSON()
		if err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
		if _, err := resource.Patch(ctx, object.GetName(), "application/apply-patch+yaml", data, metav1.PatchOptions{
			FieldManager:    fieldManager,
			FieldValidation: metav1.FieldValidationStrict,
		}); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	for _, object := range objects {
		if object.GetKind() == "CustomResourceDefinition" {
			if err := served(ctx, client, object); err != nil {
				return err
			}
		}
	}
	return nil
}

// served waits until the API server serves what a CustomResourceDefinition defines, a moment after it was written.
func served(ctx context.Context, client dynamic.Interface, definition *unstructured.Unstructured) error {
	group, _, _ := unstructured.NestedString(definition.Object, "spec", "group")
	plural, _, _ := unstructured.NestedString(definition.Object, "spec", "names", "plural")
	versions, _, _ := unstructured.NestedSlice(definition.Object, "spec", "versions")
	for _, version := range versions {
		name, _, _ := unstructured.NestedString(version.(map[string]any), "name")
		resource := client.Resource(schema.GroupVersionResource{Group: group, Version: name, Resource: plural})
		var last error
		if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
			_, last = resource.List(ctx, metav1.ListOptions{})
			return last == nil, nil
		}); err != nil {
			return fmt.Errorf("wait until %s %s is served: %w", definition.GetName(), name, errors.Join(err, last))
		}
	}
	return nil
}

func readManifests(dir string) ([]*unstructured.Unstructured, error) {
	files, err := filepath.Glob(filepath.Join(dir, "*.yaml"))
	if err != nil || len(files) == 0 {
		return nil, errors.Join(fmt.Errorf("no manifests (*.yaml) in %s", dir), err)
	}
	var objects []*unstructured.Unstructured
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return nil, fmt.Errorf("read manifest: %w", err)
		}
		defer file.Close()
		decoder := yaml.NewYAMLOrJSONDecoder(file, 4096)
		for {
			object := &unstructured.Unstructured{}
			if err := decoder.Decode(object); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				return nil, fmt.Errorf("read manifest %s: %w", path, err)
			}
			if object.GetKind() != "" && object.GetAPIVersion() != "kustomize.config.k8s.io/v1beta1" && object.GetAPIVersion() != "kustomize.config.k8s.io/v1alpha1" {
				objects = append(objects, object)
			}
		}
	}
	slices.SortStableFunc(objects, func(a, b *unstructured.Unstructured) int { return rank(a) - rank(b) })
	return objects, nil
}

func rank(object *unstructured.Unstructured) int {
	if object.GetKind() == "Namespace" {
		return 0
	}
	return 1
}
