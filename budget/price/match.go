package price

import (
	"encoding/json"
	"fmt"
	"iter"
	"regexp"
	"strings"
)

// provider is one that sells models.
type provider struct {
	id     string
	also   []string // providers whose models it sells at their prices
	models []model
}

// find returns the model that a name stands for: one named exactly so before
// one whose pattern fits.
func (p *provider) find(name string) *model {
	for i := range p.models {
		if m := &p.models[i]; m.match.equals(name) {
			return m
		}
	}
	for i := range p.models {
		if m := &p.models[i]; m.match.fits(name) {
			return m
		}
	}
	return nil
}

// model is one model and its prices over time.
type model struct {
	id     string
	window int64
	match  match
	prices []dated
}

// dated is a price that holds from a day on ("2026-11-01"; empty: ever since),
// or, in certain hours of every day, beside the others.
type dated struct {
	from  string
	hours bool
	rates
}

// at yields the prices that may apply on a day: the last that has begun, and
// those for hours of a day.
func (m *model) at(day string) iter.Seq[*rates] {
	return func(yield func(*rates) bool) {
		var last *dated
		for i := range m.prices {
			switch p := &m.prices[i]; {
			case p.from > day:
			case p.hours:
				if !yield(&p.rates) {
					return
				}
			case last == nil || p.from >= last.from:
				last = p
			}
		}
		if last != nil {
			yield(&last.rates)
		}
	}
}

// match says which names stand for a model. Of a written one exactly one field
// is set; the zero match fits nothing.
type match struct {
	any, all []match
	not      *match
	op       byte // = ^ $ * for the text's place
	text     string
	re       *regexp.Regexp
}

func (m *match) fits(name string) bool {
	switch {
	case m.any != nil:
		for i := range m.any {
			if m.any[i].fits(name) {
				return true
			}
		}
		return false
	case m.all != nil:
		for i := range m.all {
			if !m.all[i].fits(name) {
				return false
			}
		}
		return true
	case m.not != nil:
		return !m.not.fits(name)
	case m.re != nil:
		return m.re.MatchString(name)
	}
	switch m.op {
	case '=':
		return name == m.text
	case '^':
		return strings.HasPrefix(name, m.text)
	case '$':
		return strings.HasSuffix(name, m.text)
	case '*':
		return strings.Contains(name, m.text)
	}
	return false
}

// equals reports whether name is one of the names that m lists.
func (m *match) equals(name string) bool {
	for i := range m.any {
		if m.any[i].equals(name) {
			return true
		}
	}
	return m.op == '=' && m.text == name
}

// UnmarshalJSON reads {"or":[…]}, {"and":[…]}, {"equals":"…"}, {"starts_with":"…"},
// {"ends_with":"…"}, {"contains":"…"} or {"regex":"…"}.
func (m *match) UnmarshalJSON(data []byte) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(data, &fields); err != nil || fields == nil {
		return err
	}
	if len(fields) != 1 {
		return fmt.Errorf("a match of %d conditions; one is needed, be it an \"or\" or an \"and\"", len(fields))
	}
	for word, value := range fields {
		switch word {
		case "or":
			return json.Unmarshal(value, &m.any)
		case "and":
			return json.Unmarshal(value, &m.all)
		}
		if err := json.Unmarshal(value, &m.text); err != nil {
			return err
		}
		switch word {
		case "equals":
			m.op = '='
		case "starts_with":
			m.op = '^'
		case "ends_with":
			m.op = '$'
		case "contains":
			m.op = '*'
		case "regex":
			return m.compile(m.text)
		default:
			return fmt.Errorf("unknown condition %q of a match", word)
		}
	}
	return nil
}

// compile takes a regular expression. One that begins with what must not follow,
// ^(?!…), which Go's have no form for, becomes two.
func (m *match) compile(text string) (err error) {
	if rest, ok := strings.CutPrefix(text, "^(?!"); ok {
		end := closing(rest)
		if end < 0 {
			return fmt.Errorf("regex %q: an open parenthesis", text)
		}
		var not, then match
		if err := not.compile("^(?:" + rest[:end] + ")"); err != nil {
			return err
		}
		if err := then.compile("^" + rest[end+1:]); err != nil {
			return err
		}
		m.all = []match{{not: &not}, then}
		return nil
	}
	m.re, err = regexp.Compile(text)
	return err
}

// closing returns where the parenthesis closes that s is inside of, or -1.
func closing(s string) int {
	depth, class := 0, false
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case class:
			class = c != ']'
		case c == '[':
			class = true
		case c == '(':
			depth++
		case c == ')' && depth == 0:
			return i
		case c == ')':
			depth--
		}
	}
	return -1
}
