// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"fmt"
	"math"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/utils/clock"

	"github.com/switchyard-dev/switchyard/pkg/demand"
)

// mixOptions are the flags of commands that say what is asked for.
type mixOptions struct{ halfLife time.Duration }

func (o *mixOptions) addFlags(fs *pflag.FlagSet) {
	fs.DurationVar(&o.halfLife, "half-life", demand.DefaultHalfLife, "After how long what was asked for counts half; the controller's --consolidation-half-life.")
}

func (o *mixOptions) validate() error {
	if o.halfLife <= 0 {
		return fmt.Errorf("--half-life %s is not positive: use the controller's --consolidation-half-life, %s by default", o.halfLife, demand.DefaultHalfLife)
	}
	return nil
}

// mix is what is asked for, by the objects that there are: what is gone is not known here.
func (s *snapshot) mix(o mixOptions, products map[string]string, clk clock.PassiveClock) demand.Mix {
	asked := demand.NewTracker(o.halfLife, clk)
	each(s.pods, asked.SetPod)
	each(s.claims, asked.SetClaim)
	each(s.gangs, asked.SetGang)
	return asked.Mix(products)
}

// mixView is what is asked for. Field names are documented in docs/reference/kubectl.md.
type mixView struct {
	// Owners is by how many it was asked for together, Weight what part that has in what gangs of each size are worth.
	Owners   float64       `json:"owners"`
	Weight   float64       `json:"weight"`
	Requests []requestView `json:"requests"`
}

// requestView is what is asked for of one size.
type requestView struct {
	Product  string  `json:"product,omitempty"`
	Size     int     `json:"size"`
	Requests float64 `json:"requests"`
}

func newMixView(m demand.Mix) mixView {
	v := mixView{Owners: oneDigit(m.Owners), Weight: round(m.History()), Requests: []requestView{}}
	for _, r := range m.Requests {
		v.Requests = append(v.Requests, requestView{r.Product, r.Size, oneDigit(r.Requests)})
	}
	return v
}

func oneDigit(value float64) float64 { return math.Round(value*10) / 10 }

// mixText is the line about it.
func mixText(m demand.Mix) string {
	return fmt.Sprintf("asked for of late: %s; the weight of this is %s", m, percent(m.History()))
}
