// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"context"
	"fmt"
	"net/http"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// Requests per second to the API server, and how many at once: a command reads each kind once, page by page.
const (
	requestRate  = 50
	requestBurst = 100
)

// connection is where commands read from.
type connection interface {
	// addFlags adds the flags that say which cluster it is.
	addFlags(cmd *cobra.Command)
	// open returns what reads from the cluster until ctx ends.
	open(ctx context.Context) (client.Reader, error)
	// namespace is that of the flags, or of the context.
	namespace() (string, error)
	clock() clock.PassiveClock
}

// kubeconfig connects as kubectl does: with its flags, the KUBECONFIG environment, ~/.kube/config, or the
// service account of a pod.
type kubeconfig struct {
	rules     *clientcmd.ClientConfigLoadingRules
	overrides clientcmd.ConfigOverrides
}

func newKubeconfig() *kubeconfig {
	return &kubeconfig{rules: clientcmd.NewDefaultClientConfigLoadingRules()}
}

// shownFlags are the flags of kubectl that help lists. The others are understood, too.
var shownFlags = map[string]bool{
	clientcmd.FlagContext: true, clientcmd.FlagNamespace: true, clientcmd.FlagImpersonate: true, clientcmd.FlagTimeout: true,
}

func (k *kubeconfig) addFlags(cmd *cobra.Command) {
	all := pflag.NewFlagSet("", pflag.ContinueOnError)
	all.StringVar(&k.rules.ExplicitPath, clientcmd.RecommendedConfigPathFlag, "", "Path of the kubeconfig file.")
	clientcmd.BindOverrideFlags(&k.overrides, all, clientcmd.RecommendedConfigOverrideFlags(""))
	all.VisitAll(func(flag *pflag.Flag) {
		flag.Hidden = !shownFlags[flag.Name] && flag.Name != clientcmd.RecommendedConfigPathFlag
		cmd.Flags().AddFlag(flag)
	})
}

func (k *kubeconfig) config() clientcmd.ClientConfig {
	return clientcmd.NewNonInteractiveDeferredLoadingClientConfig(k.rules, &k.overrides)
}

func (k *kubeconfig) open(ctx context.Context) (client.Reader, error) {
	config, err := k.config().ClientConfig()
	if err != nil {
		return nil, fmt.Errorf("find the cluster: %w; set --kubeconfig or --context", err)
	}
	config.QPS, config.Burst = requestRate, requestBurst
	config.UserAgent = "kubectl-switchyard"
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return until{ctx, next} })
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	reader, err := client.New(config, client.Options{Scheme: scheme})
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", config.Host, err)
	}
	return reader, nil
}

// until ends requests when ctx does: those that discover which kinds the API server has know of no context, and an
// API server that does not answer would keep the command from ending.
type until struct {
	ctx  context.Context
	next http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (u until) RoundTrip(request *http.Request) (*http.Response, error) {
	ctx, cancel := context.WithCancelCause(request.Context())
	context.AfterFunc(u.ctx, func() { cancel(context.Cause(u.ctx)) })
	return u.next.RoundTrip(request.WithContext(ctx))
}

func (k *kubeconfig) namespace() (string, error) {
	namespace, _, err := k.config().Namespace()
	if err != nil {
		return "", fmt.Errorf("find the namespace of the context: %w; set --namespace", err)
	}
	return namespace, nil
}

func (k *kubeconfig) clock() clock.PassiveClock { return clock.RealClock{} }

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			return nil, fmt.Errorf("set up the scheme: %w", err)
		}
	}
	return scheme, nil
}
