// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"fmt"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/component-base/version"

	"github.com/switchyard-dev/switchyard/internal/restconfig"
)

// newClient returns a client of the API server. It makes no request.
func newClient(o Options) (kubernetes.Interface, error) {
	config, err := restconfig.Load(o.Kubeconfig)
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
