// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// run lets the pods of a trace arrive and leave. A pod that the scheduler finds no place for is rejected: it is deleted
// before the next step.
func (r *steeringRun) run(ctx context.Context, steps []trafficStep, samples Samples) error {
	gpus := map[int]int{} // of pods that have them
	arrived, rejected, full := 0, 0, false
	before, err := r.schedulerCounters(ctx)
	if err != nil {
		return err
	}
	for _, step := range steps {
		full = full || len(step.leave) > 0
		for _, number := range step.leave {
			if gpus[number] == 0 {
				continue
			}
			if err := r.delete(ctx, number); err != nil {
				return err
			}
			delete(gpus, number)
		}
		if err := r.settle(ctx, gpus); err != nil {
			return err
		}
		created, err := r.arrive(ctx, step.arrive)
		if err != nil {
			return err
		}
		for _, a := range step.arrive {
			arrived++
			seen := r.look(a.number)
			if seen.node == "" {
				rejected += a.gpus
				if err := r.delete(ctx, a.number); err != nil {
					return err
				}
				continue
			}
			gpus[a.number] = a.gpus
			samples.Add(steeringSeries(r.side.name, "latency"), milliseconds(seen.bound.Sub(created[a.number])))
		}
		if err := r.settle(ctx, gpus); err != nil {
			return err
		}
		if full {
			r.measure().sample(samples, r.side.name)
		}
	}
	r.measure().end(samples, r.side.name, float64(rejected)/gpusAskedFor(steps))
	after, err := r.schedulerCounters(ctx)
	if err != nil {
		return err
	}
	per := func(what string, value float64) {
		samples.Add(steeringSeries(r.side.name, what), value/float64(arrived))
	}
	per("writes", float64(r.writes))
	per("attempts", after.attempts-before.attempts)
	per("wakeups", after.wakeups-before.wakeups)
	per("scheduler-cpu", 1000*(after.cpu-before.cpu))
	return nil
}

// arrive creates pods and waits until the scheduler has decided on each.
func (r *steeringRun) arrive(ctx context.Context, arrivals []arrival) (created map[int]time.Time, err error) {
	created = map[int]time.Time{}
	for _, a := range arrivals {
		created[a.number] = time.Now()
		if err := r.client.Create(ctx, r.pod(a)); err != nil {
			return nil, err
		}
	}
	waiting := func() error {
		for _, a := range arrivals {
			if r.look(a.number).node == "" {
				return fmt.Errorf("pod %d waits", a.number)
			}
		}
		return nil
	}
	err = r.until(ctx, "all pods are decided on", func(context.Context) error {
		for _, a := range arrivals {
			if seen := r.look(a.number); seen.node == "" && !seen.unschedulable {
				return fmt.Errorf("pod %d is not", a.number)
			}
		}
		return nil
	})
	if err == nil && waiting() != nil {
		err = pause(ctx, secondThoughts)
	}
	return created, err
}

func (r *steeringRun) delete(ctx context.Context, number int) error {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: r.namespace, Name: podName(number)}}
	return r.client.Delete(ctx, pod, client.GracePeriodSeconds(0))
}

// settle waits until no other claims have devices than those of the pods.
func (r *steeringRun) settle(ctx context.Context, gpus map[int]int) error {
	want := 0
	for _, n := range gpus {
		want += n
	}
	return r.until(ctx, "claims are settled", func(context.Context) error {
		used, published, err := r.used()
		if err == nil && (used != want || !published) {
			err = fmt.Errorf("%d devices are in use, want %d; all is published: %t", used, want, published)
		}
		return err
	})
}

// schedulerCounters are what kube-scheduler has done since its start: attempts to schedule a pod, pods woken by a
// ResourceSlice, and seconds of CPU.
type schedulerCounters struct{ attempts, wakeups, cpu float64 }

func (r *steeringRun) schedulerCounters(ctx context.Context) (schedulerCounters, error) {
	families, err := r.SchedulerMetrics(ctx)
	if err != nil {
		return schedulerCounters{}, err
	}
	var c schedulerCounters
	for _, m := range families["scheduler_schedule_attempts_total"].GetMetric() {
		c.attempts += m.GetCounter().GetValue()
	}
	for _, m := range families["scheduler_queue_incoming_pods_total"].GetMetric() {
		for _, label := range m.GetLabel() {
			if label.GetName() == "event" && strings.Contains(label.GetValue(), "ResourceSlice") {
				c.wakeups += m.GetCounter().GetValue()
			}
		}
	}
	for _, m := range families["process_cpu_seconds_total"].GetMetric() {
		c.cpu += m.GetCounter().GetValue()
	}
	return c, nil
}
