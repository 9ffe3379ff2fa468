package reconcile

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/tollbook/tollbook/budget"
)

// maxReport bounds what is read of one report; a month of minutes, by model and
// key, is some megabytes.
const maxReport = 256 << 20

// Read reads a report, whose format it finds by its structure: usage and cost
// pages of OpenAI and of Anthropic, or a table in CSV. A reader may hold several
// pages, in a list or one after another; where readers are several, a page may
// stand in each. Pages that continue each other stand in their order, and the
// last of them must say that none follows ([ErrIncomplete]). Anything that is
// not understood is [ErrFormat]; nothing is skipped.
//
// The columns of a table are told by its first line: start and end (Unix seconds
// or RFC 3339), then input and output tokens, or cost in dollars, or all three;
// and, if there are such, model, cached, cache_write (parts of input) and
// requests. The names that OpenAI's export uses (start_time, input_tokens,
// num_model_requests, …) do as well. Other columns are not read. Lines of one
// span and model are added up.
func Read(readers ...io.Reader) (Report, error) {
	var pages []page
	for i, r := range readers {
		name := fmt.Sprintf("report %d", i+1)
		if file, ok := r.(interface{ Name() string }); ok {
			name = file.Name()
		}
		more, err := readPages(r)
		if err != nil {
			return Report{}, fmt.Errorf("%s: %w", name, err)
		}
		for j := range more {
			more[j].where = name
			if len(more) > 1 {
				more[j].where = fmt.Sprintf("page %d of %s", j+1, name)
			}
		}
		pages = append(pages, more...)
	}
	return assemble(pages)
}

// page is a part of a report, as it is given out.
type page struct {
	where   string
	source  string // empty: it does not say
	unit    budget.Unit
	buckets []Bucket // without source and unit
	flat    bool     // buckets of one span may come several times
	more    bool     // another page continues it
}

// readPages reads what one reader holds.
func readPages(r io.Reader) ([]page, error) {
	limited := &io.LimitedReader{R: r, N: maxReport + 1}
	text := bufio.NewReader(limited)
	if bom, _ := text.Peek(3); bytes.Equal(bom, []byte("\ufeff")) {
		text.Discard(3)
	}
	first := byte(0)
	for {
		next, err := text.ReadByte()
		if errors.Is(err, io.EOF) {
			return nil, fmt.Errorf("%w: it is empty", ErrFormat)
		}
		if err != nil {
			return nil, err
		}
		if !bytes.Contains([]byte(" \t\r\n"), []byte{next}) {
			first = next
			text.UnreadByte()
			break
		}
	}
	var pages []page
	var err error
	if first == '{' || first == '[' {
		pages, err = readJSON(text)
	} else {
		pages, err = readCSV(text)
	}
	if limited.N == 0 {
		return nil, fmt.Errorf("%w: it has more than %d bytes", ErrFormat, maxReport)
	}
	return pages, err
}

// readJSON reads pages one after another, or lists of pages.
func readJSON(r io.Reader) (pages []page, err error) {
	dec := json.NewDecoder(r)
	dec.UseNumber()
	for n := 1; ; n++ {
		v, err := parse(dec, 0)
		if errors.Is(err, io.EOF) {
			return pages, nil
		}
		list, isList := v.([]any)
		if !isList {
			list = []any{v}
		}
		for _, v := range list {
			if err == nil {
				var p page
				p, err = readPage(v)
				pages = append(pages, p)
			}
		}
		switch {
		case errors.Is(err, io.ErrUnexpectedEOF):
			return nil, fmt.Errorf("%w: it ends in the middle of document %d", ErrFormat, n)
		case errors.Is(err, ErrFormat):
			return nil, fmt.Errorf("document %d: %w", n, err)
		case err != nil && isSyntax(err):
			return nil, fmt.Errorf("%w: document %d: %w", ErrFormat, n, err)
		case err != nil:
			return nil, err
		}
	}
}

func isSyntax(err error) bool {
	_, ok := errors.AsType[*json.SyntaxError](err)
	return ok
}

// readPage tells whose page it is by the names it uses.
func readPage(v any) (p page, err error) {
	members, _ := v.(map[string]any)
	o := object{members: members, wrong: &err}
	switch {
	case members == nil:
		return p, fmt.Errorf("%w: a page is an object with a list of data", ErrFormat)
	case o.has("error"):
		return p, fmt.Errorf("%w: it is an error that the provider answered with", ErrFormat)
	case !o.has("data"):
		return p, fmt.Errorf("%w: it has no list of data", ErrFormat)
	}
	switch more := members["has_more"].(type) {
	case bool:
		p.more = more
	case nil:
		p.more = o.text("next_page") != ""
	default:
		o.fail("has_more", "it is neither true nor false")
	}
	for _, item := range o.list("data") {
		switch {
		case item.has("start_time"):
			p.openAI(item)
		case item.has("starting_at"):
			p.anthropic(item)
		default:
			item.fail("", "it has neither start_time nor starting_at")
		}
	}
	return p, err
}

// is notes of what report a page is.
func (p *page) is(o object, source string, unit budget.Unit) {
	if p.source != "" && p.source != source {
		o.fail("", "it is of %s, and others of the page are of %s", source, p.source)
	}
	p.source, p.unit = source, unit
}

// assemble puts pages together. An empty page says nothing of what report it
// is, unless it continues another or is continued.
func assemble(pages []page) (Report, error) {
	var r Report
	for len(pages) > 0 {
		n := 1
		for n < len(pages) && pages[n-1].more {
			n++
		}
		chain := pages[:n]
		pages = pages[n:]
		last := &chain[n-1]
		if last.more {
			return Report{}, fmt.Errorf("%w: %s says that another page follows, and it is not there; fetch all pages and give them in their order", ErrIncomplete, last.where)
		}
		var of page
		for i := range chain {
			p := &chain[i]
			if p.source != "" && of.source != "" && p.source != of.source {
				return Report{}, fmt.Errorf("%w: %s says that another page follows, and %s is one of %s; fetch all pages and give them in their order", ErrIncomplete, chain[i-1].where, p.where, p.source)
			}
			if p.source != "" {
				of.source, of.unit, of.flat = p.source, p.unit, p.flat
			}
			of.buckets = append(of.buckets, p.buckets...)
		}
		if of.flat {
			of.gather()
		}
		for _, b := range of.buckets {
			b.Source, b.Unit = of.source, of.unit
			r.Buckets = append(r.Buckets, b)
		}
	}
	_, err := r.bills()
	return r, err
}

// gather makes one bucket of all that are of one span.
func (p *page) gather() {
	type bounds struct{ start, end int64 }
	at := map[bounds]int{}
	gathered := p.buckets[:0:0]
	for _, b := range p.buckets {
		key := bounds{b.Start.UnixMicro(), b.End.UnixMicro()}
		i, known := at[key]
		if !known {
			i = len(gathered)
			at[key] = i
			gathered = append(gathered, Bucket{Start: b.Start, End: b.End})
		}
		gathered[i].Lines = append(gathered[i].Lines, b.Lines...)
	}
	p.buckets = slices.Clip(gathered)
}
