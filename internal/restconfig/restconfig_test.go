// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package restconfig

import (
	"strings"
	"testing"
)

func TestClientNeedsAClusterOrAKubeconfig(t *testing.T) {
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	for name, kubeconfig := range map[string]string{"no pod and no file": "", "a file that is not there": "/does/not/exist"} {
		t.Run(name, func(t *testing.T) {
			if _, err := Load(kubeconfig); err == nil || !strings.Contains(err.Error(), "--kubeconfig") {
				t.Errorf("Load = %v, want an error about --kubeconfig", err)
			}
		})
	}
}
