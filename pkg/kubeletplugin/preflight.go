// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/klog/v2"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

// Names of the preflight checks: values of the label "check" of the preflight metric.
const (
	checkCDIRuntime   = "cdi_runtime"
	checkCDIDirectory = "cdi_directory"
)

// preflightRetry is the wait after a preflight check that failed, or could not be made.
const preflightRetry = 10 * time.Second

// preflightTimeout bounds one question to the API server, which may accept a request and never answer.
const preflightTimeout = 10 * time.Second

// preflightFile would be the file that shows whether the CDI directory is writable, if it were ever
// put in its place.
const preflightFile = v1alpha1.DriverName + "_preflight"

// errRuntimeWithoutCDI is why claims are refused on a node whose container runtime does not know
// CDI: it would ignore the devices, and the container would see no GPU, or all of them where the
// image asks a legacy runtime hook for "all".
var errRuntimeWithoutCDI = errors.New("the container runtime of this node cannot inject CDI devices")

// cdiDirectories are the directories that container runtimes read CDI specs from by default (CDI
// specification, "CDI JSON Specification", and containerd's and CRI-O's cdi_spec_dirs).
var cdiDirectories = []string{"/var/run/cdi", "/run/cdi", "/etc/cdi"}

// minCDIRuntime is the first release of each runtime that can inject CDI devices through the CRI.
var minCDIRuntime = map[string]*version.Version{
	"containerd": version.MustParseSemantic("1.7.0"),
	"cri-o":      version.MustParseSemantic("1.23.0"),
}

// cdiOptInRuntime is the first release that has CDI on by default where earlier ones need it
// switched on.
var cdiOptInRuntime = map[string]*version.Version{
	"containerd": version.MustParseSemantic("2.0.0"),
}

// runtimeCDISupport judges a node's status.nodeInfo.containerRuntimeVersion, for example
// "containerd://2.1.4". It returns an error wrapping errRuntimeWithoutCDI for a runtime that is known
// not to inject CDI devices and a warning for one that does only when configured to; a runtime or a
// version that it does not know passes.
func runtimeCDISupport(runtimeVersion string) (warning string, err error) {
	name, release, ok := strings.Cut(runtimeVersion, "://")
	if !ok {
		return "", nil
	}
	if name == "docker" {
		return "", fmt.Errorf("%w: %s does not pass CDI devices on; use containerd 1.7 or later, or CRI-O 1.23 or later", errRuntimeWithoutCDI, runtimeVersion)
	}
	parsed, parseErr := version.ParseGeneric(release)
	if parseErr != nil {
		return "", nil //nolint:nilerr // a version we cannot read is not known to be too old
	}
	if minimum := minCDIRuntime[name]; minimum != nil && parsed.LessThan(minimum) {
		return "", fmt.Errorf("%w: %s is older than %s %s; upgrade it", errRuntimeWithoutCDI, runtimeVersion, name, minimum)
	}
	if optIn := cdiOptInRuntime[name]; optIn != nil && parsed.LessThan(optIn) {
		return fmt.Sprintf("%s injects CDI devices only when its configuration says so: set enable_cdi = true in the CRI plugin's section, or upgrade to %s %s, where that is the default", runtimeVersion, name, optIn), nil
	}
	return "", nil
}

// checkCDIDir makes sure that CDI specs can be written to dir. The warning is for a directory that
// no runtime reads by default.
func checkCDIDir(dir string) (warning string, err error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create the directory for CDI specs: %w", err)
	}
	probe, err := atomicfile.New(filepath.Join(dir, preflightFile), 0o600)
	if err != nil {
		return "", fmt.Errorf("the directory for CDI specs is not writable: %w", err)
	}
	if err := probe.Discard(); err != nil {
		return "", fmt.Errorf("the directory for CDI specs is not writable: %w", err)
	}
	if !slices.Contains(cdiDirectories, filepath.Clean(dir)) {
		return fmt.Sprintf("%s is none of %s: make sure that the container runtime's cdi_spec_dirs names it", dir, strings.Join(cdiDirectories, ", ")), nil
	}
	return "", nil
}

// preflight checks what the node must offer, and tells on every channel what it does not. A check that fails, or that
// cannot be made (the API server is away), is made again until it passes or ctx ends: a full disk is cleared, and a
// runtime upgraded, without a restart of this process.
func (d *Driver) preflight(ctx context.Context) {
	checks := []func(context.Context) (passed bool){d.checkDirectory, d.checkRuntime}
	for {
		checks = slices.DeleteFunc(checks, func(check func(context.Context) bool) bool { return check(ctx) })
		if len(checks) == 0 {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-d.clock.After(preflightRetry):
		}
	}
}

func (d *Driver) checkDirectory(ctx context.Context) (passed bool) {
	warning, err := checkCDIDir(d.config.CDIDir)
	d.reportPreflight(ctx, checkCDIDirectory, warning, err)
	return err == nil
}

func (d *Driver) checkRuntime(ctx context.Context) (passed bool) {
	asking, cancel := context.WithTimeout(ctx, preflightTimeout)
	defer cancel()
	node, err := d.config.KubeClient.CoreV1().Nodes().Get(asking, d.config.NodeName, metav1.GetOptions{})
	if err != nil {
		klog.FromContext(ctx).V(2).Info("Cannot read the node to check its container runtime, trying again", "err", err)
		return false
	}
	warning, err := runtimeCDISupport(node.Status.NodeInfo.ContainerRuntimeVersion)
	if err != nil {
		d.runtimeErr.Store(&err)
	} else {
		d.runtimeErr.Store(nil)
	}
	d.reportPreflight(ctx, checkCDIRuntime, warning, err)
	return err == nil
}

func (d *Driver) reportPreflight(ctx context.Context, check, warning string, err error) {
	logger := klog.FromContext(ctx)
	if warning != "" {
		logger.Info("Preflight check passed with a warning", "check", check, "warning", warning)
	}
	if err == nil {
		d.metrics.preflight.WithLabelValues(check).Set(1)
		d.conditions.clear(conditionName("preflight/" + check))
		return
	}
	d.metrics.preflight.WithLabelValues(check).Set(0)
	if d.conditions.set(conditionName("preflight/"+check), err.Error()) {
		logger.Error(err, "Preflight check failed", "check", check)
		d.events.warn(reasonPreflightFailed, "%v", err)
	}
}
