// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	coreclient "k8s.io/client-go/kubernetes/typed/core/v1"
)

// silentServer is an API server that accepts questions about nodes and never answers.
type silentServer struct{ kubernetes.Interface }

func (s silentServer) CoreV1() coreclient.CoreV1Interface { return silentCore{} }

type silentCore struct{ coreclient.CoreV1Interface }

func (silentCore) Nodes() coreclient.NodeInterface { return silentNodes{} }

type silentNodes struct{ coreclient.NodeInterface }

func (silentNodes) Get(ctx context.Context, _ string, _ metav1.GetOptions) (*corev1.Node, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// The check of the runtime was never made again where one answer got lost.
func TestCheckOfTheRuntimeDoesNotWaitForEver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &Driver{config: Config{NodeName: "node", KubeClient: silentServer{}}}
		if d.checkRuntime(t.Context()) {
			t.Error("the check passed without an answer")
		}
	})
}

func TestFieldCase24_RuntimeWithoutCDI(t *testing.T) {
	for name, test := range map[string]struct {
		runtime string
		refused bool
		warning string
	}{
		"containerd before 1.7 ignores CDI devices":       {runtime: "containerd://1.6.36", refused: true},
		"containerd 1.7 needs CDI switched on":            {runtime: "containerd://1.7.28", warning: "enable_cdi"},
		"containerd 2 has CDI on":                         {runtime: "containerd://2.1.4"},
		"CRI-O before 1.23 ignores CDI devices":           {runtime: "cri-o://1.22.5", refused: true},
		"CRI-O has CDI on":                                {runtime: "cri-o://1.34.0"},
		"docker never passes CDI devices on":              {runtime: "docker://28.3.0", refused: true},
		"a runtime nobody knows is not refused":           {runtime: "podling://0.1"},
		"a version nobody can read is not refused":        {runtime: "containerd://HEAD"},
		"a development build counts as its version":       {runtime: "containerd://2.0.0-rc.1-12-gabcdef"},
		"a node that does not tell its runtime is passed": {runtime: ""},
	} {
		t.Run(name, func(t *testing.T) {
			warning, err := runtimeCDISupport(test.runtime)
			if got := errors.Is(err, errRuntimeWithoutCDI); got != test.refused {
				t.Errorf("refused = %v (%v), want %v", got, err, test.refused)
			}
			if err != nil && !strings.Contains(err.Error(), test.runtime) {
				t.Errorf("the message %q does not name the runtime", err)
			}
			if !strings.Contains(warning, test.warning) || (test.warning == "") != (warning == "") {
				t.Errorf("warning = %q, want one about %q", warning, test.warning)
			}
		})
	}
}

func TestCheckCDIDir(t *testing.T) {
	t.Run("a directory that is missing is created, with a warning when no runtime reads it by default", func(t *testing.T) {
		dir := filepath.Join(t.TempDir(), "cdi")
		warning, err := checkCDIDir(dir)
		if err != nil || !strings.Contains(warning, "cdi_spec_dirs") {
			t.Errorf("checkCDIDir = %q, %v; want a warning that names cdi_spec_dirs", warning, err)
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("the check left %v (%v)", left, err)
		}
	})
	t.Run("a path that is no directory is an error", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "cdi")
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := checkCDIDir(path); err == nil {
			t.Error("checkCDIDir accepted a file")
		}
	})
}
