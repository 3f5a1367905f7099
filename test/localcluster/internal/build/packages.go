// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package build

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// need is something that a Debian package provides.
type need struct {
	pkg string
	// command, when set, must be on PATH.
	command string
	// present is asked otherwise.
	present func() bool
	// building is true for what only building needs.
	building bool
}

func needs() []need {
	return []need{
		{pkg: "nftables", command: "nft"},
		{pkg: "iptables", command: "iptables"},
		{pkg: "conntrack", command: "conntrack"},
		{pkg: "iproute2", command: "ip"},
		{pkg: "util-linux", command: "nsenter"},
		{pkg: "mount", command: "mount"},
		{pkg: "busybox-static", present: func() bool { return Busybox() != "" }},
		{pkg: "libseccomp2", present: func() bool {
			return anyFile("/usr/lib/*/libseccomp.so.2*", "/lib/*/libseccomp.so.2*", "/usr/lib*/libseccomp.so.2*")
		}},
		{pkg: "gcc", command: "gcc", building: true},
		{pkg: "libc6-dev", present: func() bool { return anyFile("/usr/include/stdlib.h") }, building: true},
		{pkg: "pkg-config", command: "pkg-config", building: true},
		{pkg: "libseccomp-dev", present: func() bool { return anyFile("/usr/include/seccomp.h") }, building: true},
	}
}

// EnsurePackages installs what is missing with apt-get where root can, and
// otherwise names all of it in one error. Tools of building are only asked for
// when something is to be built.
func EnsurePackages(ctx context.Context, building bool, out io.Writer) error {
	missing := missingPackages(needs(), building)
	if len(missing) == 0 {
		return nil
	}
	command := "apt-get update && apt-get install -y " + strings.Join(missing, " ")
	if os.Geteuid() != 0 {
		return fmt.Errorf("packages are missing: %s: run as root: %s", strings.Join(missing, ", "), command)
	}
	if _, err := exec.LookPath("apt-get"); err != nil {
		return fmt.Errorf("packages are missing (by their Debian names): %s: install them with this system's package manager", strings.Join(missing, ", "))
	}
	fmt.Fprintf(out, "Installing Debian packages: %s\n", strings.Join(missing, " "))
	steps := [][]string{{"update", "-q"}, append([]string{"install", "-y", "-q", "--no-install-recommends"}, missing...)}
	for _, args := range steps {
		cmd := exec.CommandContext(ctx, "apt-get", args...)
		cmd.Env = append(os.Environ(), "DEBIAN_FRONTEND=noninteractive")
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("install packages with `apt-get %s`: %w: do it by hand: %s\n%s", strings.Join(args, " "), err, command, tail(output.String(), 15))
		}
	}
	if missing := missingPackages(needs(), building); len(missing) > 0 {
		return fmt.Errorf("packages were installed, but what they provide is still missing: %s", strings.Join(missing, ", "))
	}
	return nil
}

func missingPackages(needs []need, building bool) []string {
	var missing []string
	for _, n := range needs {
		if n.building && !building {
			continue
		}
		var ok bool
		if n.command != "" {
			_, err := exec.LookPath(n.command)
			ok = err == nil || errors.Is(err, exec.ErrDot)
		} else {
			ok = n.present()
		}
		if !ok {
			missing = append(missing, n.pkg)
		}
	}
	return missing
}

func tail(text string, lines int) string {
	all := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
