// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	resourceapi "k8s.io/api/resource/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/test/harness/claim"
	"github.com/switchyard-dev/switchyard/test/harness/controlplane"
	"github.com/switchyard-dev/switchyard/test/harness/kubelet"
	"github.com/switchyard-dev/switchyard/test/harness/plugin"
)

// startTimeout is how long a start may take before the benchmark counts as one that cannot run.
const startTimeout = 30 * time.Second

// gpuNode is a node with 8 simulated H100s on which the plugin runs as in a DaemonSet: the program
// that is built for users of simulated nodes, with the token and the rights of its pod.
type gpuNode struct {
	*plugin.Node
	cluster   *controlplane.ControlPlane
	kubelet   *kubelet.Kubelet
	namespace string
	gpus      []string // device names
}

// GPUNode makes a node without starting the plugin.
func (l *Lab) GPUNode(ctx context.Context) (*gpuNode, error) {
	cluster, err := l.Cluster(ctx)
	if err != nil {
		return nil, err
	}
	return l.gpuNodeOf(ctx, cluster)
}

func (l *Lab) gpuNodeOf(ctx context.Context, cluster *controlplane.ControlPlane) (_ *gpuNode, err error) {
	l.nodes++
	name := fmt.Sprintf("bench-%d", l.nodes)
	machine, err := plugin.NewNode(name, "hgx-h100")
	if err != nil {
		return nil, err
	}
	n := &gpuNode{Node: machine, cluster: cluster, namespace: name}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close(ctx))
		}
	}()
	if n.gpus, err = machine.DeviceNames(); err != nil {
		return nil, err
	}
	token, err := cluster.JoinNode(ctx, name, controlplane.RuntimeVersion)
	if err != nil {
		return nil, err
	}
	if err := cluster.WriteKubeconfig(n.Kubeconfig(), token); err != nil {
		return nil, err
	}
	if err := cluster.CreateNamespace(ctx, n.namespace); err != nil {
		return nil, err
	}
	n.kubelet, err = kubelet.Start(v1alpha1.DriverName, n.RegistryDir())
	return n, err
}

// Close removes the node.
func (n *gpuNode) Close(ctx context.Context) error {
	if n.kubelet != nil {
		n.kubelet.Stop()
	}
	return errors.Join(n.cluster.RemoveNode(ctx, n.Name), n.Remove())
}

// start executes the plugin and waits until it serves: the kubelet has registered it, and it answers
// a call. It returns how long that took from the execution on.
func (n *gpuNode) start(ctx context.Context) (*plugin.Plugin, time.Duration, error) {
	p, err := n.Start(plugin.Options{Binary: simulator})
	if err != nil {
		return nil, 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	ctx, cancel = p.While(ctx)
	defer cancel()
	if _, err := n.kubelet.WaitRegistered(ctx, p.Started()); err != nil {
		p.Kill()
		return nil, 0, err
	}
	if err := n.kubelet.Ping(ctx); err != nil {
		p.Kill()
		return nil, 0, err
	}
	return p, time.Since(p.Started()), nil
}

// running starts the plugin and waits until it is ready to prepare claims. The function that comes
// back ends it.
func (n *gpuNode) running(ctx context.Context) (*plugin.Plugin, func() error, error) {
	p, _, err := n.start(ctx)
	if err != nil {
		return nil, nil, err
	}
	stop := func() error {
		err := p.Err()
		p.Kill()
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		err := p.Ready(ctx)
		if err == nil {
			return p, stop, nil
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-ctx.Done():
			return nil, nil, errors.Join(fmt.Errorf("the plugin does not get ready: %w", err), stop())
		}
	}
}

// claims creates claims with one GPU each, in turn.
func (n *gpuNode) claims(ctx context.Context, prefix string, count int) ([]*resourceapi.ResourceClaim, error) {
	var claims []*resourceapi.ResourceClaim
	for i := range count {
		c, err := n.claim(prefix, i).Request("gpu", n.gpus[i%len(n.gpus)]).Create(ctx, n.cluster.Client())
		if err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// adminClaims creates claims with administrative access to one GPU each: any number of them may be
// prepared at the same time.
func (n *gpuNode) adminClaims(ctx context.Context, prefix string, count int) ([]*resourceapi.ResourceClaim, error) {
	var claims []*resourceapi.ResourceClaim
	for i := range count {
		c, err := n.claim(prefix, i).Admin("gpu", n.gpus[i%len(n.gpus)]).Create(ctx, n.cluster.Client())
		if err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

func (n *gpuNode) claim(prefix string, i int) *claim.Builder {
	return claim.New(n.namespace, fmt.Sprintf("%s-%d", prefix, i), n.Name)
}

// prepare prepares claims in one call; an error of any claim is an error.
func (n *gpuNode) prepare(ctx context.Context, claims ...*resourceapi.ResourceClaim) error {
	results, err := n.kubelet.Prepare(ctx, claims...)
	errs := []error{err}
	for _, result := range results {
		errs = append(errs, result.Err)
	}
	return errors.Join(errs...)
}

// onRunningPlugin is the Run of a benchmark that needs a node of its own and a plugin that is ready on it. The node is set
// up before the plugin starts.
func onRunningPlugin(do func(context.Context, *gpuNode, *plugin.Plugin, Samples) error, setUp ...func(*gpuNode) error) func(context.Context, *Lab, Samples) error {
	return func(ctx context.Context, lab *Lab, samples Samples) (err error) {
		n, err := lab.GPUNode(ctx)
		if err != nil {
			return err
		}
		defer closing(&err, func() error { return n.Close(ctx) })
		for _, set := range setUp {
			if err := set(n); err != nil {
				return err
			}
		}
		p, stop, err := n.running(ctx)
		if err != nil {
			return err
		}
		defer closing(&err, stop)
		return do(ctx, n, p, samples)
	}
}

// rounds calls round warmUp times and then count times; what was sampled before the latter is dropped.
func rounds(samples Samples, count int, round func(i int) error) error {
	for i := range warmUp + count {
		if i == warmUp {
			clear(samples)
		}
		if err := round(i); err != nil {
			return err
		}
	}
	return nil
}
