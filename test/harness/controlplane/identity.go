// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"fmt"
	"path/filepath"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
)

// ConfigFor returns a client configuration with a bearer token, without client-side throttling.
func (cp *ControlPlane) ConfigFor(token string) *rest.Config {
	return &rest.Config{
		Host:            cp.server,
		BearerToken:     token,
		TLSClientConfig: rest.TLSClientConfig{CAFile: cp.caFile},
		QPS:             -1,
	}
}

// AdminToken is the bearer token of a user in system:masters.
func (cp *ControlPlane) AdminToken() string { return adminToken }

// WriteKubeconfig writes a kubeconfig for the user behind a bearer token.
func (cp *ControlPlane) WriteKubeconfig(path, token string) error {
	const name = "switchyard-test"
	config := clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{name: {Server: cp.server, CertificateAuthority: cp.caFile}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{name: {Token: token}},
		Contexts:       map[string]*clientcmdapi.Context{name: {Cluster: name, AuthInfo: name}},
		CurrentContext: name,
	}
	if err := clientcmd.WriteToFile(config, path); err != nil {
		return fmt.Errorf("write kubeconfig %s: %w", filepath.Base(path), err)
	}
	return nil
}

// PodToken returns the token that the kubelet would project into a pod: that of its service account,
// bound to the pod and, through it, to the pod's node (KEP-4193), which is what an admission policy
// that pins a node plugin to its own node looks at.
func (cp *ControlPlane) PodToken(ctx context.Context, pod *corev1.Pod) (string, error) {
	request := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{
		ExpirationSeconds: ptr.To[int64](3600),
		BoundObjectRef:    &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Pod", Name: pod.Name, UID: pod.UID},
	}}
	response, err := cp.client.CoreV1().ServiceAccounts(pod.Namespace).
		CreateToken(ctx, pod.Spec.ServiceAccountName, request, metav1.CreateOptions{})
	if err != nil {
		return "", fmt.Errorf("request token of service account %s/%s for pod %s: %w", pod.Namespace, pod.Spec.ServiceAccountName, pod.Name, err)
	}
	return response.Status.Token, nil
}
