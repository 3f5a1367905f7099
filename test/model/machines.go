// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package model

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// changeDevice writes a slice.
func (u *users) changeDevice(change func(*resourceapi.Device) bool) string {
	s := one(u, hasDevices)
	i := u.w.rand.IntN(len(s.Spec.Devices))
	changed := s.Spec.Devices[i].DeepCopy()
	if !change(changed) {
		return ""
	}
	_, _ = update(u.w.api, keyOf(s), preconditions{}, func(s *resourceapi.ResourceSlice) { s.Spec.Devices[i] = *changed })
	return fmt.Sprintf("%s of %s", changed.Name, s.Spec.Pool.Name)
}

func (u *users) loseGPU() string {
	did := u.changeDevice(func(d *resourceapi.Device) bool {
		d.Taints = []resourceapi.DeviceTaint{{Key: "gpu.switchyard.dev/lost", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
		return true
	})
	return "GPU is lost: " + did
}

func (u *users) recoverGPU() string {
	for _, s := range list[*resourceapi.ResourceSlice](&u.w.api.objects) {
		for i := range s.Spec.Devices {
			if len(s.Spec.Devices[i].Taints) > 0 {
				_, _ = update(u.w.api, keyOf(s), preconditions{}, func(s *resourceapi.ResourceSlice) { s.Spec.Devices[i].Taints = nil })
				return fmt.Sprintf("GPU %s of %s is back", s.Spec.Devices[i].Name, s.Spec.Pool.Name)
			}
		}
	}
	return ""
}

func (u *users) relabelGPU() string {
	did := u.changeDevice(func(d *resourceapi.Device) bool {
		domain, ok := d.Attributes["nvswitchDomain"]
		if !ok {
			return false
		}
		d.Attributes["nvswitchDomain"] = resourceapi.DeviceAttribute{StringValue: ptr.To((*domain.StringValue)[:len(*domain.StringValue)-1] + itoa(u.w.rand.IntN(3)))}
		return true
	})
	if did == "" {
		return ""
	}
	return "GPU is in another domain: " + did
}

func (u *users) loseNode() string {
	n := one(u, nodeReady)
	if n == nil {
		return ""
	}
	_, _ = update(u.w.api, keyOf(n), preconditions{}, func(n *corev1.Node) { setReady(n, false) })
	return "node is lost: " + n.Name
}

func (u *users) returnNode() string {
	for _, s := range list[*resourceapi.ResourceSlice](&u.w.api.objects) {
		name := s.Spec.Pool.Name
		n := get[*corev1.Node](&u.w.api.objects, key{Name: name})
		switch {
		case n == nil:
			u.w.must(create(u.w.api, newNode(name)))
		case !nodeReady(n) || n.Spec.Unschedulable:
			_, _ = update(u.w.api, key{Name: name}, preconditions{}, func(n *corev1.Node) {
				setReady(n, true)
				n.Spec.Unschedulable = false
			})
		default:
			continue
		}
		return "node is back: " + name
	}
	return ""
}

func (u *users) cordon() string {
	n := one[*corev1.Node](u, nil)
	if n == nil {
		return ""
	}
	_, _ = update(u.w.api, keyOf(n), preconditions{}, func(n *corev1.Node) { n.Spec.Unschedulable = !n.Spec.Unschedulable })
	return "cordons or uncordons " + n.Name
}

func (u *users) deleteNode() string {
	n := one(u, func(n *corev1.Node) bool { return !nodeReady(n) })
	if n == nil {
		return ""
	}
	_ = remove[*corev1.Node](u.w.api, keyOf(n), preconditions{})
	return "deletes node " + n.Name
}

func (u *users) changeClass() string {
	class := get[*resourceapi.DeviceClass](&u.w.api.objects, key{Name: driver})
	switch {
	case class == nil:
		u.w.must(create(u.w.api, newClass()))
		return "creates the DeviceClass again"
	case len(class.Spec.Selectors) > 1:
		_, _ = update(u.w.api, keyOf(class), preconditions{}, func(c *resourceapi.DeviceClass) { c.Spec = newClass().Spec })
		return "restores the DeviceClass"
	case u.w.rand.IntN(2) == 0:
		_ = remove[*resourceapi.DeviceClass](u.w.api, keyOf(class), preconditions{})
		return "deletes the DeviceClass"
	default:
		_, _ = update(u.w.api, keyOf(class), preconditions{}, func(c *resourceapi.DeviceClass) {
			c.Spec.Selectors = append(c.Spec.Selectors, resourceapi.DeviceSelector{CEL: &resourceapi.CELDeviceSelector{
				Expression: `device.attributes["gpu.switchyard.dev"].?id.orValue("") != "node-0-1"`,
			}})
		})
		return "has the DeviceClass select fewer devices"
	}
}

// taintDevice has an operator's own rule come or go.
func (u *users) taintDevice() string {
	const name = "operator"
	if get[*resourceapi.DeviceTaintRule](&u.w.api.objects, key{Name: name}) != nil {
		_ = remove[*resourceapi.DeviceTaintRule](u.w.api, key{Name: name}, preconditions{})
		return "deletes a rule of their own"
	}
	s := one(u, hasDevices)
	u.w.must(create(u.w.api, &resourceapi.DeviceTaintRule{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec: resourceapi.DeviceTaintRuleSpec{
			DeviceSelector: &resourceapi.DeviceTaintSelector{Driver: ptr.To(driver), Pool: ptr.To(s.Spec.Pool.Name), Device: ptr.To(s.Spec.Devices[0].Name)},
			Taint:          resourceapi.DeviceTaint{Key: "example.com/repair", Effect: resourceapi.DeviceTaintEffectNoSchedule},
		},
	}))
	return "taints a device of " + s.Spec.Pool.Name
}
