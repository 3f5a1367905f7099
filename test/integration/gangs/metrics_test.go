// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build integration

package gangs

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/controller"
)

func TestMetricsAndProbes(t *testing.T) {
	e := newEnv(t, stock, "a100-2x4")
	single := e.single("single", 1, inDomain(e.nodes[0], 0))
	e.running(single)
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	e.start(func(config *controller.Config) { config.Listener = listener })
	get := func(path string) (int, string) {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+listener.Addr().String()+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return 0, err.Error()
		}
		defer response.Body.Close()
		body, err := io.ReadAll(response.Body)
		if err != nil {
			return 0, err.Error()
		}
		return response.StatusCode, string(body)
	}
	for _, path := range []string{"/healthz", "/readyz"} {
		e.eventually(path+" says yes", func() error {
			if code, body := get(path); code != http.StatusOK {
				return fmt.Errorf("%d %s", code, body)
			}
			return nil
		})
	}
	shows := func(lines ...string) {
		t.Helper()
		e.eventually("the metrics are as wanted", func() error {
			_, body := get("/metrics")
			for _, line := range lines {
				if !strings.Contains(body, line) {
					return fmt.Errorf("%q is not there", line)
				}
			}
			return nil
		})
	}
	const product = `product="NVIDIA A100-SXM4-40GB"`
	gang := e.gang("train", 2, 4)
	pods := e.members("train", 2)
	e.waits(gang, "NoFeasibleDomain")
	shows(
		`switchyard_controller_gangs{state="Waiting"} 1`,
		`switchyard_controller_plan_duration_seconds_count`,
		`switchyard_controller_fence_tolerating_objects 0`,
		`workqueue_depth`,
		`switchyard_controller_devices{`+product+`,state="free"} 7`,
		`switchyard_controller_nvswitch_domains{`+product+`,state="broken"} 1`,
		`switchyard_controller_runnable_gangs{`+product+`,size="4"} 1`,
	)
	if err := e.plane.kubelet.End(t.Context(), single, corev1.PodSucceeded); err != nil {
		t.Fatal(err)
	}
	e.running(pods...)
	e.reaches(gang, v1alpha1.StepHolding)
	shows(
		`switchyard_controller_gangs{state="Running"} 1`,
		`switchyard_controller_gangs_started_total 1`,
		`switchyard_controller_actions_total{action="CreateTemplate",result="ok"} 1`,
		`switchyard_controller_step_duration_seconds_count{step="Releasing"} 1`,
	)
}
