// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"errors"
	"testing"
)

const gang = `
apiVersion: scheduling.k8s.io/v1beta1
kind: PodGroup
metadata: {name: pair}
spec:
  schedulingPolicy: {gang: {minCount: 2}}
`

func sleeper(name, group string) string {
	return `
apiVersion: v1
kind: Pod
metadata: {name: ` + name + `}
spec:
  terminationGracePeriodSeconds: 0
  ` + group + `
  containers:
    - {name: work, image: "localhost/busybox:1", imagePullPolicy: Never, command: [sleep, infinity]}
`
}

// With --native-gangs the scheduler holds the first pod of a gang of two until the second is there.
func TestNativeGangs(t *testing.T) {
	const inGang = "schedulingGroup: {podGroupName: pair}"
	c := newCluster(t)
	c.local("up", "--nodes", "1", "--native-gangs")
	c.eventually("the default service account", func() error {
		_, err := c.try("kubectl", "get", "serviceaccount", "default")
		return err
	})
	c.apply(gang)
	c.apply(sleeper("first", inGang))
	// A pod that came later runs: the scheduler has seen the first one, too.
	c.apply(sleeper("other", ""))
	c.running("other")
	if node := c.kubectl("get", "pod", "first", "-o", "jsonpath={.spec.nodeName}"); node != "" {
		t.Errorf("the first pod of the gang is on %s, and the second is not there yet", node)
	}
	c.apply(sleeper("second", inGang))
	c.running("first", "second")
}

// running waits until the pods run.
func (c *cluster) running(pods ...string) {
	c.t.Helper()
	for _, pod := range pods {
		c.eventually("pod "+pod+" to run", func() error {
			if phase := c.kubectl("get", "pod", pod, "-o", "jsonpath={.status.phase}"); phase != "Running" {
				return errors.New(phase)
			}
			return nil
		})
	}
}
