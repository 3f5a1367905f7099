// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/pkg/simulator/profile"
	"github.com/switchyard-dev/switchyard/pkg/topology/smi"
)

func newTopology() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "topo",
		Short: "Read the output of nvidia-smi topo -m",
		Long: "Read the output of nvidia-smi topo -m, from a file or, for -, from standard input.\n\n" +
			"Damage in the block of GPUs is an error with line and column; damage elsewhere is a warning.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newTopologyImport(), newTopologyDomains())
	return cmd
}

func newTopologyDomains() *cobra.Command {
	return &cobra.Command{
		Use:   "domains FILE|-",
		Short: "Print the NVSwitch domains, one a line",
		Long: "Print the NVSwitch domains, one a line: the GPUs' indexes ascending, domains by their smallest index.\n" +
			"GPUs without a domain are left out.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			matrix, err := readMatrix(cmd, args[0])
			if err != nil {
				return err
			}
			for _, domain := range matrix.Domains() {
				indexes := make([]string, len(domain))
				for i, gpu := range domain {
					indexes[i] = strconv.Itoa(gpu)
				}
				if _, err := fmt.Fprintln(cmd.OutOrStdout(), strings.Join(indexes, ",")); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

func newTopologyImport() *cobra.Command {
	var name, like string
	cmd := &cobra.Command{
		Use:   "import FILE|-",
		Short: "Print a profile of the node",
		Long: "Print a profile of the node, for switchyard-sim plugin --profile FILE.\n\n" +
			"The matrix says how GPUs are connected, not what they are: the product and the driver are those of another\n" +
			"profile, which is chosen by the number of NVLinks unless --like names one.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			matrix, err := readMatrix(cmd, args[0])
			if err != nil {
				return err
			}
			if name == "" {
				name = profileName(args[0])
			}
			p, warnings, err := profile.FromMatrix(matrix, profile.ImportOptions{Name: name, Like: like})
			if err != nil {
				return fmt.Errorf("import %s: %w", inputName(args[0]), err)
			}
			for _, warning := range warnings {
				warn(cmd, args[0], warning)
			}
			text, err := profile.Marshal(p)
			if err != nil {
				return err
			}
			_, err = cmd.OutOrStdout().Write(text)
			return err
		},
	}
	cmd.Flags().StringVar(&name, "name", "", "Name of the profile. From the file's name if left out.")
	cmd.Flags().StringVar(&like, "like", "", "The profile to take product and driver from: a name or a file.")
	return cmd
}

// readMatrix parses a file, or standard input for -, and writes warnings to standard error.
func readMatrix(cmd *cobra.Command, path string) (*smi.Matrix, error) {
	in := cmd.InOrStdin()
	if path != "-" {
		file, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		defer func() { _ = file.Close() }() // it was only read
		in = file
	}
	matrix, warnings, err := smi.Parse(in)
	for _, warning := range warnings {
		warn(cmd, path, warning.String())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", inputName(path), err)
	}
	return matrix, nil
}

func warn(cmd *cobra.Command, path, message string) {
	// A person who cannot be warned can still have the answer.
	_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "warning: %s: %s\n", inputName(path), message)
}

func inputName(path string) string {
	if path == "-" {
		return "standard input"
	}
	return path
}

var notLabel = regexp.MustCompile(`[^a-z0-9]+`)

// profileName makes a DNS label of a file's name.
func profileName(path string) string {
	base := strings.TrimSuffix(filepath.Base(path), filepath.Ext(path))
	label := strings.Trim(notLabel.ReplaceAllString(strings.ToLower(base), "-"), "-")
	if len(label) > 63 {
		label = strings.TrimRight(label[:63], "-")
	}
	if label == "" {
		return "imported"
	}
	return label
}
