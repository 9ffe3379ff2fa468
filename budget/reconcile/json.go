package reconcile

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"
)

// object is a JSON object of a report. Its readers note the first thing that is
// wrong where all objects of a document note it, and give zero from then on.
type object struct {
	path    string // "data[3].results[0]"
	members map[string]any
	wrong   *error
}

func (o object) fail(name, format string, args ...any) {
	if *o.wrong == nil {
		*o.wrong = fmt.Errorf("%w: %s: %s", ErrFormat, o.at(name), fmt.Sprintf(format, args...))
	}
}

func (o object) at(name string) string {
	switch {
	case o.path == "":
		return name
	case name == "":
		return o.path
	}
	return o.path + "." + name
}

// has reports whether a member is there and not null.
func (o object) has(name string) bool { return o.members[name] != nil }

// count is a whole number; null and nothing are zero.
func (o object) count(name string) int64 {
	if !o.has(name) {
		return 0
	}
	number, ok := o.members[name].(json.Number)
	if !ok {
		o.fail(name, "it is no number")
		return 0
	}
	n, err := parseCount(number.String())
	if err != nil {
		o.fail(name, "%v", err)
	}
	return n
}

// must is a count that has to be there: what is not said is not zero.
func (o object) must(name string) int64 {
	if !o.has(name) {
		o.fail(name, "it is missing")
	}
	return o.count(name)
}

// money is an amount in picodollars, written as a number or a string of units
// of 10^scale picodollars.
func (o object) money(name string, scale int) int64 {
	n, err := parseMoney(o.literal(name), scale)
	if err != nil {
		o.fail(name, "%v", err)
	}
	return n
}

// literal is what stands in a number or a string; of all else, nothing.
func (o object) literal(name string) string {
	switch v := o.members[name].(type) {
	case json.Number:
		return v.String()
	case string:
		return v
	}
	return ""
}

// text is a string; null and nothing are empty.
func (o object) text(name string) string {
	if !o.has(name) {
		return ""
	}
	s, ok := o.members[name].(string)
	if !ok {
		o.fail(name, "it is no text")
	}
	return s
}

// model is the name of a model, as a book could hold it.
func (o object) model() string {
	name := o.text("model")
	if err := checkModel(name); err != nil {
		o.fail("model", "%v", err)
	}
	return name
}

// time is a moment, as Unix seconds or in RFC 3339.
func (o object) time(name string) time.Time {
	t, err := parseTime(o.literal(name))
	if err != nil {
		o.fail(name, "%v", err)
	}
	return t
}

// child is an object in an object.
func (o object) child(name string) object {
	members, ok := o.members[name].(map[string]any)
	if !ok {
		o.fail(name, "it is no object")
	}
	return object{o.at(name), members, o.wrong}
}

// list is a list of objects.
func (o object) list(name string) (list []object) {
	values, ok := o.members[name].([]any)
	if !ok {
		o.fail(name, "it is no list")
	}
	for i, v := range values {
		path := fmt.Sprintf("%s[%d]", o.at(name), i)
		members, ok := v.(map[string]any)
		if !ok {
			o.fail(fmt.Sprintf("%s[%d]", name, i), "it is no object")
			return nil
		}
		list = append(list, object{path, members, o.wrong})
	}
	return list
}

const maxDepth = 32

// parse reads one JSON value. Unlike package json it refuses a member that
// comes twice: which of the two is meant nobody knows.
func parse(dec *json.Decoder, depth int) (any, error) {
	t, err := dec.Token()
	if err != nil {
		return nil, err
	}
	open, ok := t.(json.Delim)
	if !ok {
		return t, nil
	}
	if depth == maxDepth {
		return nil, fmt.Errorf("%w: it is nested deeper than %d", ErrFormat, maxDepth)
	}
	var list []any
	members := map[string]any{}
	for dec.More() {
		name := ""
		if open == '{' {
			t, err := dec.Token()
			if err != nil {
				return nil, inside(err)
			}
			name = t.(string)
			if _, twice := members[name]; twice {
				return nil, fmt.Errorf("%w: an object has %q twice", ErrFormat, name)
			}
		}
		v, err := parse(dec, depth+1)
		if err != nil {
			return nil, inside(err)
		}
		if open == '{' {
			members[name] = v
		} else {
			list = append(list, v)
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, inside(err)
	}
	if open == '{' {
		return members, nil
	}
	return list, nil
}

// inside is the error of a value that has begun.
func inside(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
