// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package demand_test

import (
	"testing"

	"github.com/switchyard-dev/switchyard/pkg/demand"
)

func TestStockForgetsWhatWasThere(t *testing.T) {
	var stock demand.Stock
	a, b := demand.Rooms{1, 2, 0.5}, demand.Rooms{0, 3}
	stock.Change(&demand.Rooms{}, &a)
	stock.Change(&a, &b)
	stock.Change(&b, &demand.Rooms{})
	if stock != (demand.Stock{}) {
		t.Errorf("got %+v, want nothing", stock)
	}
}

func TestDot(t *testing.T) {
	if got := (&demand.Rooms{1, 2, 3}).Dot(&demand.Rooms{4, 0, 0.5}); got != 5.5 {
		t.Errorf("got %v, want 5.5", got)
	}
}
