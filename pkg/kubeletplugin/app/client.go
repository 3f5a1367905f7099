// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/component-base/version"
)

// newClient returns a client of the API server. It makes no request.
func newClient(o Options) (kubernetes.Interface, error) {
	config, err := loadConfig(o.Kubeconfig)
	if err != nil {
		return nil, err
	}
	config.QPS = o.KubeAPIQPS
	config.Burst = o.KubeAPIBurst
	config.ContentType = runtime.ContentTypeProtobuf
	config.AcceptContentTypes = runtime.ContentTypeProtobuf + "," + runtime.ContentTypeJSON
	config.UserAgent = "switchyard-kubelet-plugin/" + version.Get().GitVersion
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("set up the client of the API server: %w", err)
	}
	return client, nil
}

func loadConfig(kubeconfig string) (*rest.Config, error) {
	if kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("no --kubeconfig is given, and this is no pod with a service account: %w", err)
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("--kubeconfig: %w", err)
	}
	return config, nil
}
