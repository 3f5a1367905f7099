// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package sharing

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
)

const (
	// DirName is the directory in the kubelet plugin's directory that it and the supervisor share.
	DirName = "mps"
	// DefaultSharedMemoryDir has the daemons' shared memory: in memory, and gone with a reboot.
	DefaultSharedMemoryDir = "/dev/shm/switchyard-mps"

	specFormat    = "switchyard.dev/mps-daemon"
	statusFormat  = "switchyard.dev/mps-daemon-status"
	formatVersion = 1

	fileSuffix = ".json"
	filePerm   = 0o644
	dirPerm    = 0o755
	// maxFile is far above what is ever written.
	maxFile = 64 << 10
	// maxDevices is how many devices a claim can have.
	maxDevices = 32
)

// Spec is what is wanted of one MPS daemon.
type Spec struct {
	// ID names the daemon: 1 to 63 letters, digits and hyphens.
	ID string `json:"id"`
	// BootID is the boot for which it is wanted (/proc/sys/kernel/random/boot_id).
	BootID string `json:"bootID"`
	// Devices are the GPUs that it serves, or the one MIG partition.
	Devices []Device `json:"devices"`
	// ActiveThreadPercentage is what one client may use of a device's multiprocessors, 1 to 100; 0 for no limit.
	ActiveThreadPercentage int32 `json:"activeThreadPercentage,omitempty"`
}

// Device is one device of a daemon.
type Device struct {
	// UUID is NVML's, "GPU-..." or "MIG-...".
	UUID string `json:"uuid"`
	// PinnedMemoryMiB is what one client may allocate of the device's memory, in MiB; 0 for no limit.
	PinnedMemoryMiB int64 `json:"pinnedMemoryMiB,omitempty"`
}

// State says how a daemon is.
type State string

// The states of a daemon.
const (
	// Starting means that it does not answer yet.
	Starting State = "Starting"
	// Ready means that it answers and has its limits.
	Ready State = "Ready"
	// Failed means that it ended, or was not started, and will be started again; Message says why.
	Failed State = "Failed"
	// Refused means that it will not be started, since its spec cannot be followed; Message says why.
	Refused State = "Refused"
)

// Status is how a daemon is.
type Status struct {
	ID string `json:"id"`
	// SpecHash says which spec it is about.
	SpecHash string `json:"specHash"`
	State    State  `json:"state"`
	// PID is the daemon's process ID, as its supervisor sees it; 0 for none.
	PID int `json:"pid,omitempty"`
	// Restarts counts how often it was started again because it had ended.
	Restarts int `json:"restarts,omitempty"`
	// Message tells a person what is wrong.
	Message string `json:"message,omitempty"`
	// SharedMemoryDir is what containers get as /dev/shm, as a path on the host.
	SharedMemoryDir string `json:"sharedMemoryDir,omitempty"`
}

// head is how each file begins.
type head struct {
	Format  string `json:"format"`
	Version int    `json:"version"`
}

type specFile struct {
	head
	Spec
}

type statusFile struct {
	head
	Status
}

// validID reports whether an ID may be a file name.
func validID(id string) bool {
	for _, c := range []byte(id) {
		letter := 'A' <= c && c <= 'Z' || 'a' <= c && c <= 'z'
		if !letter && c != '-' && (c < '0' || c > '9') {
			return false
		}
	}
	return 0 < len(id) && len(id) <= 63
}

// validate reports every reason why a daemon cannot be what the spec says.
func (s Spec) validate() error {
	var errs []error
	if !validID(s.ID) {
		errs = append(errs, fmt.Errorf("id %q: must be 1 to 63 letters, digits or hyphens", s.ID))
	}
	if s.BootID == "" {
		errs = append(errs, errors.New("bootID: must not be empty"))
	}
	if len(s.Devices) == 0 || len(s.Devices) > maxDevices {
		errs = append(errs, fmt.Errorf("devices: must be 1 to %d, not %d", maxDevices, len(s.Devices)))
	}
	for i, device := range s.Devices {
		if prefix, _, _ := strings.Cut(device.UUID, "-"); prefix != "GPU" && prefix != "MIG" || strings.ContainsAny(device.UUID, ", \n") {
			errs = append(errs, fmt.Errorf("devices[%d].uuid %q: must begin with GPU- or MIG-", i, device.UUID))
		}
		if strings.HasPrefix(device.UUID, "MIG-") && len(s.Devices) > 1 {
			errs = append(errs, fmt.Errorf("devices[%d].uuid %s: a daemon serves one MIG partition and nothing else", i, device.UUID))
		}
		if device.PinnedMemoryMiB < 0 {
			errs = append(errs, fmt.Errorf("devices[%d].pinnedMemoryMiB: must not be negative", i))
		}
		if slices.ContainsFunc(s.Devices[:i], func(other Device) bool { return other.UUID == device.UUID }) {
			errs = append(errs, fmt.Errorf("devices[%d].uuid %s: is there twice", i, device.UUID))
		}
	}
	if s.ActiveThreadPercentage < 0 || s.ActiveThreadPercentage > 100 {
		errs = append(errs, fmt.Errorf("activeThreadPercentage %d: must be 1 to 100, or 0 for no limit", s.ActiveThreadPercentage))
	}
	return errors.Join(errs...)
}

// encode is the content of the spec's file.
func (s Spec) encode() ([]byte, error) {
	if err := s.validate(); err != nil {
		return nil, err
	}
	return encode(specFile{head{specFormat, formatVersion}, s})
}

func encode(file any) ([]byte, error) {
	data, err := json.MarshalIndent(file, "", "  ")
	return append(data, '\n'), err
}

// hashOf identifies the content of a spec's file.
func hashOf(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

// decodeSpec reads the content of a spec's file.
func decodeSpec(data []byte) (Spec, error) {
	var file specFile
	if err := decode(data, specFormat, &file.head, &file); err != nil {
		return Spec{}, err
	}
	return file.Spec, file.validate()
}

func decodeStatus(data []byte) (Status, error) {
	var file statusFile
	if err := decode(data, statusFormat, &file.head, &file); err != nil {
		return Status{}, err
	}
	return file.Status, nil
}

// decode reads one JSON object into a file, whose head it judges first: a file of another version may look
// different.
func decode(data []byte, format string, head *head, file any) error {
	if err := json.Unmarshal(data, head); err != nil {
		return err
	}
	if head.Format != format {
		return fmt.Errorf("format is %q, not %q", head.Format, format)
	}
	if head.Version != formatVersion {
		return fmt.Errorf("written in version %d of the format; this release reads version %d: "+
			"let the kubelet plugin and the MPS supervisor of this node be of one release", head.Version, formatVersion)
	}
	decoder := json.NewDecoder(bytes.NewReader(data))
	decoder.DisallowUnknownFields()
	return decoder.Decode(file)
}

// layout are the paths in the directory that the plugin and the supervisor share.
type layout string

func (l layout) specs() string            { return filepath.Join(string(l), "specs") }
func (l layout) spec(id string) string    { return filepath.Join(l.specs(), id+fileSuffix) }
func (l layout) statuses() string         { return filepath.Join(string(l), "status") }
func (l layout) status(id string) string  { return filepath.Join(l.statuses(), id+fileSuffix) }
func (l layout) daemons() string          { return filepath.Join(string(l), "daemons") }
func (l layout) daemon(id string) string  { return filepath.Join(l.daemons(), id) }
func (l layout) pipeDir(id string) string { return filepath.Join(l.daemon(id), "pipe") }
func (l layout) logDir(id string) string  { return filepath.Join(l.daemon(id), "log") }
func (l layout) supervisorLock() string   { return filepath.Join(string(l), "supervisor.lock") }
func idOf(name string) (id string, ok bool) {
	id, ok = strings.CutSuffix(name, fileSuffix)
	return id, ok && validID(id)
}

// prepare makes the directories, and removes what killed writers left in one of them.
func (l layout) prepare(mine string) error {
	for _, dir := range []string{l.specs(), l.statuses(), l.daemons()} {
		if err := os.MkdirAll(dir, dirPerm); err != nil {
			return fmt.Errorf("make the directory for MPS daemons: %w", err)
		}
	}
	if _, err := atomicfile.RemoveStale(mine, func(base string) bool { _, ok := idOf(base); return ok }); err != nil {
		return fmt.Errorf("tidy the directory for MPS daemons: %w", err)
	}
	return nil
}

// checkOwn returns an error unless a directory is this user's, and nobody else can put anything there. Any user of the node
// may make a directory or a link in /dev/shm, and what lies there is mounted into containers.
func checkOwn(dir string) error {
	info, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !info.IsDir() || !ok || int(stat.Uid) != os.Geteuid() || info.Mode().Perm()&0o022 != 0 {
		return fmt.Errorf("%s must be a directory that user %d alone may write to: remove what is there", dir, os.Geteuid())
	}
	return nil
}

// list returns the IDs that have a file in a directory.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var ids []string
	for _, entry := range entries {
		if id, ok := idOf(entry.Name()); ok {
			ids = append(ids, id)
		}
	}
	return ids, nil
}

// readFile reads a file that is small.
func readFile(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, maxFile+1))
	if err == nil && len(data) > maxFile {
		err = fmt.Errorf("%s has more than %d bytes", path, maxFile)
	}
	return data, err
}
