package meter

import (
	"fmt"
	"strings"
	"unicode"
)

// request is the body of a request, its members apart. An absent one is empty.
type request struct {
	*beyond
	body                                            []byte
	model, models, messages, prompt, suffix, input  value
	tools, functions, n, bestOf, echo, prediction   value
	maxTokens, maxCompletionTokens, maxOutputTokens value
	maxNewTokens, nPredict                          value
	stream, streamOptions                           value
	other                                           []value
}

func (r *request) field(name string) *value {
	switch name {
	case "model":
		return &r.model
	case "models", "fallbacks": // OpenRouter, LiteLLM
		return &r.models
	case "messages":
		return &r.messages
	case "prompt":
		return &r.prompt
	case "suffix":
		return &r.suffix
	case "input":
		return &r.input
	case "tools":
		return &r.tools
	case "functions":
		return &r.functions
	case "n":
		return &r.n
	case "best_of":
		return &r.bestOf
	case "echo":
		return &r.echo
	case "prediction":
		return &r.prediction
	case "max_tokens":
		return &r.maxTokens
	case "max_completion_tokens":
		return &r.maxCompletionTokens
	case "max_output_tokens":
		return &r.maxOutputTokens
	case "max_new_tokens": // Hugging Face's servers
		return &r.maxNewTokens
	case "n_predict": // llama.cpp
		return &r.nPredict
	case "stream":
		return &r.stream
	case "stream_options":
		return &r.streamOptions
	}
	return nil
}

// caps are the members that cap the output, by name.
func (r *request) caps() [5]namedValue {
	return [...]namedValue{{"max_tokens", &r.maxTokens}, {"max_completion_tokens", &r.maxCompletionTokens}, {"max_output_tokens", &r.maxOutputTokens},
		{"max_new_tokens", &r.maxNewTokens}, {"n_predict", &r.nPredict}}
}

type namedValue struct {
	name string
	v    *value
}

// readRequest takes a body apart.
func readRequest(body []byte, b *beyond) (*request, error) {
	if !valid(body) {
		return nil, &BodyError{Reason: "it is not JSON"}
	}
	v, _ := parse(body)
	if v.kind() != '{' {
		return nil, &BodyError{Reason: "it is not a JSON object"}
	}
	r := &request{beyond: b, body: body}
	return r, r.read(v)
}

// read takes the members of v. One that stands twice is refused: which one
// counts is up to the provider. So is one in another case, which servers written
// in Go read too.
func (r *request) read(v value) error {
	for name, m := range v.members() {
		known := fold(name)
		exact := known == string(name)
		if field := r.field(known); field != nil {
			if err := single(known, exact, *field != nil); err != nil {
				return err
			}
			*field = m
			continue
		}
		switch known {
		case "temperature", "top_p", "presence_penalty", "frequency_penalty", "logit_bias", "logprobs", "top_logprobs",
			"seed", "stop", "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key",
			"prompt_cache_retention", "reasoning_effort", "verbosity", "parallel_tool_calls", "modalities", "audio",
			"encoding_format", "dimensions":
			// Settings, which no model reads.
			if !exact {
				r.other = append(r.other, m)
			}
		case "web_search_options", "search_parameters", "web_search", "enable_search", "plugins", "agent_id",
			"data_sources", "datasources", // Azure, on your data
			"preset",           // OpenRouter
			"vector_store_ids": // LiteLLM
			if m.present() && m.kind() != 'f' {
				if err := r.loops(quotable(string(name))); err != nil {
					return err
				}
			}
		case "previous_response_id", "conversation", "file_ids",
			"cached_content", "cachedcontent", // Gemini
			"prompt_id": // LiteLLM
			if m.present() && m.kind() != 'f' {
				if err := r.draws(quotable(string(name))); err != nil {
					return err
				}
			}
		case "extra_body", "google":
			// Gateways unpack these: what stands in them counts as if it stood outside.
			if err := r.read(m); err != nil {
				return err
			}
			if m.kind() != '{' {
				r.other = append(r.other, m)
			}
		default:
			// What is not known may end up in the prompt: response_format does,
			// and chat_template_kwargs.
			r.other = append(r.other, m)
		}
	}
	return nil
}

// check refuses an object in which one of these names is ambiguous.
func check(v value, names ...string) error {
	var seen uint64 // a bit for each name
	for name := range v.members() {
		known := fold(name)
		for i, n := range names {
			if n != known {
				continue
			}
			if err := single(known, known == string(name), seen>>i&1 == 1); err != nil {
				return err
			}
			seen |= 1 << i
		}
	}
	return nil
}

// single refuses a known member that is not in its own case, or not the first.
func single(known string, exact, twice bool) error {
	switch {
	case !exact:
		return &BodyError{Reason: fmt.Sprintf("%q stands in it in another case", known)}
	case twice:
		return &BodyError{Reason: fmt.Sprintf("%q stands in it twice", known)}
	}
	return nil
}

// fold returns a name in lower case, as encoding/json compares names: a long s
// is an s, and a Kelvin sign a k.
func fold(name []byte) string {
	return strings.Map(func(r rune) rune { return unicode.ToLower(unicode.ToUpper(r)) }, string(name))
}

// asksUsage is the edit that sets stream_options.include_usage to true; nil if
// the caller set it already, or set something that is not understood.
func (r *request) asksUsage() *edit {
	options := r.streamOptions
	asked := options.get("include_usage")
	part, text := options, `{"include_usage":true}`
	switch {
	case len(options) == 0:
		e := member(r.body, r.body, `"stream_options":{"include_usage":true}`)
		return &e
	case !options.present():
	case options.kind() != '{' || asked.isTrue():
		return nil
	case len(asked) > 0 && (asked.kind() == 'f' || asked.kind() == 'n'):
		part, text = asked, "true"
	case len(asked) > 0:
		return nil
	case len(trimSpace(options[1:])) == 1: // {}
	default:
		part, text = options[:1], `{"include_usage":true,`
	}
	e := instead(r.body, part, text)
	return &e
}
