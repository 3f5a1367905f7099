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
	table(page, resourcemodel.AttributeTable(), "GPU")
	page.WriteString("\nThese are published where [steering](../guide/steering.md) is on:\n\n")
	table(page, resourcemodel.SteeringAttributeTable(), "GPU")
	page.WriteString("\n## Capacities\n\n")
	table(page, resourcemodel.CapacityTable(), "GPU")
	fmt.Fprintf(page, `
## Shares

A GPU that the [node configuration](node-config.md) shares is one device that several claims can have at the same time
(%[1]sallowMultipleAllocations%[1]s). It has the attributes of a GPU, and these:

`, "`")
	table(page, resourcemodel.ShareAttributeTable(), "shared GPU")
	page.WriteString("\nThese are its capacities. A claim asks for some with `capacity: {requests: {memory: 10Gi}}`, and CEL sees all of the GPU's:\n\n")
	table(page, resourcemodel.ShareCapacityTable(), "shared GPU")
	fmt.Fprintf(page, `
## MIG partitions

Every place that a partition can be in is a device as well, on GPUs whose MIG mode is on. It has the attributes of its GPU, but for
%[1]suuid%[1]s, %[1]sindex%[1]s, %[1]sminor%[1]s, %[1]snvlinks%[1]s, %[1]snvlinksPerPeer%[1]s, %[1]snvswitchDomainSize%[1]s and %[1]slastNVSwitchDomain%[1]s, and these:

`, "`")
	table(page, resourcemodel.PartitionAttributeTable(), "partition")
	page.WriteString("\nThese are its capacities:\n\n")
	table(page, resourcemodel.PartitionCapacityTable(), "partition")
	fmt.Fprintf(page, `
## Taints

With effect %[1]sNoSchedule%[1]s new pods stay away and running ones go on; with %[1]sNoExecute%[1]s Kubernetes deletes these, too;
%[1]sNone%[1]s is for people to see ([sick GPUs](../guide/health.md)).

| key | value | effect | meaning |
|---|---|---|---|
| %[1]s%[2]s%[1]s | the worst reason, such as %[1]sLost%[1]s or %[1]sXID48%[1]s | %[1]sNoSchedule%[1]s; %[1]sNoExecute%[1]s if configured | The GPU must not be used; it stays listed until the node reboots or it works again. |
| %[1]s%[3]s%[1]s | the worst reason, such as %[1]sNVLinkDown%[1]s | %[1]sNone%[1]s | The GPU can be used and is not as it should be. |
| %[1]s%[4]s%[1]s | | %[1]sNoSchedule%[1]s | The GPU is in MIG mode and cannot be used whole. |
| %[1]s%[7]s%[1]s | | %[1]sNoSchedule%[1]s | The GPU is to be shared, or not to be shared any more, and is still in use as it was. |
| %[1]s%[5]s%[1]s | | %[1]sNoSchedule%[1]s | The partition's GPU offers none now: its MIG mode is off, or this node does not let it be partitioned. |
| %[1]s%[6]s%[1]s | | %[1]sNoSchedule%[1]s | Partitions that this driver has not made are in the partition's place. |
`, "`", resourcemodel.TaintUnhealthy, resourcemodel.TaintDegraded, resourcemodel.TaintMIGEnabled, resourcemodel.TaintMIGUnavailable, resourcemodel.TaintMIGOccupied, resourcemodel.TaintReconfiguring)
	return nil
}

func table(page *bytes.Buffer, fields []resourcemodel.Field, of string) {
	fmt.Fprintf(page, "| name | type | on every %s | meaning |\n|---|---|---|---|\n", of)
	for _, f := range fields {
		always := ""
		if f.Always {
			always = "yes"
		}
		fmt.Fprintf(page, "| `%s` | %s | %s | %s |\n", f.Name, f.Type, always, strings.ReplaceAll(f.Meaning, "|", `\|`))
	}
}
