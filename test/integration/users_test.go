// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package integration

import (
	"fmt"
	"testing"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// asUser returns a client configuration for a new user who has a ClusterRole in a namespace, and nothing
// else.
func asUser(t *testing.T, namespace, clusterRole string) *rest.Config {
	t.Helper()
	name := fmt.Sprintf("user-%d", nodes.Add(1))
	bindUser(t, namespace, clusterRole, name)
	return impersonate(name)
}

// bindUser gives an existing user a ClusterRole in a namespace.
func bindUser(t *testing.T, namespace, clusterRole, user string) {
	t.Helper()
	_, err := cluster.Client().RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "test-"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: clusterRole},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: user}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// impersonate returns a client configuration for an existing user of the API server's, with whatever
// rights that user has.
func impersonate(user string, groups ...string) *rest.Config {
	config := cluster.ConfigFor(cluster.AdminToken())
	config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: groups}
	return config
}
