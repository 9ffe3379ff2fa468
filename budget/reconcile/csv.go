package reconcile

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/tollbook/tollbook/budget"
)

// columns are what is read of a table; see [Read].
type columns struct {
	start, end, model, input, output, cached, written, requests, cost int // -1: there is none
}

// columnNames are ours first, then those of OpenAI's export.
var columnNames = [...][]string{
	{"start", "start_time"}, {"end", "end_time"}, {"model"}, {"input", "input_tokens"}, {"output", "output_tokens"},
	{"cached", "input_cached_tokens"}, {"cache_write", "input_cache_write_tokens"}, {"requests", "num_model_requests"}, {"cost"},
}

// emptyExport is the header of an export in which nothing was used.
var emptyExport = []string{"start_time", "end_time", "start_time_iso", "end_time_iso"}

// columnsOf finds the columns by the first line.
func columnsOf(header []string) (c columns, err error) {
	for i := range header {
		header[i] = strings.ToLower(strings.TrimSpace(header[i]))
	}
	at := [len(columnNames)]int{}
	for i, names := range columnNames {
		at[i] = -1
		for _, name := range names {
			j := slices.Index(header, name)
			if j >= 0 && (at[i] >= 0 || slices.Contains(header[j+1:], name)) {
				return c, fmt.Errorf("%w: two columns for %q", ErrFormat, names[0])
			}
			if j >= 0 {
				at[i] = j
			}
		}
	}
	c = columns{at[0], at[1], at[2], at[3], at[4], at[5], at[6], at[7], at[8]}
	tokens := c.input >= 0 && c.output >= 0
	switch {
	case slices.Equal(header, emptyExport):
	case c.start < 0 || c.end < 0:
		return c, fmt.Errorf("%w: neither JSON nor a table that begins with the names of its columns, start and end among them", ErrFormat)
	case !tokens && (c.input >= 0 || c.output >= 0 || c.cost < 0):
		return c, fmt.Errorf("%w: the table needs the columns input and output, or cost", ErrFormat)
	}
	return c, nil
}

// readCSV reads a table. Where it has tokens and money it is a report of both.
func readCSV(r io.Reader) ([]page, error) {
	table := csv.NewReader(r)
	table.ReuseRecord = true
	header, err := table.Read()
	if err != nil {
		return nil, tableError(err)
	}
	c, err := columnsOf(header)
	if err != nil {
		return nil, err
	}
	tokens := page{source: "table", unit: budget.TokenUnit, flat: true}
	money := page{source: "table", unit: budget.CostUnit, flat: true}
	for {
		fields, err := table.Read()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, tableError(err)
		}
		row := row{fields: fields}
		b := Bucket{Start: row.time(c.start), End: row.time(c.end)}
		line := Line{Model: row.model(c.model), Amounts: Amounts{Input: row.count(c.input), Output: row.count(c.output),
			Cached: row.count(c.cached), CacheWrite: row.count(c.written), Requests: row.count(c.requests)}}
		cost := Line{Amounts: Amounts{Cost: row.money(c.cost)}}
		if (row.field(c.input) == "") != (row.field(c.output) == "") {
			row.note(errors.New("it has input without output, or output without input"))
		}
		if row.wrong != nil {
			n, _ := table.FieldPos(0)
			return nil, fmt.Errorf("%w: line %d: %w", ErrFormat, n, row.wrong)
		}
		if c.input >= 0 || c.cost < 0 {
			tokens.add(b, line)
		}
		if c.cost >= 0 {
			money.add(b, cost)
		}
	}
	pages := []page{}
	for _, p := range []page{tokens, money} {
		if len(p.buckets) > 0 {
			pages = append(pages, p)
		}
	}
	return pages, nil
}

func (p *page) add(b Bucket, l Line) {
	b.Lines = []Line{l}
	p.buckets = append(p.buckets, b)
}

func tableError(err error) error {
	if _, ok := errors.AsType[*csv.ParseError](err); ok {
		return fmt.Errorf("%w: %w", ErrFormat, err)
	}
	return err
}

// row is a line of a table; it notes the first thing that is wrong.
type row struct {
	fields []string
	wrong  error
}

// field is what stands in a column; nothing where there is none.
func (r *row) field(i int) string {
	if i < 0 {
		return ""
	}
	return strings.TrimSpace(r.fields[i])
}

func (r *row) note(err error) {
	if r.wrong == nil {
		r.wrong = err
	}
}

func (r *row) count(i int) int64 {
	text := r.field(i)
	if text == "" {
		return 0
	}
	n, err := parseCount(text)
	r.note(err)
	return n
}

func (r *row) money(i int) int64 {
	text := r.field(i)
	if text == "" {
		return 0
	}
	n, err := parseMoney(text, dollar)
	r.note(err)
	return n
}

func (r *row) time(i int) time.Time {
	t, err := parseTime(r.field(i))
	r.note(err)
	return t
}

func (r *row) model(i int) string {
	name := strings.Clone(r.field(i))
	r.note(checkModel(name))
	return name
}
