// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/switchyard-dev/switchyard/test/harness/ports"
	"github.com/switchyard-dev/switchyard/test/harness/process"
)

// deviceName is how the driver names a GPU: its UUID in lower case.
func deviceName(gpuUUID string) string { return strings.ToLower(gpuUUID) }

// Options say which plugin to run and how.
type Options struct {
	// Binary is the program: switchyard-sim or, with DriverRoot, switchyard-kubelet-plugin.
	Binary string
	// DriverRoot makes the plugin load NVML from below a directory instead of simulating it.
	DriverRoot string
	// PodUID makes the plugin one that may overlap with another (rolling update).
	PodUID string
	// Args are added to the flags.
	Args []string
	// Env is added to the environment.
	Env []string
}

// Plugin is a running plugin.
type Plugin struct {
	*process.Process
	node *Node
	http string // host:port of /metrics, /healthz and /readyz
}

// Start executes the plugin on the node. It does not wait for anything.
func (n *Node) Start(o Options) (*Plugin, error) {
	free, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	address := net.JoinHostPort("127.0.0.1", strconv.Itoa(free[0]))
	hardware := []string{"plugin", "--sim-dir=" + n.SimDir()}
	if o.DriverRoot != "" {
		hardware = []string{"--driver-root=" + o.DriverRoot, "--sysfs-root=" + n.GPUs.SysfsRoot()}
	}
	args := slices.Concat(hardware, []string{
		"--node-name=" + n.Name,
		"--kubeconfig=" + n.Kubeconfig(),
		"--plugin-dir=" + n.PluginDir(),
		"--registry-dir=" + n.RegistryDir(),
		"--cdi-dir=" + n.CDIDir(),
		"--boot-id-file=" + n.bootIDFile(),
		"--mps-shm-dir=" + n.SharedMemoryDir(),
		"--metrics-address=" + address,
		"--grpc-health-address=0",
	}, o.Args)
	if o.PodUID != "" {
		args = append(args, "--pod-uid="+o.PodUID)
	}
	p, err := process.Start(process.Options{
		Path:    o.Binary,
		Args:    args,
		Env:     append([]string{"SWITCHYARD_CRASH_FILE=" + n.CrashFile()}, o.Env...),
		LogFile: n.LogFile(),
	})
	if err != nil {
		return nil, fmt.Errorf("start the plugin on node %s: %w", n.Name, err)
	}
	return &Plugin{Process: p, node: n, http: address}, nil
}

// probeTimeout bounds one HTTP request to the plugin.
const probeTimeout = 5 * time.Second

// Ready asks /readyz: nil, or an error with what the plugin says.
func (p *Plugin) Ready(ctx context.Context) error { return p.probe(ctx, "/readyz") }

// Healthy asks /healthz: nil, or an error with what the plugin says.
func (p *Plugin) Healthy(ctx context.Context) error { return p.probe(ctx, "/healthz") }

func (p *Plugin) probe(ctx context.Context, path string) error {
	response, err := p.get(ctx, path)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusOK {
		return nil
	}
	var text strings.Builder
	if err := response.Write(&text); err != nil {
		return fmt.Errorf("GET %s: %s, and its text cannot be read: %w", path, response.Status, err)
	}
	_, body, _ := strings.Cut(text.String(), "\r\n\r\n")
	return fmt.Errorf("GET %s: %s: %s", path, response.Status, strings.TrimSpace(body))
}

func (p *Plugin) get(ctx context.Context, path string) (*http.Response, error) {
	client := http.Client{Timeout: probeTimeout, Transport: &http.Transport{DisableKeepAlives: true}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.http+path, nil)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	response, err := client.Do(request)
	if err != nil {
		return nil, fmt.Errorf("GET %s: %w", path, err)
	}
	return response, nil
}

// Metrics is one scrape of /metrics.
type Metrics map[string]*dto.MetricFamily

// Metrics scrapes the plugin.
func (p *Plugin) Metrics(ctx context.Context) (Metrics, error) {
	response, err := p.get(ctx, "/metrics")
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("GET /metrics: %s", response.Status)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(response.Body)
	if err != nil {
		return nil, fmt.Errorf("read /metrics: %w", err)
	}
	return families, nil
}

// Value returns the value of a counter or gauge, or the number of observations of a histogram, summed
// over all series that carry the labels ("key", "value", ...). 0 for a metric that is not there.
func (m Metrics) Value(name string, labels ...string) float64 {
	var sum float64
	for _, series := range m[name].GetMetric() {
		if !carries(series, labels) {
			continue
		}
		sum += series.GetCounter().GetValue() + series.GetGauge().GetValue() + float64(series.GetHistogram().GetSampleCount())
	}
	return sum
}

func carries(series *dto.Metric, labels []string) bool {
	for i := 0; i+1 < len(labels); i += 2 {
		found := false
		for _, label := range series.GetLabel() {
			found = found || label.GetName() == labels[i] && label.GetValue() == labels[i+1]
		}
		if !found {
			return false
		}
	}
	return true
}
