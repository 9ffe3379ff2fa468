package reconcile

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// Reports name what answered (gpt-4o-2024-08-06) where a request, and so the
// book, may have said gpt-4o.

// dated is how providers end the name of a snapshot: -2024-08-06, -20241022,
// @20241022, -0613.
var dated = regexp.MustCompile(`[-@](\d{4}-(0[1-9]|1[0-2])-([0-2]\d|3[01])|20\d{2}(0[1-9]|1[0-2])([0-2]\d|3[01])|(0[1-9]|1[0-2])([0-2]\d|3[01]))$`)

// undated is the name without the date of its snapshot.
func undated(model string) string {
	return strings.TrimSuffix(dated.ReplaceAllString(model, ""), "-latest")
}

// class is a set of models that a report and a book cannot be told apart in.
type class struct {
	book     []string // their names in the book
	reported []string // and in the report
}

// classes matches the names of a report with those of a book: by alias, where
// there is one, else exactly and without dates. Names that have a counterpart in
// common are one class.
func classes(book, reported map[string]bool, aliases map[string]string) []class {
	byFamily := map[string][]string{}
	for name := range book {
		byFamily[undated(name)] = append(byFamily[undated(name)], name)
	}
	parent := map[string]string{} // of the names of the book, in one class
	var root func(name string) string
	root = func(name string) string {
		if p, ok := parent[name]; ok && p != name {
			return root(p)
		}
		return name
	}
	all := reported[""] || book[""] // whose calls these are nobody knows
	counterpart := map[string]string{}
	for _, r := range slices.Sorted(maps.Keys(reported)) {
		var matches []string
		if alias, ok := aliases[r]; ok {
			matches = []string{alias}
		} else {
			for _, b := range byFamily[undated(r)] {
				if b == r || b == undated(b) || strings.HasSuffix(b, "-latest") {
					matches = append(matches, b)
				}
			}
		}
		for _, b := range matches {
			if !book[b] {
				continue
			}
			if have, ok := counterpart[r]; ok {
				parent[root(b)] = root(have)
			} else {
				counterpart[r] = b
			}
		}
	}
	by := map[string]*class{}
	of := func(key string) *class {
		if all {
			key = ""
		}
		if by[key] == nil {
			by[key] = &class{}
		}
		return by[key]
	}
	for _, b := range slices.Sorted(maps.Keys(book)) {
		c := of("b" + root(b))
		c.book = append(c.book, b)
	}
	for _, r := range slices.Sorted(maps.Keys(reported)) {
		key := "r" + r
		if b, ok := counterpart[r]; ok {
			key = "b" + root(b)
		}
		c := of(key)
		c.reported = append(c.reported, r)
	}
	list := make([]class, 0, len(by))
	for _, key := range slices.Sorted(maps.Keys(by)) {
		list = append(list, *by[key])
	}
	return list
}
