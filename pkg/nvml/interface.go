// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package nvml

import gonvml "github.com/NVIDIA/go-nvml/pkg/nvml"

// Interface is NVML as go-nvml has it. The name is for packages that only hand it on, and have no
// other business with go-nvml.
type Interface = gonvml.Interface
