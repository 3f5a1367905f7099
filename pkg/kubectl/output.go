// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

package kubectl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/printers"
	"sigs.k8s.io/yaml"
)

// The values of -o.
const (
	formatTable = "table"
	formatWide  = "wide"
	formatJSON  = "json"
	formatYAML  = "yaml"
)

var formats = []string{formatTable, formatWide, formatJSON, formatYAML}

// output is how a command prints its result.
type output struct {
	format    string
	noHeaders bool
}

// addFlags adds the flags to a command. Those of no use to the command are wide, for tables without columns
// of priority 1.
func (o *output) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", formatTable, "Output format: "+strings.Join(formats, ", ")+".")
	cmd.Flags().BoolVar(&o.noHeaders, "no-headers", false, "Print tables without a header.")
	complete(cmd, "output", formats)
}

// complete makes the shell offer the values of a flag.
func complete(cmd *cobra.Command, flag string, values []string) {
	err := cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	if err != nil {
		panic(err) // the flag does not exist
	}
}

// validate reports what is wrong with the flags.
func (o *output) validate() error {
	if !slices.Contains(formats, o.format) {
		return fmt.Errorf("--output %q is unknown: use one of %s", o.format, strings.Join(formats, ", "))
	}
	return nil
}

// print prints the value, or the table that shows it. Columns of priority 1 are those of wide.
func (o *output) print(out io.Writer, value any, table *metav1.Table) error {
	return o.show(out, value, func(out io.Writer) error { return o.table(out, table) })
}

// show prints the value, or what text prints for people.
func (o *output) show(out io.Writer, value any, text func(io.Writer) error) error {
	switch o.format {
	case formatJSON:
		encoder := json.NewEncoder(out)
		encoder.SetIndent("", "    ")
		if err := encoder.Encode(value); err != nil {
			return fmt.Errorf("print as JSON: %w", err)
		}
		return nil
	case formatYAML:
		text, err := yaml.Marshal(value)
		if err != nil {
			return fmt.Errorf("print as YAML: %w", err)
		}
		_, err = out.Write(text)
		return err
	default:
		return text(out)
	}
}

// wide says that tables have their columns of priority 1, and texts their details.
func (o *output) wide() bool { return o.format == formatWide }

func (o *output) table(out io.Writer, table *metav1.Table) error {
	// The printer does not say when out fails.
	var text bytes.Buffer
	printer := printers.NewTablePrinter(printers.PrintOptions{NoHeaders: o.noHeaders, Wide: o.wide()})
	if err := printer.PrintObj(table, &text); err != nil {
		return fmt.Errorf("print as table: %w", err)
	}
	_, err := text.WriteTo(out)
	return err
}

// plain is a text without what would make the terminal do something, as tables have it: nodes publish what names they like,
// and users write messages.
func plain(text string) string { return printers.EscapeTerminal(text) }

// plainLine is a plain text of one line.
func plainLine(text string) string { return strings.ReplaceAll(plain(text), "\n", "\\n") }

// columns makes the columns of a table; those whose name begins with + are for wide only.
func columns(names ...string) []metav1.TableColumnDefinition {
	var list []metav1.TableColumnDefinition
	for _, name := range names {
		column := metav1.TableColumnDefinition{Name: strings.TrimPrefix(name, "+")}
		if column.Name != name {
			column.Priority = 1
		}
		list = append(list, column)
	}
	return list
}

// row adds a row to a table.
func row(table *metav1.Table, cells ...any) {
	table.Rows = append(table.Rows, metav1.TableRow{Cells: cells})
}
