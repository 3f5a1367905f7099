// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package checkpoint

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	"k8s.io/apimachinery/pkg/types"
)

// Record says that a claim's devices are prepared on this node.
type Record struct {
	// ClaimUID is the claim, and the name of the record. The namespace and the name are there so that
	// the claim can be looked up in the API server.
	ClaimUID  types.UID `json:"claimUID"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`

	// BootID is the boot in which the devices were prepared (/proc/sys/kernel/random/boot_id). After
	// another boot nothing that was prepared exists any more.
	BootID string `json:"bootID"`
	State  State  `json:"state"`
	// Devices are the claim's allocation results of this driver, in their order.
	Devices []Device `json:"devices"`

	// Unknown are fields that a newer release wrote. They are carried along.
	Unknown map[string]json.RawMessage `json:"-"`
}

// Device is one allocation result.
type Device struct {
	// Request is the request that the device was allocated for, as in the allocation result:
	// "<request>" or "<request>/<subrequest>".
	Request string `json:"request"`
	// Pool and Name identify the device.
	Pool string `json:"pool"`
	Name string `json:"device"`
	// UUID is the hardware behind the device (nvmlDeviceGetUUID); empty for a MIG partition that is
	// still to be made.
	UUID string `json:"uuid,omitempty"`
	// ShareID tells shares of one device apart (KEP-5075); empty for a device that is not shared.
	ShareID types.UID `json:"shareID,omitempty"`
	// ConsumedCapacity is how much of the device a share may use: quantities as in the allocation result, by name
	// of the capacity. Empty for a device that is not shared.
	ConsumedCapacity map[string]string `json:"consumedCapacity,omitempty"`
	// AdminAccess devices (KEP-5018) do not exclude other claims and are not excluded by them.
	AdminAccess bool `json:"adminAccess,omitempty"`

	// TimeSlice is the interval of time-slicing that was set for the claim, such as "Short"; empty when it was
	// not touched.
	TimeSlice string `json:"timeSlice,omitempty"`
	// MPSDaemon names the MPS daemon through which the claim uses the device; empty without MPS. The fields
	// after it are what each program of the claim may use of the device, 0 for no limit: percent of its
	// multiprocessors, and bytes of its memory.
	MPSDaemon                 string `json:"mpsDaemon,omitempty"`
	MPSActiveThreadPercentage int32  `json:"mpsActiveThreadPercentage,omitempty"`
	MPSPinnedMemoryBytes      int64  `json:"mpsPinnedMemoryBytes,omitempty"`

	// Unknown are fields that a newer release wrote. They are carried along.
	Unknown map[string]json.RawMessage `json:"-"`
}

// State says how far the preparation went.
type State string

const (
	// Preparing means that devices may have been made in part: to be completed or undone.
	Preparing State = "Preparing"
	// Prepared means that the devices exist and are the claim's.
	Prepared State = "Prepared"
)

// validUID reports whether a UID may be a file name in every directory we use: 1 to 128 letters,
// digits, '-' or '_', a letter or digit first. Kubernetes UIDs are UUIDs. (Not a regular expression:
// compiling one is milliseconds of the plugin's start.)
func validUID(uid string) bool {
	for i, c := range []byte(uid) {
		alphanumeric := '0' <= c && c <= '9' || 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
		if !alphanumeric && (i == 0 || c != '-' && c != '_') {
			return false
		}
	}
	return 0 < len(uid) && len(uid) <= 128
}

// validate reports every reason why the record must not be stored or believed.
func (r Record) validate() error {
	var errs []error
	if !validUID(string(r.ClaimUID)) {
		errs = append(errs, fmt.Errorf("claimUID %q: must be 1 to 128 letters, digits, '-' or '_'", r.ClaimUID))
	}
	errs = append(errs, required("namespace", r.Namespace), required("name", r.Name), required("bootID", r.BootID))
	if r.State != Preparing && r.State != Prepared {
		errs = append(errs, fmt.Errorf("state %q: must be %s or %s", r.State, Preparing, Prepared))
	}
	if len(r.Devices) == 0 {
		errs = append(errs, errors.New("devices: must not be empty"))
	}
	for i, device := range r.Devices {
		at := fmt.Sprintf("devices[%d].", i)
		errs = append(errs, required(at+"request", device.Request), required(at+"pool", device.Pool), required(at+"device", device.Name))
		for _, other := range r.Devices[:i] {
			if device.excludes(other) {
				errs = append(errs, fmt.Errorf("%sdevice %s/%s: is there twice, for requests %s and %s", at, device.Pool, device.Name, other.Request, device.Request))
			}
		}
	}
	return errors.Join(errs...)
}

func required(name, value string) error {
	if value == "" {
		return fmt.Errorf("%s: must not be empty", name)
	}
	return nil
}

// excludes reports whether the two cannot be handed out at the same time.
func (d Device) excludes(other Device) bool {
	if d.key() != other.key() || d.AdminAccess || other.AdminAccess {
		return false
	}
	return d.ShareID == "" || other.ShareID == "" || d.ShareID == other.ShareID
}

type deviceKey struct{ pool, name string }

func (d Device) key() deviceKey { return deviceKey{d.Pool, d.Name} }

// clone returns a copy that shares nothing that can be changed.
func (r Record) clone() Record {
	r.Devices = slices.Clone(r.Devices)
	for i := range r.Devices {
		r.Devices[i].ConsumedCapacity = maps.Clone(r.Devices[i].ConsumedCapacity)
		r.Devices[i].Unknown = maps.Clone(r.Devices[i].Unknown)
	}
	r.Unknown = maps.Clone(r.Unknown)
	return r
}

// inherit takes over what a newer release wrote into an earlier record of the same claim.
func (r Record) inherit(earlier Record) Record {
	r = r.clone()
	if r.Unknown == nil {
		r.Unknown = maps.Clone(earlier.Unknown)
	}
	for i := range r.Devices {
		device := &r.Devices[i]
		for _, before := range earlier.Devices {
			if device.Unknown == nil && device.key() == before.key() && device.Request == before.Request && device.ShareID == before.ShareID {
				device.Unknown = maps.Clone(before.Unknown)
			}
		}
	}
	return r
}
