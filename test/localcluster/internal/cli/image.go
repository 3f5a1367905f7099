// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/switchyard-dev/switchyard/test/localcluster/internal/image"
)

func (a *app) image() *cobra.Command {
	cmd := &cobra.Command{Use: "image", Short: "Build and load container images without a registry", Args: cobra.NoArgs, RunE: help}
	cmd.AddCommand(a.imageBuild(), a.imageLoad())
	return cmd
}

func (a *app) imageBuild() *cobra.Command {
	var out string
	var files, links, labels []string
	spec := image.Spec{}
	cmd := &cobra.Command{
		Use:   "build --tag NAME:TAG --output FILE [PROGRAM...]",
		Short: "Pack programs with their shared libraries, and other files, into a docker archive",
		Example: `  localcluster image build --tag localhost/switchyard:dev --output switchyard.tar \
    --file profiles:/etc/switchyard/profiles bin/switchyard-kubelet-plugin`,
		RunE: func(_ *cobra.Command, args []string) error {
			entries, err := image.Binaries(args...)
			if err != nil {
				return err
			}
			for _, f := range files {
				entry, err := parseFile(f)
				if err != nil {
					return err
				}
				entries = append(entries, entry)
			}
			for _, l := range links {
				target, link, ok := strings.Cut(l, "=")
				if !ok {
					return fmt.Errorf("--link %q must be PATH=TARGET", l)
				}
				entries = append(entries, image.Entry{Target: target, Link: link})
			}
			if len(entries) == 0 {
				return errors.New("the image would be empty: name programs, or files with --file")
			}
			if len(spec.Entrypoint) == 0 && len(args) > 0 {
				spec.Entrypoint = []string{entries[0].Target}
			}
			spec.Labels = map[string]string{}
			for _, l := range labels {
				key, value, ok := strings.Cut(l, "=")
				if !ok {
					return fmt.Errorf("--label %q must be KEY=VALUE", l)
				}
				spec.Labels[key] = value
			}
			spec.Entries = entries
			return image.Write(out, spec)
		},
	}
	f := cmd.Flags()
	f.StringVar(&spec.Tag, "tag", "", "name and tag of the image")
	f.StringVarP(&out, "output", "o", "", "archive to write")
	f.StringSliceVar(&spec.Entrypoint, "entrypoint", nil, "command of the image, comma-separated (default: the first program)")
	f.StringArrayVar(&files, "file", nil, "SOURCE:TARGET[:MODE]: file or folder to copy; repeatable")
	f.StringArrayVar(&links, "link", nil, "PATH=TARGET: symbolic link to make; repeatable")
	f.StringArrayVar(&spec.Env, "env", nil, "NAME=VALUE; repeatable")
	f.StringArrayVar(&labels, "label", nil, "KEY=VALUE; repeatable")
	for _, name := range []string{"tag", "output"} {
		if err := cmd.MarkFlagRequired(name); err != nil {
			panic(err) // the flag is defined above
		}
	}
	return cmd
}

func parseFile(arg string) (image.Entry, error) {
	parts := strings.Split(arg, ":")
	if len(parts) < 2 || len(parts) > 3 || parts[0] == "" || !strings.HasPrefix(parts[1], "/") {
		return image.Entry{}, fmt.Errorf("--file %q must be SOURCE:TARGET[:MODE] with an absolute target, for example config.yaml:/etc/switchyard/config.yaml:0644", arg)
	}
	entry := image.Entry{Source: parts[0], Target: parts[1]}
	if len(parts) == 3 {
		mode, err := strconv.ParseUint(parts[2], 8, 12)
		if err != nil {
			return image.Entry{}, fmt.Errorf("--file %q: mode %q must be octal, for example 0755", arg, parts[2])
		}
		entry.Mode = fs.FileMode(mode)
	}
	return entry, nil
}

func (a *app) imageLoad() *cobra.Command {
	var nodes []string
	cmd := &cobra.Command{
		Use:   "load FILE...",
		Short: "Import docker or OCI archives into the nodes (default: all that run)",
		Args:  cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.cluster(cmd)
			if err != nil {
				return err
			}
			for _, archive := range args {
				if err := c.LoadImage(archive, nodes...); err != nil {
					return err
				}
			}
			return nil
		},
	}
	cmd.Flags().StringSliceVar(&nodes, "nodes", nil, "names of the nodes; default all")
	return cmd
}
