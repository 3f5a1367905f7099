// Copyright The Switchyard Authors.
// SPDX-License-Identifier: Apache-2.0

//go:build verify

package verify

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// link is the target of [text](target) or ![text](target).
var link = regexp.MustCompile(`\]\(([^)\s]+)\)`)

// brokenLinks returns the relative targets of a Markdown file that exist neither as file nor as heading.
func brokenLinks(file, content string, readFile func(string) (string, bool)) []string {
	var broken []string
	for _, match := range link.FindAllStringSubmatch(withoutCode(content), -1) {
		target := match[1]
		if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
			continue
		}
		path, fragment, _ := strings.Cut(target, "#")
		text := content
		if path != "" {
			var ok bool
			if text, ok = readFile(filepath.Join(filepath.Dir(file), path)); !ok {
				broken = append(broken, target)
				continue
			}
		}
		if fragment != "" && !hasHeading(text, fragment) {
			broken = append(broken, target)
		}
	}
	return broken
}

var (
	codeBlock = regexp.MustCompile("(?s)```.*?```|`[^`\n]*`")
	heading   = regexp.MustCompile(`(?m)^#+ +(.*)$`)
	notInSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

func withoutCode(markdown string) string { return codeBlock.ReplaceAllString(markdown, "") }

// hasHeading reports whether a heading of the text gets the given anchor on GitHub.
func hasHeading(text, anchor string) bool {
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		slug := strings.ReplaceAll(notInSlug.ReplaceAllString(strings.ToLower(match[1]), ""), " ", "-")
		if slug == anchor {
			return true
		}
	}
	return false
}

func TestLinksLeadSomewhere(t *testing.T) {
	for _, file := range files(t, []string{".md"}) {
		for _, target := range brokenLinks(file, read(t, file), readInRepository) {
			t.Errorf("%s: link %s leads nowhere", file, target)
		}
	}
}

// readInRepository returns a file's content; a folder exists and has none.
func readInRepository(path string) (string, bool) {
	info, err := os.Stat(filepath.Join(root, path))
	if err != nil || info.IsDir() {
		return "", err == nil
	}
	content, err := os.ReadFile(filepath.Join(root, path))
	return string(content), err == nil
}

func TestBrokenLinksAreFound(t *testing.T) {
	tree := map[string]string{"docs/there.md": "# A `Heading`, with signs"}
	readFile := func(path string) (string, bool) { content, ok := tree[path]; return content, ok }
	tests := map[string]struct {
		content string
		broken  bool
	}{
		"a file that exists":         {"[a](there.md)", false},
		"a file that does not exist": {"[a](gone.md)", true},
		"a heading that exists":      {"[a](there.md#a-heading-with-signs)", false},
		"a heading that is missing":  {"[a](there.md#another)", true},
		"a heading of the same file": {"# Here\n[a](#here)", false},
		"a web address":              {"[a](https://example.com/gone.md)", false},
		"a link in code":             {"`[a](gone.md)`", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if broken := brokenLinks("docs/page.md", test.content, readFile); (len(broken) > 0) != test.broken {
				t.Errorf("broken links: %q, want some: %t", broken, test.broken)
			}
		})
	}
}
