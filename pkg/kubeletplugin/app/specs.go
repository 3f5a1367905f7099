// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package app

import (
	"context"
	"fmt"

	"github.com/switchyard-dev/switchyard/pkg/cdi"
)

// newSpecs returns the writer of CDI specs. It neither looks at the driver nor at the hardware yet.
func newSpecs(ctx context.Context, o Options, platform Platform) (*cdi.Writer, error) {
	writer, err := cdi.NewWriter(ctx, cdi.Options{
		SpecDir:         o.CDIDir,
		NVML:            platform.Interface,
		DriverRoot:      o.DriverRoot,
		DriverRootMount: o.DriverRootMount,
		DevRoot:         o.DevRoot,
		HookPath:        o.CDIHookPath,
	})
	if err != nil {
		return nil, fmt.Errorf("set up CDI specs: %w", err)
	}
	return writer, nil
}
