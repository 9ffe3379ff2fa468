package meter

import (
	"cmp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// problem is an error body as providers of every format write it:
//
//	{"error":{"code","type","message","param"}}   OpenAI and most others; code is a string, a number, null or worse
//	{"error":"…"}                                 some gateways
//	[{"error":{"code","status","details"}}]       Gemini behind its OpenAI-compatible path
//	{"object":"error","type","code","message"}    Mistral, older vLLM
//	{"detail":…}                                  FastAPI servers
type problem struct {
	known   bool      // it has one of these forms
	words   [4]string // code, type, status and inner code, where given
	coded   bool      // a code is given, be it no word
	message string
	param   string
	fields  bool // it names the fields of the request that are at fault
	wrote   bool // it carries text that a model generated
	perDay  bool
	retryIn time.Duration
}

// problemIn reads an error body. One that is not whole JSON stays unknown.
func problemIn(body []byte) (p problem) {
	v, whole := parse(body)
	if !whole || !valid(v) {
		return p
	}
	if v.kind() == '[' {
		for e := range v.elements() {
			v = e
			break
		}
	}
	for k, m := range v.members() {
		switch string(k) {
		case "error":
			e := problemOf(m)
			e.wrote = e.wrote || p.wrote
			p = e
		case "choices", "output", "usage", "candidates":
			p.wrote = p.wrote || m.present()
		case "detail":
			p.known = p.known || m.present()
			p.message = string(fieldsOf(m))
			for d := range m.elements() {
				p.fields = p.fields || d.get("loc").present()
			}
		}
	}
	if !p.known && v.get("message").present() && (v.get("code").present() || v.get("type").present()) {
		wrote := p.wrote
		p = problemOf(v)
		p.wrote = p.wrote || wrote
	}
	return p
}

// isError reports whether the member "error" of a good response tells of one.
func isError(v value) bool {
	return v.present() && v.kind() != 'f' && string(v) != `""` && string(v) != "{}"
}

// problemOf reads the error itself.
func problemOf(v value) (p problem) {
	p.known = v.kind() == '{' || v.kind() == '"'
	p.message = v.str()
	for k, m := range v.members() {
		switch string(k) {
		case "code":
			p.coded, p.words[0] = m.present(), codeOf(m)
		case "type":
			p.words[1] = codeOf(m)
		case "status":
			p.words[2] = codeOf(m)
		case "innererror":
			p.words[3] = codeOf(m.get("code"))
		case "message":
			p.message = m.str()
		case "param":
			p.param = m.str()
		case "failed_generation": // Groq: a tool call that fits no schema
			p.wrote = p.wrote || m.present()
		case "details":
			p.addDetails(m)
		}
	}
	return p
}

// codeOf reads a code: a word or a number.
func codeOf(v value) string {
	if isNumber(v) {
		return Code(string(v))
	}
	return Code(v.str())
}

// Code returns s if it can be a provider's code, one word of up to 64 letters,
// digits and any of _-.: in ASCII, and nothing if it could be text.
func Code(s string) string {
	if len(s) > 64 || strings.Contains(s, "/") {
		return ""
	}
	return word(s)
}

// addDetails reads what Gemini says about quotas. A quota per day ends the day;
// the delay beside it belongs to the one per minute.
func (p *problem) addDetails(v value) {
	for d := range v.elements() {
		for violation := range d.get("violations").elements() {
			p.perDay = p.perDay || strings.Contains(violation.get("quotaId").str(), "PerDay")
		}
		if wait, err := time.ParseDuration(d.get("retryDelay").str()); err == nil && wait > 0 {
			p.retryIn = max(p.retryIn, wait)
		}
	}
}

// fieldsOf keeps of FastAPI's details where and what, and leaves out the input,
// which repeats the request.
func fieldsOf(detail value) (text []byte) {
	if detail.kind() == '"' {
		return []byte(detail.str())
	}
	for d := range detail.elements() {
		text = append(append(text, d.get("loc")...), d.get("msg").str()...)
	}
	return text
}

// stops are the codes that end a run until somebody acts, as providers and
// gateways document them; so is every code ending in _spend_limit_exceeded.
var stops = []string{
	"insufficient_quota", "credit_balance_exhausted", "organization_usage_limit_exceeded", // OpenAI
	"billing_hard_limit_reached", "billing_not_active", // OpenAI
	"enforced_spend_limit_reached", "billing_error", // Anthropic
	"budget_exceeded", // LiteLLM and other gateways
	"402",             // an error inside a stream that carries its status
}

// billed are the codes of refusals that come after a model was at work: Azure
// bills what its filter holds back; Groq returns what was generated.
var billed = []string{
	"content_filter", "ResponsibleAIPolicyViolation", "content_policy_violation",
	"tool_use_failed", "json_validate_failed", "output_parse_failed",
}

// faults are the words of a 400 or 422 that comes before a model is at work:
// the request itself is at fault.
var faults = []string{
	"context_length_exceeded", "model_not_found", "invalid_json", "missing_required_parameter", // OpenAI
	"unknown_parameter", "unsupported_parameter", "unsupported_value", "unsupported_model",
	"invalid_value", "invalid_type", "invalid_function_parameters",
	"string_above_max_length", "string_below_min_length", "array_above_max_length", "array_below_min_length",
	"integer_above_max_value", "integer_below_min_value", "decimal_above_max_value", "decimal_below_min_value",
	"invalid_base64", "invalid_image", "invalid_image_format", "invalid_image_url", "image_too_large", "image_parse_error",
	"OperationNotSupported",                        // Azure
	"model_decommissioned", "model_terms_required", // Groq
	"invalid_model", "invalid_request_message_order", "invalid_request_prompt", // Mistral
	"InvalidParameter",                        // Volcengine
	"INVALID_ARGUMENT", "FAILED_PRECONDITION", // Gemini, which bills no 400 at all
}

// faulty reports whether a 400 or 422 is surely about the request: it says so
// by a code, or without a code of its own by the field at fault, or by vLLM's
// type. The type invalid_request_error alone does not: with it OpenAI also
// reports an answer that ran into its limit ("Could not finish the message…"),
// and Anthropic one that its filter held back.
func (p problem) faulty(status int) bool {
	if p.fields || p.has(faults) {
		return true
	}
	code, kind := p.words[0], p.words[1]
	mute := !p.coded || code == strconv.Itoa(status) || (code != "" && code == kind)
	return mute && (kind == "BadRequestError" || (kind == "invalid_request_error" && p.param != ""))
}

// namesUsage reports whether it is about the option that asks for usage. What
// it says about another field may quote the request.
func (p problem) namesUsage() bool {
	about := cmp.Or(p.param, p.message)
	return strings.Contains(about, "stream_options") || strings.Contains(about, "include_usage")
}

func (p problem) has(list []string) bool {
	return slices.ContainsFunc(p.words[:], func(w string) bool { return slices.Contains(list, w) })
}

func (p problem) stop(status int) bool {
	switch {
	case status == 402, p.perDay, p.has(stops):
		return true
	case status == 400 && strings.Contains(strings.ToLower(p.message), "credit balance"):
		// Anthropic gives an empty account no code of its own, only
		// invalid_request_error: this is the one place where text is read.
		return true
	}
	return slices.ContainsFunc(p.words[:], func(w string) bool { return strings.HasSuffix(w, "_spend_limit_exceeded") })
}

// unbilled errs to the side of no: what it denies is charged at its hold. A 400
// or 422 of an unknown code may come from behind the model.
func (p problem) unbilled(status int) bool {
	if p.wrote || p.has(billed) {
		return false
	}
	switch status {
	case 402, 429:
		return true
	case 400, 422:
		return p.faulty(status) || p.namesUsage() || p.stop(status)
	case 401, 403, 404, 405, 413:
		return p.known
	case 503, 529:
		return slices.ContainsFunc(p.words[:], func(w string) bool {
			return w == "slow_down" || strings.Contains(strings.ToLower(w), "overloaded")
		})
	}
	return false
}

// refusal judges the problem under a status; 0 is an error inside a response
// that began well.
func (p problem) refusal(status int) Refusal {
	r := Refusal{Unbilled: p.unbilled(status), Stop: p.stop(status), RetryAfter: p.retryIn}
	if r.Stop {
		r.RetryAfter = 0
	}
	r.NoUsageOption = (status == 400 || status == 422) && p.namesUsage()
	for _, w := range p.words[:3] {
		// A word says more than a number, which repeats the status.
		if r.Code == "" || (w != "" && r.Code[0] <= '9' && w[0] > '9') {
			r.Code = w
		}
	}
	return r
}
