// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package program

import (
	"flag"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/klog/v2"
)

// Formats of --logging-format.
const (
	formatText = "text"
	formatJSON = "json"
)

// Logging is how a process logs. (Not k8s.io/component-base/logs: with its feature gates comes a
// registry of metrics that nobody reads, which takes longer to set up than anything else at the start, and flags that
// do nothing without a gate.)
type Logging struct {
	// Format is formatText or formatJSON.
	Format string
	// FlushFrequency is the longest that a line of text may wait in memory.
	FlushFrequency time.Duration
	// klog are the flags of klog that are the program's too.
	klog *flag.FlagSet
}

// NewLogging returns the defaults.
func NewLogging() *Logging {
	l := &Logging{Format: formatText, FlushFrequency: 5 * time.Second, klog: flag.NewFlagSet("klog", flag.ContinueOnError)}
	klog.InitFlags(l.klog)
	return l
}

// AddFlags adds the flags to a flag set.
func (l *Logging) AddFlags(fs *pflag.FlagSet) {
	fs.StringVar(&l.Format, "logging-format", l.Format, "Format of the log: text, or json, one object a line.")
	fs.DurationVar(&l.FlushFrequency, "log-flush-frequency", l.FlushFrequency, "The longest that a line of text may wait before it is written.")
	for name, usage := range map[string]string{
		"v":       "Log more the higher it is: 2 tells of every call, 4 and above are for debugging.",
		"vmodule": "Another --v for some files, as a comma-separated list of PATTERN=N. Only for text.",
	} {
		f := pflag.PFlagFromGoFlag(l.klog.Lookup(name))
		f.Usage = usage
		fs.AddFlag(f)
	}
}

// Validate calls fail for every flag that cannot work, with what to do about it.
func (l *Logging) Validate(fail func(flag, format string, args ...any)) {
	if l.Format != formatText && l.Format != formatJSON {
		fail("logging-format", "%q is no format: use %s or %s", l.Format, formatText, formatJSON)
	}
	if l.FlushFrequency <= 0 {
		fail("log-flush-frequency", "%v is not positive: use 1s or more", l.FlushFrequency)
	}
}

// Apply makes klog, through which everything logs, do so. Text goes where klog's flags say: standard
// error; JSON goes to out.
func (l *Logging) Apply(out io.Writer) error {
	if l.Format == formatText {
		klog.StartFlushDaemon(l.FlushFrequency)
		return nil
	}
	verbosity, err := strconv.Atoi(l.klog.Lookup("v").Value.String())
	if err != nil {
		return fmt.Errorf("--v: %w", err)
	}
	//nolint:logcheck // This is where contextual loggers come from.
	klog.SetSlogLogger(slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{
		AddSource:   true,
		Level:       slog.Level(-verbosity), // logr's V(n) is slog's level -n
		ReplaceAttr: jsonAttr,
	})))
	return nil
}

// jsonAttr gives fields the names and forms that the logs of Kubernetes's own programs have.
func jsonAttr(groups []string, a slog.Attr) slog.Attr {
	if a.Value.Kind() == slog.KindDuration {
		a.Value = slog.StringValue(a.Value.Duration().String())
	}
	if len(groups) > 0 {
		return a
	}
	switch a.Key {
	case slog.TimeKey:
		return slog.Time("ts", a.Value.Time().UTC())
	case slog.SourceKey:
		if source, ok := a.Value.Any().(*slog.Source); ok {
			return slog.String("caller", fmt.Sprintf("%s:%d", source.File, source.Line))
		}
	case slog.LevelKey:
		if level, ok := a.Value.Any().(slog.Level); ok && level <= slog.LevelInfo {
			return slog.Int("v", int(-level))
		}
	}
	return a
}
