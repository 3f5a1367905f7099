// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

// Package nvmlstub builds a libnvidia-ml.so.1 for tests, so that what a simulated NVML leaves out is
// run as well: finding the library under a driver root, dlopen, lazily bound symbols and the C structs.
//
// It may import the standard library only. It needs a C compiler and the go command, and the header of
// the go-nvml that the calling module depends on.
package nvmlstub

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// ErrNoCompiler says that there is no C compiler to build with. go build needs one for go-nvml as well,
// so on a machine that compiled the driver this does not happen.
var ErrNoCompiler = errors.New("no C compiler (cc or gcc) found in PATH")

// Soname is the file name that drivers install NVML under.
const Soname = "libnvidia-ml.so.1"

//go:embed src/nvmlstub.c
var source string

// Options are what the library answers. The zero value has two healthy GPUs.
type Options struct {
	// GPUs is how many there are, bridged in pairs; 0 means 2 and a negative number none.
	GPUs int
	// DriverVersion is the answer of nvmlSystemGetDriverVersion; empty means 580.105.08.
	DriverVersion string
	// InitReturn is what nvmlInit_v2 returns (nvmlReturn_t), 0 for success.
	InitReturn int
	// FabricState is that of every GPU (NVML_GPU_FABRIC_STATE_*), 3 for completed. The cluster UUID is
	// 00000001-0000-0000-0000-000000000001 and the clique 32766.
	FabricState int
	// Unloadable makes a library that the dynamic linker refuses.
	Unloadable bool
	// Without names functions that the library does not export, as an older one would.
	Without []string
}

// Install builds the library into <root>/usr/lib64, as a driver package would under a driver root, and
// returns its path.
func Install(ctx context.Context, root string, options Options) (string, error) {
	path := filepath.Join(root, "usr", "lib64", Soname)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("install stub NVML: %w", err)
	}
	if err := Build(ctx, path, options); err != nil {
		return "", err
	}
	return path, nil
}

// Build compiles the library to a file, replacing it atomically like a package manager would. Functions
// of the header that the stub does not implement return NVML_ERROR_NOT_SUPPORTED, because a process that
// calls one that is not exported ends.
func Build(ctx context.Context, path string, options Options) error {
	compiler, err := findCompiler()
	if err != nil {
		return err
	}
	include, err := headerDir(ctx)
	if err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "nvmlstub")
	if err != nil {
		return fmt.Errorf("build stub NVML: %w", err)
	}
	defer os.RemoveAll(work)

	header, err := os.ReadFile(filepath.Join(include, "nvml.h"))
	if err != nil {
		return fmt.Errorf("build stub NVML: %w", err)
	}
	files := map[string]string{
		"stub.c":      source,
		"rest.c":      notSupported(string(header)),
		"exports.map": exports(options.Without),
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(work, name), []byte(content), 0o600); err != nil {
			return fmt.Errorf("build stub NVML: %w", err)
		}
	}
	// In the target's directory, so that the rename stays in one file system.
	built := path + ".new"
	args := []string{
		"-shared", "-fPIC", "-w", "-O1", "-I", include, "-Wl,-soname," + Soname,
		"-Wl,--version-script=" + filepath.Join(work, "exports.map"), "-o", built,
	}
	args = append(args, defines(options)...)
	args = append(args, filepath.Join(work, "stub.c"), filepath.Join(work, "rest.c"))
	if output, err := exec.CommandContext(ctx, compiler, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("build stub NVML: %s: %w\n%s", compiler, err, output)
	}
	if err := os.Rename(built, path); err != nil {
		return fmt.Errorf("build stub NVML: %w", err)
	}
	return nil
}

func defines(options Options) []string {
	args := []string{fmt.Sprintf("-DINIT_RETURN=%d", options.InitReturn), fmt.Sprintf("-DFABRIC_STATE=%d", options.FabricState)}
	switch {
	case options.GPUs < 0:
		args = append(args, "-DGPUS=0")
	case options.GPUs > 0:
		args = append(args, fmt.Sprintf("-DGPUS=%d", options.GPUs))
	}
	if options.DriverVersion != "" {
		args = append(args, fmt.Sprintf("-DDRIVER_VERSION=%q", options.DriverVersion))
	}
	if options.Unloadable {
		args = append(args, "-DUNLOADABLE")
	}
	return args
}

func findCompiler() (string, error) {
	for _, name := range []string{os.Getenv("CC"), "cc", "gcc"} {
		if name == "" {
			continue
		}
		if path, err := exec.LookPath(name); err == nil {
			return path, nil
		}
	}
	return "", ErrNoCompiler
}

// headerDir returns the directory of go-nvml's nvml.h.
func headerDir(ctx context.Context) (string, error) {
	const module = "github.com/NVIDIA/go-nvml"
	output, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", module).Output()
	dir := strings.TrimSpace(string(output))
	if err != nil || dir == "" {
		return "", fmt.Errorf("build stub NVML: find the header of %s with go list: %w", module, errors.Join(err))
	}
	return filepath.Join(dir, "pkg", "nvml"), nil
}

var declaration = regexp.MustCompile(`\bDECLDIR\s+(nvml[A-Z]\w*)\s*\(`)

// notSupported returns C code for all functions of the header that the stub does not define.
func notSupported(header string) string {
	var names []string
	for _, match := range declaration.FindAllStringSubmatch(header, -1) {
		if name := match[1]; !strings.Contains(source, " "+name+"(") && !strings.Contains(source, "*"+name+"(") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var code strings.Builder
	for _, name := range slices.Compact(names) {
		fmt.Fprintf(&code, "int %s(void) { return 3; }\n", name) // NVML_ERROR_NOT_SUPPORTED
	}
	return code.String()
}

// exports returns a linker version script that hides the named functions and everything internal.
func exports(without []string) string {
	var hidden strings.Builder
	for _, name := range without {
		hidden.WriteString(name + "; ")
	}
	return "{ global: nvml*; local: " + hidden.String() + "*; };\n"
}
