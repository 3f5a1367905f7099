// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"slices"
	"sync"
)

// conditionName names something that keeps the plugin from being ready.
type conditionName string

const (
	conditionRegistration conditionName = "registration"
	conditionDiscovery    conditionName = "discovery"
	conditionCDI          conditionName = "cdi"
	conditionPublishing   conditionName = "publishing"
	conditionShutdown     conditionName = "shutdown"
)

// conditions collects what is wrong at the moment: the plugin is ready when nothing is.
type conditions struct {
	mu      sync.Mutex
	problem map[conditionName]string
}

// set notes a problem and reports whether its text is new.
func (c *conditions) set(name conditionName, message string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.problem == nil {
		c.problem = make(map[conditionName]string)
	}
	old, ok := c.problem[name]
	c.problem[name] = message
	return !ok || old != message
}

// clear removes a problem, if there is one.
func (c *conditions) clear(name conditionName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.problem, name)
}

// problems lists the problems as "name: message", sorted, without those of the excluded names.
func (c *conditions) problems(exclude ...string) []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	list := make([]string, 0, len(c.problem))
	for name, message := range c.problem {
		if slices.Contains(exclude, string(name)) {
			continue
		}
		list = append(list, string(name)+": "+message)
	}
	slices.Sort(list)
	return list
}
