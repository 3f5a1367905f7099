// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"regexp"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/layout"
	"github.com/switchyard-dev/switchyard/test/localcluster/internal/network"
)

// subdomain is a DNS subdomain as Kubernetes has it (RFC 1123).
var subdomain = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

// maxNodeName is less than the 253 characters that the API allows: a kubelet
// labels its node with its name, and label values have at most 63.
const maxNodeName = 63

// checkNames refuses node names that Kubernetes or this program would not take.
func checkNames(names []string) error {
	if len(names) > network.MaxNodes {
		return fmt.Errorf("%d nodes are too many: a cluster has at most %d", len(names), network.MaxNodes)
	}
	seen := map[string]bool{}
	for _, name := range names {
		switch {
		case len(name) > maxNodeName || !subdomain.MatchString(name):
			return fmt.Errorf("node name %q must be a DNS subdomain: lower-case letters, digits, '-' and '.', at most %d characters", name, maxNodeName)
		case name == layout.ControlPlane:
			return fmt.Errorf("node name %q is taken by the control plane", name)
		case seen[name]:
			return fmt.Errorf("node name %q is given twice", name)
		}
		seen[name] = true
	}
	return nil
}
