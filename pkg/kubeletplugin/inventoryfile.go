// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubeletplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/switchyard-dev/switchyard/internal/atomicfile"
	"github.com/switchyard-dev/switchyard/pkg/device"
)

// inventoryFileName is the file in the plugin directory that keeps the inventory over a restart of
// the plugin, so that a GPU which was lost before it stays listed after it.
const inventoryFileName = "inventory.json"

// inventoryFileVersion is the version of the file's format. A file of another version is forgotten:
// that costs no more than what a reboot costs.
const inventoryFileVersion = 1

type inventoryFile struct {
	Version int `json:"version"`
	// BootID is the boot on which the inventory was seen. Hardware may be swapped while a node is
	// off, so another boot's inventory is nothing to go by.
	BootID    string           `json:"bootID"`
	Inventory device.Inventory `json:"inventory"`
}

// readBootID reads the kernel's boot ID (random(4), /proc/sys/kernel/random/boot_id).
func readBootID(path string) (string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the boot ID: %w", err)
	}
	id := strings.TrimSpace(string(data))
	if id == "" {
		return "", fmt.Errorf("read the boot ID: %s is empty", path)
	}
	return id, nil
}

// loadInventory returns the inventory that was saved in dir during the boot bootID, or an empty one
// when there is none. A file that cannot be read as one is an error for the caller to report; the
// plugin can do without.
func loadInventory(dir, bootID string) (device.Inventory, error) {
	path := filepath.Join(dir, inventoryFileName)
	data, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		return device.Inventory{}, nil
	}
	if err != nil {
		return device.Inventory{}, fmt.Errorf("read the saved inventory: %w", err)
	}
	var file inventoryFile
	if err := json.Unmarshal(data, &file); err != nil {
		return device.Inventory{}, fmt.Errorf("read the saved inventory %s: %w", path, err)
	}
	if file.Version != inventoryFileVersion || file.BootID != bootID {
		return device.Inventory{}, nil
	}
	return file.Inventory, nil
}

// saveInventory writes the inventory into dir, atomically. It need not outlive a power loss: the next
// boot forgets it.
func saveInventory(dir, bootID string, inv device.Inventory) error {
	data, err := json.Marshal(inventoryFile{Version: inventoryFileVersion, BootID: bootID, Inventory: inv})
	if err != nil {
		return fmt.Errorf("save the inventory: %w", err)
	}
	if err := atomicfile.Write(filepath.Join(dir, inventoryFileName), data, 0o600); err != nil {
		return fmt.Errorf("save the inventory: %w", err)
	}
	return nil
}
