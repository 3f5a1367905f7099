// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Failure says how MPS daemons of the node are to fail. The zero value is not at all.
type Failure struct {
	// Start makes daemons end at their start with this text.
	Start string `json:"start,omitempty"`
	// Delay is how long they take to answer, in milliseconds.
	Delay int64 `json:"delayMilliseconds,omitempty"`
	// Awaited is no failure: a program waits for daemons, and has each start a server the moment that it answers.
	Awaited bool `json:"awaited,omitempty"`
}

// SetFailure says how MPS daemons of the node in a directory are to fail.
func SetFailure(dir string, failure Failure) error {
	data, err := json.Marshal(failure)
	if err != nil {
		return err
	}
	return replace(filepath.Join(dir, "mps.json"), data)
}

// ReadFailure tells how MPS daemons of the node are to fail.
func ReadFailure(dir string) (Failure, error) {
	var failure Failure
	data, err := os.ReadFile(filepath.Join(dir, "mps.json"))
	if errors.Is(err, fs.ErrNotExist) {
		return failure, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &failure)
	}
	return failure, err
}

// Running is an MPS daemon that runs.
type Running struct {
	PID int `json:"pid"`
	// Devices are what it was given as CUDA_VISIBLE_DEVICES.
	Devices []string `json:"devices"`
	// PipeDirectory is its CUDA_MPS_PIPE_DIRECTORY, and Capabilities what it may do (CapEff of proc_pid_status(5)).
	PipeDirectory string `json:"pipeDirectory"`
	Capabilities  string `json:"capabilities"`
}

// Daemons lists the MPS daemons that run on the node in a directory, by their first device.
func Daemons(dir string) ([]Running, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "mps"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	var running []Running
	for _, entry := range entries {
		path := filepath.Join(dir, "mps", entry.Name())
		file, err := os.Open(path)
		if err != nil {
			continue // it has just ended
		}
		free := unix.Flock(int(file.Fd()), unix.LOCK_SH|unix.LOCK_NB) == nil
		var daemon Running
		err = errors.Join(json.NewDecoder(file).Decode(&daemon), file.Close())
		if !free && err == nil {
			running = append(running, daemon)
		}
	}
	slices.SortFunc(running, func(a, b Running) int { return strings.Compare(a.Devices[0], b.Devices[0]) })
	return running, nil
}

// register makes a daemon one that runs. The file is locked until the process ends.
func register(dir string, daemon Running) error {
	if err := os.MkdirAll(filepath.Join(dir, "mps"), 0o755); err != nil {
		return err
	}
	// No close: that would release the lock.
	file, err := os.OpenFile(filepath.Join(dir, "mps", strconv.Itoa(daemon.PID)+".json"), os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(file.Fd()), unix.LOCK_EX); err != nil {
		return err
	}
	return json.NewEncoder(file).Encode(daemon)
}

// TimeSlice is a GPU's time slice: 0 for the driver's choice, else 1 to 3.
func TimeSlice(dir, uuid string) (int, error) {
	data, err := os.ReadFile(filepath.Join(dir, "timeslices", uuid))
	if errors.Is(err, fs.ErrNotExist) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

func setTimeSlice(dir, uuid string, slice int) error {
	path := filepath.Join(dir, "timeslices", uuid)
	if slice == 0 {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return replace(path, []byte(strconv.Itoa(slice)+"\n"))
}

// replace writes a file as a whole.
func replace(path string, data []byte) error {
	unfinished := fmt.Sprintf("%s.%d.%d", path, os.Getpid(), time.Now().UnixNano())
	if err := os.WriteFile(unfinished, data, 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}

// hardware is what of the node's state a program of the driver looks at.
type hardware struct {
	GPUs []struct {
		UUID   string `json:"uuid"`
		Health string `json:"health"`
		MIG    *struct {
			Enabled   bool `json:"enabled"`
			Instances []struct {
				Compute []struct {
					UUID string `json:"uuid"`
				} `json:"compute"`
			} `json:"instances"`
		} `json:"mig"`
	} `json:"gpus"`
	Profile struct {
		Product struct {
			Architecture string `json:"architecture"`
		} `json:"product"`
	} `json:"profile"`
}

func readHardware(dir string) (hardware, error) {
	var h hardware
	data, err := os.ReadFile(filepath.Join(dir, "state.json"))
	if err == nil {
		err = json.Unmarshal(data, &h)
	}
	return h, err
}

// visible reports whether CUDA would find a device.
func (h hardware) visible(uuid string) bool {
	for _, gpu := range h.GPUs {
		if gpu.Health != "" {
			continue
		}
		if gpu.UUID == uuid {
			return gpu.MIG == nil || !gpu.MIG.Enabled
		}
		if gpu.MIG == nil {
			continue
		}
		for _, instance := range gpu.MIG.Instances {
			for _, compute := range instance.Compute {
				if compute.UUID == uuid {
					return true
				}
			}
		}
	}
	return false
}
