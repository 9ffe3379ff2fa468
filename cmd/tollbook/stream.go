package main

import (
	"bufio"
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
)

// maxAnswer bounds the answer of one item.
const maxAnswer = 128 << 20

// assemble reads a stream of chat or text completion chunks to its end and
// returns the answer as the same request without "stream" would have got it:
// an output line holds whole answers.
func assemble(r io.Reader) ([]byte, error) {
	events := eventReader{r: bufio.NewReader(io.LimitReader(r, maxAnswer))}
	if head, _ := events.r.Peek(len(byteOrderMark)); string(head) == byteOrderMark {
		events.r.Discard(len(byteOrderMark))
	}
	var a assembly
	for {
		data, err := events.next()
		switch {
		case err == io.EOF && a.finished():
			return a.body() // some servers send no end marker
		case err == io.EOF:
			return nil, fmt.Errorf("%w: the stream was cut", errBroken)
		case err != nil:
			return nil, fmt.Errorf("%w: the stream broke: %w", errBroken, err)
		case string(data) == "[DONE]":
			return a.body()
		}
		if err := a.add(data); err != nil {
			return nil, err
		}
	}
}

// eventReader reads the data of server-sent events.
type eventReader struct{ r *bufio.Reader }

// next returns the data lines of the next event that has any, or io.EOF. An
// event the stream breaks off in is not returned.
func (e *eventReader) next() ([]byte, error) {
	var data []byte
	for {
		line, err := e.r.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		line = bytes.TrimRight(line, "\r\n")
		if len(line) == 0 && data != nil {
			return data, nil
		}
		if value, ok := bytes.CutPrefix(line, []byte("data:")); ok {
			if data != nil {
				data = append(data, '\n')
			}
			data = append(data, bytes.TrimPrefix(value, []byte(" "))...)
		}
	}
}

type object = map[string]any

// assembly is an answer in the making.
type assembly struct {
	answer  object
	choices []object
}

// add takes the data of one event.
func (a *assembly) add(data []byte) error {
	var chunk object
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&chunk); err != nil {
		return fmt.Errorf("%w: an event of the stream is no JSON object", errBroken)
	}
	if chunk["error"] != nil {
		return fmt.Errorf("%w: the provider ended the stream with an error", errBroken)
	}
	if a.answer == nil {
		a.answer = object{}
	}
	choices, _ := chunk["choices"].([]any)
	delete(chunk, "choices")
	delete(chunk, "obfuscation") // padding of a chunk, no part of an answer
	for name, value := range chunk {
		if value != nil || a.answer[name] == nil {
			a.answer[name] = value // usage is cumulative: the last one holds
		}
	}
	for _, c := range choices {
		if c, ok := c.(object); ok {
			a.choice(c)
		}
	}
	return nil
}

// choice adds a chunk's choice to the answer's choice of the same index.
func (a *assembly) choice(part object) {
	i := slices.IndexFunc(a.choices, func(c object) bool { return index(c) == index(part) })
	if i < 0 {
		i = len(a.choices)
		a.choices = append(a.choices, object{"index": index(part), "finish_reason": nil})
	}
	if delta, ok := part["delta"]; ok {
		part["message"] = delta
		delete(part, "delta")
	}
	delete(part, "index")
	merge(a.choices[i], part)
}

// index is where an element of a list belongs; the first where it does not say.
func index(element object) int64 {
	switch i := element["index"].(type) {
	case int64:
		return i
	case json.Number:
		n, _ := i.Int64()
		return n
	}
	return 0
}

// text is a string that grows in place.
type text struct{ b []byte }

func (t *text) MarshalJSON() ([]byte, error) { return marshal(string(t.b)) }

// whole names the strings that come in one piece. All others are texts that
// grow: content, arguments, refusal, reasoning and what servers add to them.
var whole = []string{"id", "type", "role", "name", "finish_reason"}

// merge adds part to into: texts grow, lists grow or merge by the index of
// their elements, anything else is replaced by what comes later. Null says
// nothing new.
func merge(into, part object) {
	for name, value := range part {
		switch v := value.(type) {
		case nil:
			if _, ok := into[name]; !ok {
				into[name] = nil
			}
		case string:
			if slices.Contains(whole, name) {
				into[name] = v
			} else if old, ok := into[name].(*text); ok {
				old.b = append(old.b, v...)
			} else {
				into[name] = &text{[]byte(v)}
			}
		case object:
			if old, ok := into[name].(object); ok {
				merge(old, v)
			} else {
				fresh := object{}
				merge(fresh, v)
				into[name] = fresh
			}
		case []any:
			old, _ := into[name].([]any)
			into[name] = mergeList(old, v)
		default:
			into[name] = v
		}
	}
}

// mergeList adds parts to list: those with an index to the element that has
// it, the others at the end.
func mergeList(list, parts []any) []any {
	for _, p := range parts {
		part, ok := p.(object)
		if !ok || part["index"] == nil {
			list = append(list, p)
			continue
		}
		i := slices.IndexFunc(list, func(e any) bool { old, ok := e.(object); return ok && index(old) == index(part) })
		if i < 0 {
			i = len(list)
			list = append(list, object{})
		}
		merge(list[i].(object), part)
	}
	return list
}

// finished reports whether every choice says why it ended.
func (a *assembly) finished() bool {
	return len(a.choices) > 0 && !slices.ContainsFunc(a.choices, func(c object) bool { return c["finish_reason"] == nil })
}

// body is the answer as JSON.
func (a *assembly) body() ([]byte, error) {
	if len(a.choices) == 0 {
		return nil, fmt.Errorf("%w: the stream held no choice", errBroken)
	}
	slices.SortFunc(a.choices, func(x, y object) int { return cmp.Compare(index(x), index(y)) })
	for _, c := range a.choices {
		message, _ := c["message"].(object)
		calls, _ := message["tool_calls"].([]any)
		for _, call := range calls {
			if call, ok := call.(object); ok {
				delete(call, "index") // a whole answer has it by position
			}
		}
	}
	a.answer["choices"] = a.choices
	if kind, ok := a.answer["object"].(string); ok {
		a.answer["object"] = strings.TrimSuffix(kind, ".chunk")
	}
	return marshal(a.answer)
}
