// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/switchyard-dev/switchyard/internal/program"
	"github.com/switchyard-dev/switchyard/pkg/controller"
	"github.com/switchyard-dev/switchyard/pkg/defrag"
	"github.com/switchyard-dev/switchyard/pkg/demand"
)

// Options are the flags of the controller.
type Options struct {
	Kubeconfig   string
	KubeAPIQPS   float32
	KubeAPIBurst int

	LeaderElect              bool
	LeaderElectNamespace     string
	LeaderElectLeaseDuration time.Duration
	LeaderElectRenewDeadline time.Duration
	LeaderElectRetryPeriod   time.Duration

	Workers       int
	SweepInterval time.Duration

	// Defrag bounds what is moved for gangs with spec.defragmentation Evict.
	Defrag defrag.Limits

	// ConsolidationMode is ConsolidationOff or ConsolidationSuggest.
	ConsolidationMode string
	Consolidation     controller.Consolidation

	MetricsAddress string

	Logging *program.Logging
}

// Values of --consolidation.
const (
	ConsolidationOff     = "Off"
	ConsolidationSuggest = "Suggest"
)

// NewOptions returns the defaults. getenv is where --leader-elect-namespace comes from when the flag is
// not given: os.Getenv.
func NewOptions(getenv func(string) string) *Options {
	return &Options{
		KubeAPIQPS: -1,

		LeaderElect:              true,
		LeaderElectNamespace:     getenv("POD_NAMESPACE"),
		LeaderElectLeaseDuration: 15 * time.Second,
		LeaderElectRenewDeadline: 10 * time.Second,
		LeaderElectRetryPeriod:   2 * time.Second,

		Workers:       4,
		SweepInterval: time.Minute,

		Defrag: defrag.DefaultLimits(),

		ConsolidationMode: ConsolidationOff,
		Consolidation:     controller.Consolidation{Interval: 5 * time.Minute, Moves: defrag.DefaultConsolidationMoves, HalfLife: demand.DefaultHalfLife},

		MetricsAddress: ":8080",

		Logging: program.NewLogging(),
	}
}

// AddFlags adds the flags to a flag set.
func (o *Options) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "Path of a kubeconfig file. Empty: the pod's service account.")
	fs.Float32Var(&o.KubeAPIQPS, "kube-api-qps", o.KubeAPIQPS, "Requests per second to the API server. Negative: no limit on this side; the API server's priority and fairness limits. A gang of N members on M fenced devices costs about 3 N + 4 M requests in its life: below 50, starting a gang of 32 takes noticeably longer.")
	fs.IntVar(&o.KubeAPIBurst, "kube-api-burst", o.KubeAPIBurst, "Requests above --kube-api-qps that are let through at once. Twice the members of the largest gang lets it start without waiting.")

	fs.BoolVar(&o.LeaderElect, "leader-elect", o.LeaderElect, "Let one of several processes work and the others wait, by a Lease called switchyard-controller. Switch it off only where there is never a second one, not even during an update.")
	fs.StringVar(&o.LeaderElectNamespace, "leader-elect-namespace", o.LeaderElectNamespace, "Namespace of the Lease. Environment: POD_NAMESPACE.")
	fs.DurationVar(&o.LeaderElectLeaseDuration, "leader-elect-lease-duration", o.LeaderElectLeaseDuration, "How long the others wait for a leader that does not renew its Lease. Gangs that run, and those whose pods are allocated and marked ready, do not need a leader meanwhile.")
	fs.DurationVar(&o.LeaderElectRenewDeadline, "leader-elect-renew-deadline", o.LeaderElectRenewDeadline, "How long the leader tries to renew the Lease before it stops writing and ends. Less than --leader-elect-lease-duration.")
	fs.DurationVar(&o.LeaderElectRetryPeriod, "leader-elect-retry-period", o.LeaderElectRetryPeriod, "Time between two tries to get or renew the Lease.")

	fs.IntVar(&o.Workers, "workers", o.Workers, "How many gangs are moved on at the same time. Planning is always for all gangs at once.")
	fs.DurationVar(&o.SweepInterval, "sweep-interval", o.SweepInterval, "Time between two searches for objects of gangs that do not exist any more.")

	fs.IntVar(&o.Defrag.Moves, "defrag-max-moves", o.Defrag.Moves, "How many pods are evicted to make room for one gang, at most, of those with spec.defragmentation: Evict.")
	fs.IntVar(&o.Defrag.PerHour, "defrag-evictions-per-hour", o.Defrag.PerHour, "How many pods are evicted in an hour to make room for gangs, at most, in the cluster. 0: none.")
	fs.IntVar(&o.Defrag.PerNamespaceHour, "defrag-namespace-evictions-per-hour", o.Defrag.PerNamespaceHour, "How many of them in one namespace.")
	fs.DurationVar(&o.Defrag.Cooldown, "defrag-cooldown", o.Defrag.Cooldown, "How long a pod is left alone that came in place of an evicted one, and one that could not be evicted.")
	fs.DurationVar(&o.Defrag.After, "defrag-after", o.Defrag.After, "How long a gang waits for a place before pods are evicted for it.")
	fs.DurationVar(&o.Defrag.GracePeriod, "defrag-max-grace-period", o.Defrag.GracePeriod, "Pods with a longer terminationGracePeriodSeconds are not moved: while a pod ends, the devices that it leaves are reserved and idle.")
	fs.BoolVar(&o.Defrag.Preempt, "defrag-preempt", o.Defrag.Preempt, "Evict pods of a lower priority than the gang's even if there is no place for them elsewhere, where a gang with spec.defragmentation: Evict cannot have a place otherwise. kube-scheduler's own preemption frees no devices.")

	fs.StringVar(&o.ConsolidationMode, "consolidation", o.ConsolidationMode, "While no gang waits: Suggest tells, by Events, the log and metrics, which pods with the label switchyard.dev/movable=true are worth moving, so that a domain is whole and more gangs are runnable. Nothing is evicted. Off: nothing is looked for.")
	fs.DurationVar(&o.Consolidation.Interval, "consolidation-interval", o.Consolidation.Interval, "Time between two searches for pods that are worth moving.")
	fs.IntVar(&o.Consolidation.Moves, "consolidation-max-moves", o.Consolidation.Moves, "How many pods a domain may have, at most, to be worth making whole.")
	fs.DurationVar(&o.Consolidation.HalfLife, "consolidation-half-life", o.Consolidation.HalfLife, "Gangs of the sizes that are asked for are worth more, and a request counts half after this time. Claims that are gone when the controller starts are not known.")

	fs.StringVar(&o.MetricsAddress, "metrics-address", o.MetricsAddress, "TCP address for /metrics, /healthz and /readyz. 0: off.")

	o.Logging.AddFlags(fs)
}

// Validate reports every flag that cannot work, with what to do about it.
func (o *Options) Validate() error {
	var errs []error
	fail := func(flag, format string, args ...any) {
		errs = append(errs, fmt.Errorf("--"+flag+": "+format, args...))
	}
	if o.KubeAPIQPS > 0 && o.KubeAPIBurst < 1 {
		fail("kube-api-burst", "must be at least 1 when --kube-api-qps is positive, got %d", o.KubeAPIBurst)
	}
	if o.KubeAPIQPS == 0 {
		fail("kube-api-qps", "0 would mean the client's default of 5 per second, which stalls the start of gangs: use a negative value for no limit")
	}
	o.Logging.Validate(fail)
	if o.LeaderElect {
		o.validateLease(fail)
	}
	if o.Workers < 1 {
		fail("workers", "must be at least 1, got %d", o.Workers)
	}
	if o.SweepInterval < time.Second {
		fail("sweep-interval", "%v is too short: use 1s or more", o.SweepInterval)
	}
	o.validateDefrag(fail)
	o.validateConsolidation(fail)
	if o.MetricsAddress != addressOff {
		if _, _, err := net.SplitHostPort(o.MetricsAddress); err != nil {
			fail("metrics-address", "%w: use host:port, :port, or 0 to switch it off", err)
		}
	}
	return errors.Join(errs...)
}

func (o *Options) validateDefrag(fail func(flag, format string, args ...any)) {
	if o.Defrag.Moves < 1 || o.Defrag.Moves > defrag.MaxMoves {
		fail("defrag-max-moves", "must be from 1 to %d, got %d: to evict nothing set --defrag-evictions-per-hour to 0", defrag.MaxMoves, o.Defrag.Moves)
	}
	for flag, value := range map[string]int{
		"defrag-evictions-per-hour": o.Defrag.PerHour, "defrag-namespace-evictions-per-hour": o.Defrag.PerNamespaceHour,
	} {
		if value < 0 {
			fail(flag, "must not be negative, got %d", value)
		}
	}
	for flag, value := range map[string]time.Duration{
		"defrag-cooldown": o.Defrag.Cooldown, "defrag-after": o.Defrag.After, "defrag-max-grace-period": o.Defrag.GracePeriod,
	} {
		if value < 0 {
			fail(flag, "must not be negative, got %v", value)
		}
	}
}

func (o *Options) validateConsolidation(fail func(flag, format string, args ...any)) {
	if o.ConsolidationMode != ConsolidationOff && o.ConsolidationMode != ConsolidationSuggest {
		fail("consolidation", "must be %s or %s, got %q", ConsolidationOff, ConsolidationSuggest, o.ConsolidationMode)
	}
	if o.Consolidation.Interval < time.Second {
		fail("consolidation-interval", "%v is too short: use 1s or more", o.Consolidation.Interval)
	}
	if o.Consolidation.HalfLife < time.Minute {
		fail("consolidation-half-life", "%v is too short: use 1m or more, and days to be fair to those who ask for GPUs at certain times", o.Consolidation.HalfLife)
	}
	if o.Consolidation.Moves < 1 || o.Consolidation.Moves > defrag.MaxMoves {
		fail("consolidation-max-moves", "must be from 1 to %d, got %d: to look for nothing set --consolidation to %s", defrag.MaxMoves, o.Consolidation.Moves, ConsolidationOff)
	}
}

// consolidation is what the controller is to do while no gang waits; nil for nothing.
func (o *Options) consolidation() *controller.Consolidation {
	if o.ConsolidationMode == ConsolidationOff {
		return nil
	}
	return &o.Consolidation
}

func (o *Options) validateLease(fail func(flag, format string, args ...any)) {
	if o.LeaderElectNamespace == "" {
		fail("leader-elect-namespace", "must be set: in a Deployment, set the environment variable POD_NAMESPACE from the field metadata.namespace")
	} else if problems := validation.IsDNS1123Label(o.LeaderElectNamespace); len(problems) > 0 {
		fail("leader-elect-namespace", "%q is no namespace: %s", o.LeaderElectNamespace, strings.Join(problems, "; "))
	}
	if o.LeaderElectRetryPeriod <= 0 {
		fail("leader-elect-retry-period", "%v must be positive", o.LeaderElectRetryPeriod)
	}
	// client-go's jitter lets a try wait 1.2 times the period.
	if float64(o.LeaderElectRenewDeadline) <= 1.2*float64(o.LeaderElectRetryPeriod) {
		fail("leader-elect-renew-deadline", "%v must be more than 1.2 times --leader-elect-retry-period (%v)", o.LeaderElectRenewDeadline, o.LeaderElectRetryPeriod)
	}
	if o.LeaderElectLeaseDuration <= o.LeaderElectRenewDeadline {
		fail("leader-elect-lease-duration", "%v must be more than --leader-elect-renew-deadline (%v): else two controllers may write at the same time", o.LeaderElectLeaseDuration, o.LeaderElectRenewDeadline)
	}
	// client-go cuts the rest off: the others would wait no longer than the renew deadline.
	if o.LeaderElectLeaseDuration < time.Second || o.LeaderElectLeaseDuration%time.Second != 0 {
		fail("leader-elect-lease-duration", "%v is not a number of seconds: a Lease counts whole seconds, 1s or more", o.LeaderElectLeaseDuration)
	}
}

// addressOff is the address that switches a server off.
const addressOff = "0"
