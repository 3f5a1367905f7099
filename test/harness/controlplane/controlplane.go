// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package controlplane runs a real Kubernetes control plane on loopback for tests and benchmarks:
// etcd and kube-apiserver, and the scheduler and the controller manager on request. There are no
// nodes; test/localcluster is for those, and builds the programs for both.
//
// It imports client-go and the harness's process package. It promises default feature gates,
// authorization mode Node,RBAC with NodeRestriction, service accounts with signed tokens, ports of
// its own (two control planes may run side by side) and nothing left behind after Stop but the
// directory it was given.
package controlplane

import (
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/switchyard-dev/switchyard/test/harness/ports"
	"github.com/switchyard-dev/switchyard/test/harness/process"
)

// Options say what to run.
type Options struct {
	// BinDir holds etcd, kube-apiserver and, where asked for, kube-scheduler and
	// kube-controller-manager. See FindBinaries.
	BinDir string
	// Dir is an existing, empty directory for data, certificates and logs.
	Dir string
	// Scheduler and ControllerManager start these programs as well. Nodes have no kubelets that send
	// heartbeats, so the controller manager runs without its node lifecycle controller.
	Scheduler, ControllerManager bool
	// NativeGangs switches the scheduler's own gangs on: PodGroups (KEP-4671), and claims of PodGroups.
	NativeGangs bool
	// SchedulerArgs and ControllerManagerArgs are further flags, such as --kube-api-qps.
	SchedulerArgs, ControllerManagerArgs []string
	// SchedulerConfig is a KubeSchedulerConfiguration with %q in place of the kubeconfig's path; empty for the
	// scheduler's own.
	SchedulerConfig string
}

// nativeGangGates are the feature gates of native gangs, off by default in Kubernetes 1.37.
const nativeGangGates = "--feature-gates=DRAWorkloadResourceClaims=true,GenericWorkload=true"

func (o Options) gates() []string {
	if !o.NativeGangs {
		return nil
	}
	return []string{nativeGangGates}
}

func (o Options) apiServerArgs() []string {
	if !o.NativeGangs {
		return nil
	}
	return []string{nativeGangGates, "--runtime-config=scheduling.k8s.io/v1beta1=true"}
}

// startTimeout covers a machine that compiles on every core meanwhile.
const startTimeout = 2 * time.Minute

// ControlPlane is a running control plane.
type ControlPlane struct {
	dir       string
	server    string // https://127.0.0.1:<port>
	caFile    string
	admin     *rest.Config
	client    kubernetes.Interface
	processes []*process.Process // in the order of their start
	scheduler string             // host:port of its metrics
}

// adminToken stands for a user in system:masters. It is worth nothing outside this control plane.
const adminToken = "admin"

// Start returns when the API server is ready to serve, and kube-controller-manager, if it runs, to make claims. What it started before an error is stopped.
func Start(ctx context.Context, o Options) (_ *ControlPlane, err error) {
	cp := &ControlPlane{dir: o.Dir, caFile: filepath.Join(o.Dir, "pki", "apiserver.crt")}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("start control plane: %w", err), cp.Stop())
		}
	}()
	if err := cp.writeCredentials(); err != nil {
		return nil, err
	}
	free, err := ports.Free(3)
	if err != nil {
		return nil, err
	}
	etcdURL := fmt.Sprintf("http://127.0.0.1:%d", free[0])
	cp.server = fmt.Sprintf("https://127.0.0.1:%d", free[2])

	if err := cp.run(o.BinDir, "etcd",
		"--data-dir="+filepath.Join(o.Dir, "etcd"),
		"--listen-client-urls="+etcdURL, "--advertise-client-urls="+etcdURL,
		fmt.Sprintf("--listen-peer-urls=http://127.0.0.1:%d", free[1]),
		"--unsafe-no-fsync", "--log-level=warn",
	); err != nil {
		return nil, err
	}
	if err := cp.run(o.BinDir, "kube-apiserver", append(o.apiServerArgs(),
		"--etcd-servers="+etcdURL,
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", free[2]),
		"--cert-dir="+filepath.Join(o.Dir, "pki"),
		"--token-auth-file="+cp.tokenFile(),
		"--service-account-key-file="+cp.serviceAccountKey(),
		"--service-account-signing-key-file="+cp.serviceAccountKey(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=10.96.0.0/24",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true",
	)...); err != nil {
		return nil, err
	}
	if err := cp.connect(ctx); err != nil {
		return nil, err
	}
	return cp, cp.runControllers(ctx, o)
}

// connect waits until the API server is ready. Its certificate is its own CA and exists only after
// its start.
func (cp *ControlPlane) connect(ctx context.Context) error {
	err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, startTimeout, true, func(ctx context.Context) (bool, error) {
		if err := cp.Err(); err != nil {
			return false, err
		}
		if _, err := os.Stat(cp.caFile); err != nil {
			return false, nil //nolint:nilerr // not there yet
		}
		if cp.client == nil {
			cp.admin = cp.ConfigFor(adminToken)
			client, err := kubernetes.NewForConfig(cp.admin)
			if err != nil {
				return false, nil //nolint:nilerr // the certificate is being written
			}
			cp.client = client
		}
		_, err := cp.client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
		return err == nil, nil
	})
	if err != nil {
		return fmt.Errorf("wait for kube-apiserver, log in %s: %w", cp.dir, err)
	}
	return nil
}

func (cp *ControlPlane) runControllers(ctx context.Context, o Options) error {
	if !o.Scheduler && !o.ControllerManager {
		return nil
	}
	kubeconfig := filepath.Join(cp.dir, "admin.kubeconfig")
	if err := cp.WriteKubeconfig(kubeconfig, adminToken); err != nil {
		return err
	}
	free, err := ports.Free(2)
	if err != nil {
		return err
	}
	if o.Scheduler {
		cp.scheduler = fmt.Sprintf("127.0.0.1:%d", free[0])
		if o.SchedulerConfig != "" {
			config := filepath.Join(cp.dir, "scheduler.config")
			if err := os.WriteFile(config, fmt.Appendf(nil, o.SchedulerConfig, kubeconfig), 0o600); err != nil {
				return fmt.Errorf("configure the scheduler: %w", err)
			}
			o.SchedulerArgs = append(slices.Clone(o.SchedulerArgs), "--config="+config)
		}
		if err := cp.run(o.BinDir, "kube-scheduler", slices.Concat(o.gates(), o.SchedulerArgs, []string{
			"--kubeconfig=" + kubeconfig, "--leader-elect=false",
			"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", free[0]),
			"--authorization-always-allow-paths=/metrics",
		})...); err != nil {
			return err
		}
	}
	if !o.ControllerManager {
		return nil
	}
	if err := cp.run(o.BinDir, "kube-controller-manager", slices.Concat(o.gates(), o.ControllerManagerArgs, []string{
		"--kubeconfig=" + kubeconfig, "--leader-elect=false", "--controllers=*,-node-lifecycle-controller",
		"--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", free[1]),
		"--service-account-private-key-file=" + cp.serviceAccountKey(), "--root-ca-file=" + cp.caFile,
		"--use-service-account-credentials=true",
	})...); err != nil {
		return err
	}
	return cp.waitForClaims(ctx)
}

func (cp *ControlPlane) run(binDir, name string, args ...string) error {
	p, err := cp.startProgram(binDir, name, name, args...)
	if err != nil {
		return err
	}
	cp.processes = append(cp.processes, p)
	return nil
}

func (cp *ControlPlane) startProgram(binDir, program, log string, args ...string) (*process.Process, error) {
	return process.Start(process.Options{
		Path:    filepath.Join(binDir, program),
		Args:    args,
		LogFile: filepath.Join(cp.dir, log+".log"),
	})
}

// secondScheduler is the configuration of a scheduler that serves the pods that name it.
const secondScheduler = `{
  "apiVersion": "kubescheduler.config.k8s.io/v1", "kind": "KubeSchedulerConfiguration",
  "clientConnection": {"kubeconfig": %q}, "leaderElection": {"leaderElect": false}, "profiles": [{"schedulerName": %q}]
}`

// StartSecondScheduler runs a kube-scheduler, beside the first one if there is one, for pods whose schedulerName is name.
// The caller kills it.
func (cp *ControlPlane) StartSecondScheduler(binDir, name string, args ...string) (*process.Process, error) {
	free, err := ports.Free(1)
	if err != nil {
		return nil, err
	}
	kubeconfig, config := filepath.Join(cp.dir, name+".kubeconfig"), filepath.Join(cp.dir, name+".config")
	if err := errors.Join(
		cp.WriteKubeconfig(kubeconfig, adminToken),
		os.WriteFile(config, fmt.Appendf(nil, secondScheduler, kubeconfig, name), 0o600),
	); err != nil {
		return nil, fmt.Errorf("configure scheduler %s: %w", name, err)
	}
	return cp.startProgram(binDir, "kube-scheduler", name, slices.Concat(args, []string{
		"--config=" + config, "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", free[0]),
	})...)
}

// Err tells of a program of the control plane that has ended by itself.
func (cp *ControlPlane) Err() error {
	for _, p := range cp.processes {
		if err := p.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Stop ends all programs, the last one started first. It is an error if one of them had ended by
// itself before.
func (cp *ControlPlane) Stop() error {
	err := cp.Err()
	for _, p := range slices.Backward(cp.processes) {
		p.Kill() // there is nothing to keep, and a graceful end of the API server takes seconds
	}
	return err
}

// Server is the URL of the API server.
func (cp *ControlPlane) Server() string { return cp.server }

// Client acts as a user in system:masters, without client-side throttling.
func (cp *ControlPlane) Client() kubernetes.Interface { return cp.client }

func (cp *ControlPlane) tokenFile() string         { return filepath.Join(cp.dir, "tokens.csv") }
func (cp *ControlPlane) serviceAccountKey() string { return filepath.Join(cp.dir, "sa.key") }

func (cp *ControlPlane) writeCredentials() error {
	if err := os.WriteFile(cp.tokenFile(), []byte(adminToken+",admin,admin,system:masters\n"), 0o600); err != nil {
		return fmt.Errorf("write token file: %w", err)
	}
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return fmt.Errorf("generate service account key: %w", err)
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key)})
	if err := os.WriteFile(cp.serviceAccountKey(), encoded, 0o600); err != nil {
		return fmt.Errorf("write service account key: %w", err)
	}
	return nil
}
