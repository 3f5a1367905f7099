// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package controlplane

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// SchedulerMetrics scrapes the scheduler.
func (cp *ControlPlane) SchedulerMetrics(ctx context.Context) (_ map[string]*dto.MetricFamily, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("scrape kube-scheduler: %w", err)
		}
	}()
	if cp.scheduler == "" {
		return nil, errors.New("it does not run")
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://"+cp.scheduler+"/metrics", nil)
	if err != nil {
		return nil, err
	}
	// Its certificate is its own, in memory.
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	response, err := client.Do(request)
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, errors.New(response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	return parser.TextToMetricFamilies(response.Body)
}
