// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
)

func validOptions() *Options { return NewOptions(func(string) string { return "switchyard-system" }) }

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*Options)
		words  []string
	}{
		"the defaults in a pod are valid":                          {change: func(*Options) {}},
		"a namespace is required, and where it comes from is said": {func(o *Options) { o.LeaderElectNamespace = "" }, []string{"--leader-elect-namespace", "POD_NAMESPACE"}},
		"not without leader election":                              {change: func(o *Options) { o.LeaderElectNamespace, o.LeaderElect = "", false }},
		"a namespace is a DNS label":                               {func(o *Options) { o.LeaderElectNamespace = "A b" }, []string{"--leader-elect-namespace", "A b"}},
		"the leader gives up before others take over":              {func(o *Options) { o.LeaderElectRenewDeadline = 15 * time.Second }, []string{"--leader-elect-lease-duration", "two controllers"}},
		"there is time for a second try":                           {func(o *Options) { o.LeaderElectRetryPeriod = 9 * time.Second }, []string{"--leader-elect-renew-deadline", "retry-period"}},
		"a rate of zero is a trap":                                 {func(o *Options) { o.KubeAPIQPS = 0 }, []string{"--kube-api-qps", "negative"}},
		"a rate needs a burst":                                     {func(o *Options) { o.KubeAPIQPS = 5 }, []string{"--kube-api-burst"}},
		"someone has to work":                                      {func(o *Options) { o.Workers = 0 }, []string{"--workers"}},
		"sweeping has a floor":                                     {func(o *Options) { o.SweepInterval = time.Millisecond }, []string{"--sweep-interval", "1s"}},
		"a gang can move one pod or more":                          {func(o *Options) { o.Defrag.Moves = 0 }, []string{"--defrag-max-moves", "from 1 to 64"}},
		"an hour may have no evictions":                            {change: func(o *Options) { o.Defrag.PerHour = 0 }},
		"a budget is not negative":                                 {func(o *Options) { o.Defrag.PerHour = -1 }, []string{"--defrag-evictions-per-hour"}},
		"a cooldown is not negative":                               {func(o *Options) { o.Defrag.Cooldown = -1 }, []string{"--defrag-cooldown"}},
		"consolidation evicts nothing":                             {func(o *Options) { o.ConsolidationMode = "Evict" }, []string{"--consolidation", "Off or Suggest"}},
		"consolidation may suggest":                                {change: func(o *Options) { o.ConsolidationMode = "Suggest" }},
		"searches have a floor":                                    {func(o *Options) { o.Consolidation.Interval = 0 }, []string{"--consolidation-interval", "1s"}},
		"what is asked for is remembered for a while":              {func(o *Options) { o.Consolidation.HalfLife = time.Second }, []string{"--consolidation-half-life", "1m"}},
		"a domain has a pod or more":                               {func(o *Options) { o.Consolidation.Moves = 0 }, []string{"--consolidation-max-moves", "from 1 to 64", "Off"}},
		"an address has a port":                                    {func(o *Options) { o.MetricsAddress = "localhost" }, []string{"--metrics-address", "0 to switch it off"}},
		"the server can be off":                                    {change: func(o *Options) { o.MetricsAddress = "0" }},
		"a log has one of two formats":                             {func(o *Options) { o.Logging.Format = "xml" }, []string{"--logging-format", "xml", "json"}},
		"a line of the log waits for some time":                    {func(o *Options) { o.Logging.FlushFrequency = 0 }, []string{"--log-flush-frequency", "1s"}},
		"a Lease drops parts of a second, and would end at the renew deadline": {func(o *Options) {
			o.LeaderElectLeaseDuration = 10900 * time.Millisecond
		}, []string{"--leader-elect-lease-duration", "10.9s", "whole seconds"}},
		"every mistake is told at once": {func(o *Options) { o.Workers, o.SweepInterval = 0, 0 }, []string{"--workers", "--sweep-interval"}},
		"a Lease counts seconds: shorter ones would be none at all": {func(o *Options) {
			o.LeaderElectRetryPeriod, o.LeaderElectRenewDeadline, o.LeaderElectLeaseDuration = 1e6, 2e6, 3e6
		}, []string{"--leader-elect-lease-duration", "whole seconds"}},
	} {
		t.Run(name, func(t *testing.T) {
			o := validOptions()
			test.change(o)
			err := o.Validate()
			if (err != nil) != (len(test.words) > 0) {
				t.Fatalf("Validate = %v, want an error with %q", err, test.words)
			}
			for _, word := range test.words {
				if !strings.Contains(err.Error(), word) {
					t.Errorf("the error %q does not say %q", err, word)
				}
			}
		})
	}
}

func TestCommandRefusesFlagsBeforeItTouchesAnything(t *testing.T) {
	cmd := NewCommand()
	cmd.SetArgs([]string{"--workers=0", "--kubeconfig=/does/not/exist"})
	cmd.SetOut(new(bytes.Buffer))
	if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), "--workers") {
		t.Errorf("Execute = %v, want an error about --workers", err)
	}
}

// There is no flag for feature gates.
func TestNoFlagNeedsAFeatureGate(t *testing.T) {
	NewCommand().Flags().VisitAll(func(f *pflag.Flag) {
		if strings.Contains(f.Usage, "feature gate") {
			t.Errorf("--%s: %s", f.Name, f.Usage)
		}
	})
}
