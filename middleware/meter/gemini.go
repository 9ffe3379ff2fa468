package meter

import (
	"bytes"
	"cmp"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tollbook/tollbook/budget"
)

// The meters of Gemini's wire format, also at Vertex AI: the model stands in the
// path. Thoughts come on top of what the candidates have, both are output; cached
// content is part of the prompt, the results of tools are not.
var (
	GeminiGenerate Meter = gemini{}             // POST …/models/MODEL:generateContent
	GeminiStream   Meter = gemini{stream: true} // POST …/models/MODEL:streamGenerateContent, as events or as a list
)

type gemini struct{ stream bool }

func (m gemini) Bound(r Request, o Options) (Bound, error) {
	var contents, system, tools, config, model value
	beyond := newBeyond(o)
	other, err := readMembers(r.Body, map[string]*value{"contents": &contents, "systeminstruction": &system, "tools": &tools,
		"generationconfig": &config, "model": &model}, proto, beyond.gemini)
	if err != nil {
		return Bound{}, err
	}
	if contents.kind() != '[' && contents.kind() != '{' {
		return Bound{}, &BodyError{Reason: `"contents" is no list`}
	}
	b := Bound{Model: cmp.Or(modelIn(r.Path), model.str()), Stream: m.stream}
	t := newTally(b.Model, o, beyond)
	t.add(t.perRequest)
	t.contents(system)
	t.contents(contents)
	t.geminiTools(tools)
	for _, v := range other {
		t.any(v)
	}
	if err := t.geminiConfig(r.Body, config, &b, o); err != nil {
		return Bound{}, err
	}
	b.Input = t.sum
	beyond.bound(&b)
	if t.err == nil && plus(b.Input, b.Output) > budget.MaxTokens {
		t.fail(&BodyError{Reason: fmt.Sprintf("it may cost more than %d tokens", int64(budget.MaxTokens))})
	}
	if t.err != nil {
		return Bound{}, t.err
	}
	return b, nil
}

// modelIn returns the model that a path names: …/models/MODEL:verb.
func modelIn(path string) string {
	name := path[strings.LastIndexByte(path, '/')+1:]
	if i := strings.LastIndexByte(name, ':'); i >= 0 {
		name = name[:i]
	}
	return name
}

// proto folds a name as servers of Google's read JSON: system_instruction and
// systemInstruction are one, SystemInstruction is none.
func proto(name []byte) (known string, exact bool) {
	snake := bytes.IndexByte(name, '_') >= 0
	camel := bytes.ContainsFunc(name, unicode.IsUpper)
	first, _ := utf8.DecodeRune(name)
	return strings.ReplaceAll(fold(name), "_", ""), !unicode.IsUpper(first) && !(snake && camel)
}

func (b *beyond) gemini(name string, v value) (costs bool, err error) {
	switch name {
	case "safetysettings", "toolconfig", "labels":
		return name == "toolconfig", nil
	case "cachedcontent":
		if v.present() && string(v) != `""` {
			return false, b.draws(name)
		}
	}
	return true, nil
}

// geminiConfig finds the output cap. Thoughts count against it; a budget for
// them that is larger is let count in full.
func (t *tally) geminiConfig(body []byte, config value, b *Bound, o Options) error {
	var maxTokens, candidates, thinking value
	if config.present() {
		other, err := readMembers(config, map[string]*value{"maxoutputtokens": &maxTokens, "candidatecount": &candidates, "thinkingconfig": &thinking}, proto,
			func(string, value) (bool, error) { return true, nil }) // a schema is read by the model, a temperature costs little
		if err != nil {
			return err
		}
		for _, v := range other {
			t.any(v)
		}
	}
	var err error
	if b.Choices, err = count(candidates, "candidateCount"); err != nil {
		return err
	}
	n, ok := maxTokens.tokens()
	switch {
	case maxTokens.present() && !ok:
		return &BodyError{Reason: fmt.Sprintf(`"maxOutputTokens" is not a whole number from 0 to %d`, int64(budget.MaxTokens))}
	case n > 0:
		b.capping.name(body, maxTokens, n)
	default:
		if b.capping, ok = assumed(b.Model, o); !ok {
			return &UncappedError{Model: b.Model}
		}
		b.capping.spots = []edit{geminiCap(body, config, maxTokens)}
	}
	n = b.capping.cap
	for name, v := range thinking.members() {
		if known, _ := proto(name); known == "thinkingbudget" && isNumber(v) {
			more, ok := v.tokens()
			if !ok {
				return &BodyError{Reason: `"thinkingBudget" is not a whole number`}
			}
			n = b.capping.think(more, 0)
		}
	}
	b.Output = times(n, b.Choices)
	return nil
}

// geminiCap is where the cap belongs in a request that names none.
func geminiCap(body []byte, config, maxTokens value) edit {
	switch {
	case config.present():
		return place(body, config, maxTokens, "maxOutputTokens")
	case len(config) > 0:
		return instead(body, config, `{"maxOutputTokens":%d}`)
	}
	return member(body, body, `"generationConfig":{"maxOutputTokens":%d}`)
}

// contents is one message or a list of them, or a text.
func (t *tally) contents(v value) {
	if v.kind() == '[' {
		for m := range v.elements() {
			t.contents(m)
		}
		return
	}
	if v.kind() != '{' {
		t.any(v)
		return
	}
	t.add(t.perMessage)
	for name, m := range v.members() {
		switch known, _ := proto(name); {
		case known == "parts" && m.kind() == '[':
			for part := range m.elements() {
				t.geminiPart(part)
			}
		case known == "parts":
			t.geminiPart(m)
		case known != "role":
			t.any(m)
		}
	}
}

func (t *tally) geminiPart(v value) {
	if v.kind() != '{' {
		t.any(v)
		return
	}
	for name, m := range v.members() {
		switch known, _ := proto(name); known {
		case "thought":
		case "inlinedata":
			t.inline(m)
		case "filedata", "videometadata":
			t.fail(t.draws("content of " + known))
		case "functionresponse":
			t.answer(m)
		default: // text, functionCall, thoughtSignature, …
			t.any(m)
		}
	}
}

// answer is what a function gave back, which may hold parts of its own.
func (t *tally) answer(v value) {
	if v.kind() != '{' {
		t.any(v)
		return
	}
	t.add(t.perMessage)
	for name, m := range v.members() {
		if known, _ := proto(name); known != "parts" {
			t.any(m)
			continue
		}
		for part := range m.elements() {
			t.geminiPart(part)
		}
		if m.kind() != '[' {
			t.geminiPart(m)
		}
	}
}

// inline is data within the request: a picture counts as one, sound and pages as
// long as nobody knows.
func (t *tally) inline(v value) {
	for name, m := range v.members() {
		if known, _ := proto(name); known == "mimetype" {
			if media, _, _ := strings.Cut(m.str(), "/"); media == "image" {
				t.add(t.image)
				return
			}
			t.fail(t.draws("inline data of type " + quotable(m.str())))
			return
		}
	}
	t.fail(t.draws("inline data of no type"))
}

func (t *tally) geminiTools(tools value) {
	if !tools.present() {
		return
	}
	t.add(t.anyTools)
	one := func(tool value) {
		for name, m := range tool.members() {
			if known, _ := proto(name); known != "functiondeclarations" && m.present() {
				t.fail(t.loops("tool " + quotable(string(name)))) // googleSearch, urlContext, codeExecution, …
			}
		}
		t.toolJSON(tool)
	}
	if tools.kind() == '{' {
		one(tools)
	}
	for tool := range tools.elements() {
		one(tool)
	}
}

func (m gemini) Streams(_ Bound, h http.Header) bool {
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return m.stream || media == "text/event-stream"
}

func (m gemini) Watch(b Bound, h http.Header, _ bool) Watch {
	if !m.Streams(b, h) {
		return newGeminiJSON()
	}
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	return newGeminiStream(b.Choices, media == "text/event-stream")
}

func (gemini) Refused(status int, _ http.Header, body []byte) Refusal {
	return problemIn(body).refusal(status)
}
