// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// daemon is a simulated MPS control daemon.
type daemon struct {
	devices    []string
	log        io.Writer
	percentage float64
	limits     map[string]string  // by device
	servers    map[string]float64 // percentages by process ID; no processes are behind them
}

// serve is nvidia-cuda-mps-control -f.
func serve() error {
	dir, err := nodeDir()
	if err != nil {
		return err
	}
	failure, err := ReadFailure(dir)
	if err != nil {
		return err
	}
	if failure.Start != "" {
		return errors.New(failure.Start)
	}
	pipe := pipeDirectory()
	lock, err := os.OpenFile(filepath.Join(pipe, "control_lock"), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return fmt.Errorf("Failed to create pipe directory %s: %w", pipe, err) //nolint:staticcheck // MPS's words
	}
	defer lock.Close()
	if unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		return errors.New("An instance of this daemon is already running") //nolint:staticcheck // MPS's words
	}
	logFile, err := os.OpenFile(filepath.Join(os.Getenv("CUDA_MPS_LOG_DIRECTORY"), "control.log"), os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("Failed to open the log: %w", err) //nolint:staticcheck // MPS's words
	}
	d := &daemon{log: logFile, percentage: 100, limits: map[string]string{}, devices: strings.Split(os.Getenv("CUDA_VISIBLE_DEVICES"), ",")}
	node, err := readHardware(dir)
	if err != nil {
		return err
	}
	for _, device := range d.devices {
		if !node.visible(device) {
			return d.logf("Failed to find device %s", device)
		}
	}
	time.Sleep(time.Duration(failure.Delay) * time.Millisecond)
	socket := filepath.Join(pipe, "control")
	listener, err := listen(socket)
	if err != nil {
		return err
	}
	if err := register(dir, Running{PID: os.Getpid(), Devices: d.devices, PipeDirectory: pipe, Capabilities: capabilities()}); err != nil {
		return err
	}
	if failure.Awaited {
		d.servers = map[string]float64{"4194305": d.percentage} // above all that there are
	}
	_ = d.logf("Starting control daemon using socket %s", socket)
	if err := os.WriteFile(filepath.Join(pipe, "nvidia-cuda-mps-control.pid"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
		return err
	}
	for {
		fd, _, err := unix.Accept(listener)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		if d.talk(os.NewFile(uintptr(fd), "client")) {
			return nil
		}
	}
}

// logf writes to the log and returns the same as an error.
func (d *daemon) logf(format string, args ...any) error {
	err := fmt.Errorf(format, args...)
	_, _ = fmt.Fprintf(d.log, "[%s Control %5d] %v\n", time.Now().Format("2006-01-02 15:04:05.000"), os.Getpid(), err)
	return err
}

// talk answers the commands of a client, and says whether the daemon is to end.
func (d *daemon) talk(client *os.File) (quit bool) {
	defer client.Close()
	for lines := bufio.NewScanner(client); lines.Scan(); {
		command := strings.Fields(lines.Text())
		if len(command) == 0 {
			continue
		}
		_ = d.logf("Cmd:%s", lines.Text())
		if command[0] == "quit" {
			return true
		}
		_, _ = fmt.Fprintln(client, d.answer(command)) // a client may have gone
	}
	return false
}

func (d *daemon) answer(command []string) string {
	switch name, args := command[0], command[1:]; {
	case name == "get_default_active_thread_percentage" && len(args) == 0:
		return fmt.Sprintf("%.1f", d.percentage)
	case name == "set_default_active_thread_percentage" && len(args) == 1:
		percentage, err := strconv.ParseFloat(args[0], 64)
		if err != nil || percentage <= 0 || percentage > 100 {
			return "Failed to set the active thread percentage: " + args[0]
		}
		d.percentage = percentage
		return fmt.Sprintf("%.1f", d.percentage)
	case name == "get_default_device_pinned_mem_limit" && len(args) == 1:
		if device, ok := d.device(args[0]); ok {
			return d.limits[device]
		}
		return "Invalid device: " + args[0]
	case name == "set_default_device_pinned_mem_limit" && len(args) == 2:
		device, ok := d.device(args[0])
		mib, err := strconv.ParseInt(strings.TrimSuffix(args[1], "M"), 10, 64)
		if !ok || err != nil || !strings.HasSuffix(args[1], "M") || mib <= 0 {
			return "Failed to set the device memory limit: " + strings.Join(args, " ")
		}
		d.limits[device] = args[1]
		if mib >= 1024 { // as drivers tell it
			d.limits[device] = fmt.Sprintf("%dG", mib/1024)
		}
		return ""
	}
	return d.answerOfServers(command)
}

// answerOfServers answers the commands about servers.
func (d *daemon) answerOfServers(command []string) string {
	switch name, args := command[0], command[1:]; {
	case name == "get_server_list" && len(args) == 0:
		return strings.Join(slices.Sorted(maps.Keys(d.servers)), "\n")
	case name == "get_active_thread_percentage" && len(args) == 1:
		if percentage, ok := d.servers[args[0]]; ok {
			return fmt.Sprintf("%.1f", percentage)
		}
		return "Server " + args[0] + " not found"
	case name == "shutdown_server" && len(args) == 2 && args[1] == "-f":
		delete(d.servers, args[0])
		return ""
	}
	return "Unknown command: " + strings.Join(command, " ")
}

// device finds a device by its UUID or its place among the daemon's.
func (d *daemon) device(name string) (string, bool) {
	if slices.Contains(d.devices, name) {
		return name, true
	}
	if place, err := strconv.Atoi(name); err == nil && place >= 0 && place < len(d.devices) {
		return d.devices[place], true
	}
	return "", false
}

// client is nvidia-cuda-mps-control without arguments: it gives the daemon the commands that it reads.
func client(pipe string, in io.Reader, out io.Writer) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join(pipe, "control")}); err != nil {
		return fmt.Errorf("Cannot find MPS control daemon process: %w", err) //nolint:staticcheck // MPS's words
	}
	connection := os.NewFile(uintptr(fd), "daemon")
	defer connection.Close()
	if _, err := io.Copy(connection, in); err != nil {
		return err
	}
	if err := unix.Shutdown(fd, unix.SHUT_WR); err != nil {
		return err
	}
	_, err = io.Copy(out, connection)
	return err
}

// listen opens a socket that everybody may connect to. (Without net, which would want a C library.)
func listen(path string) (int, error) {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	if err := unix.Bind(fd, &unix.SockaddrUnix{Name: path}); err != nil {
		return 0, fmt.Errorf("bind %s: %w", path, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		return 0, err
	}
	return fd, unix.Listen(fd, 16)
}

// capabilities are those of this process.
func capabilities() string {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return err.Error()
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}
