// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
	"github.com/switchyard-dev/switchyard/pkg/resourcemodel"
)

func attributes(page *bytes.Buffer) error {
	fmt.Fprintf(page, `# Attributes and capacities

Every GPU is a device of driver %[1]s%[2]s%[1]s in the pool that has its node's name. Names without a domain are in
that of the driver: %[1]sdevice.attributes["%[2]s"].type%[1]s in CEL, %[1]s%[2]s/type%[1]s in a constraint.

What is not known is absent. CEL that reads an absent attribute fails the whole pod, so read those that not
every GPU has with a default: %[1]sdevice.attributes["%[2]s"].?nvswitchDomain.orValue("")%[1]s.

## Attributes

`, "`", v1alpha1.DriverName)
	table(page, resourcemodel.AttributeTable())
	page.WriteString("\n## Capacities\n\n")
	table(page, resourcemodel.CapacityTable())
	fmt.Fprintf(page, `
## Taints

Both have effect %[1]sNoSchedule%[1]s: new pods stay away, running ones go on.

| key | value | meaning |
|---|---|---|
| %[1]s%[2]s%[1]s | the reason, such as %[1]sLost%[1]s | The GPU does not work; it stays listed until the node reboots or it works again. |
| %[1]s%[3]s%[1]s | | The GPU is in MIG mode and cannot be used whole. |
`, "`", resourcemodel.TaintUnhealthy, resourcemodel.TaintMIGEnabled)
	return nil
}

func table(page *bytes.Buffer, fields []resourcemodel.Field) {
	page.WriteString("| name | type | on every GPU | meaning |\n|---|---|---|---|\n")
	for _, f := range fields {
		always := ""
		if f.Always {
			always = "yes"
		}
		fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, always, strings.ReplaceAll(f.Meaning, "|", `\|`))
	}
}
