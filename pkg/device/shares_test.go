// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package device

import "testing"

// Whatever a share has, its percentage is not 0, and not more than was asked for where MPS rounds it up to whole
// multiprocessors; and it is one of them less at most.
func TestAnActiveThreadPercentageIsNeitherNothingNorMoreThanTheShareHas(t *testing.T) {
	shares := Shares{Strategy: StrategyMPS}
	for all := 1; all <= 200; all++ {
		gpu := GPU{Multiprocessors: all}
		for has := shares.MinMultiprocessors(gpu); has <= all; has++ {
			percent := int(gpu.ActiveThreadPercentage(int64(has)))
			gets := (percent*all + 99) / 100
			if percent < 1 || percent > 100 || gets > has || gets < has-1 {
				t.Errorf("%d of %d multiprocessors are %d %%, which is %d", has, all, percent, gets)
			}
		}
	}
}

func TestAnActiveThreadPercentageOfWhatThereIsNot(t *testing.T) {
	for name, test := range map[string]struct {
		gpu  GPU
		has  int64
		want int32
	}{
		"a GPU that does not tell":  {GPU{}, 10, 0},
		"less than one percent":     {GPU{Multiprocessors: 132}, 1, 0},
		"more than there is":        {GPU{Multiprocessors: 132}, 200, 100},
		"a share that has nothing":  {GPU{Multiprocessors: 132}, 0, 0},
		"a share that has negative": {GPU{Multiprocessors: 132}, -1, 0},
	} {
		if got := test.gpu.ActiveThreadPercentage(test.has); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestMPSTakesVolta(t *testing.T) {
	for capability, refused := range map[string]bool{"6.1": true, "7.0": false, "9.0": false, "10.0": false, "": false} {
		if err := (GPU{ComputeCapability: capability}).CheckMPS(); (err != nil) != refused {
			t.Errorf("compute capability %q: %v", capability, err)
		}
	}
}
