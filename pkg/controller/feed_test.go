// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controller

import (
	"slices"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// What is known by UID would stay for ever: the planner would look for a place for a gang that is gone.
func TestAnObjectThatWasMadeAnewIsGoneFirst(t *testing.T) {
	made := func(uid types.UID) *v1alpha1.GangClaim {
		return &v1alpha1.GangClaim{ObjectMeta: metav1.ObjectMeta{Name: "gang", UID: uid}}
	}
	var got []string
	// The informer adds, changes, and relists after its watch was down.
	add := func(_ client.Object, set func(old, object any), _ func(any)) error {
		set(nil, made("1"))
		set(made("1"), made("1"))
		set(made("1"), made("2"))
		return nil
	}
	err := follow(add, func(old, gang *v1alpha1.GangClaim) {
		before := ""
		if old != nil {
			before = string(old.UID)
		}
		got = append(got, "set "+before+"→"+string(gang.UID))
	}, func(gang *v1alpha1.GangClaim) { got = append(got, "remove "+string(gang.UID)) })
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"set →1", "set 1→1", "remove 1", "set →2"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
