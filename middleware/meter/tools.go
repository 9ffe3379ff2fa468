package meter

import "strings"

// tools tallies what the model is told about its tools, which stands in the
// system message.
func (t *tally) tools(tools, functions value) {
	if !tools.present() && !functions.present() {
		return
	}
	if (tools.present() && tools.kind() != '[') || (functions.present() && functions.kind() != '[') {
		t.fail(&BodyError{Reason: `"tools" or "functions" is not a list`})
	}
	t.add(t.anyTools)
	if !t.system {
		t.add(4) // what the model is told is then a message of its own
	}
	for tool := range tools.elements() {
		t.fail(check(tool, "type", "function"))
		switch kind := tool.get("type").str(); kind {
		case "function", "custom", "":
		default: // a tool that the provider runs, such as web_search
			t.fail(t.loops("tool " + quotable(kind)))
		}
		if f := tool.get("function"); t.toolFactor == 0 && f.kind() == '{' {
			t.function(f)
		} else {
			t.toolJSON(tool)
		}
	}
	for f := range functions.elements() {
		if t.toolFactor == 0 {
			t.function(f)
		} else {
			t.toolJSON(f)
		}
	}
}

func (t *tally) toolJSON(tool value) {
	t.add(plus(times(t.size(tool), max(t.toolFactor, 1)), t.perTool))
}

// function follows the cookbook's formula. What the formula does not know
// counts as JSON.
func (t *tally) function(f value) {
	t.fail(check(f, "name", "description", "parameters"))
	t.add(t.perTool)
	name, description := f.get("name"), f.get("description")
	t.add(t.count(name.str() + ":" + sentence(description)))
	for k, v := range f.members() {
		switch {
		case v.kind() == '"' && (string(k) == "name" || string(k) == "description"), string(k) == "strict":
		case string(k) == "parameters":
			t.parameters(v)
		default:
			t.member(k, v)
		}
	}
}

func (t *tally) parameters(schema value) {
	if schema.kind() != '{' {
		t.any(schema)
	}
	for k, v := range schema.members() {
		switch {
		case string(k) == "type" && v.kind() == '"', string(k) == "required":
		case string(k) == "properties" && v.kind() == '{':
			some := int64(0)
			for name, p := range v.members() {
				some = 3
				t.property(string(name), p)
			}
			t.add(some)
		default:
			t.member(k, v)
		}
	}
}

func (t *tally) property(name string, p value) {
	t.add(3)
	t.add(t.count(name + ":" + p.get("type").str() + ":" + sentence(p.get("description"))))
	if p.kind() != '{' {
		t.any(p)
	}
	for k, v := range p.members() {
		switch {
		case v.kind() == '"' && (string(k) == "type" || string(k) == "description"):
		case v.kind() == '[' && string(k) == "enum":
			items := int64(0)
			for item := range v.elements() {
				items = plus(items, plus(3, t.size(item)))
			}
			t.add(max(items-3, 0))
		default:
			t.member(k, v)
		}
	}
}

// member counts a member as its JSON.
func (t *tally) member(k []byte, v value) {
	t.add(t.count(string(k)))
	t.any(v)
}

func sentence(v value) string { return strings.TrimSuffix(v.str(), ".") }
