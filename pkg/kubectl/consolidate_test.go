// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/switchyard-dev/switchyard/api/v1alpha1"
)

// optedIn lets the pods of the service infer be moved.
func (c testCluster) optedIn() testCluster {
	var pods testCluster
	for _, o := range c {
		if pod, is := o.(*corev1.Pod); is && pod.Namespace == "web" {
			pod = pod.DeepCopy()
			if pod.Labels == nil {
				pod.Labels = map[string]string{}
			}
			pod.Labels[v1alpha1.MovableLabel] = "true"
			pods = append(pods, pod)
		}
	}
	return c.with(pods...)
}

func TestDefragPlanWithoutAGangShowsWhatIsWorthMoving(t *testing.T) {
	waiting := journey(t)
	idle := waiting.without("ml", "llama-tp4-0").without("ml", "llama-tp4-1").without("ml", "llama-tp4")
	for file, tc := range map[string]struct {
		cluster testCluster
		args    []string
	}{
		"consolidation.txt":         {idle.optedIn(), nil},
		"consolidation-wide.txt":    {idle.optedIn(), []string{"-o", "wide"}},
		"consolidation.json":        {idle.optedIn(), []string{"-o", "json"}},
		"consolidation-waiting.txt": {waiting.optedIn(), nil},
		"consolidation-nobody.txt":  {idle, []string{"-o", "wide"}},
		"consolidation-budget.txt":  {idle.optedIn().with(budget(0)), nil},
	} {
		t.Run(file, func(t *testing.T) {
			tc.cluster.golden(t, file, append([]string{"defrag", "plan"}, tc.args...)...)
		})
	}
}
