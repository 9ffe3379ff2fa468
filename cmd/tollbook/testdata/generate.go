//go:build ignore

// Generate writes requests.jsonl, the sample batch: 200 requests as a small
// shop for outdoor gear might send them overnight. The same bytes every time:
//
//	go run generate.go >requests.jsonl
package main

import (
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"strings"
)

type object = map[string]any

var rnd = rand.New(rand.NewPCG(17, 42))

func pick[T any](from []T) T { return from[rnd.IntN(len(from))] }

func main() {
	type request struct {
		CustomID string `json:"custom_id"`
		Method   string `json:"method"`
		URL      string `json:"url"`
		Body     object `json:"body"`
	}
	var lines []request
	add := func(n int, kind, url string, body func(i int) object) {
		for i := range n {
			lines = append(lines, request{fmt.Sprintf("%s-%03d", kind, i+1), "POST", url, body(i)})
		}
	}
	add(58, "ticket", "/v1/chat/completions", ticket)
	add(28, "summary", "/v1/chat/completions", summary)
	add(24, "order", "/v1/chat/completions", order)
	add(16, "translation", "/v1/chat/completions", translation)
	add(12, "review", "/v1/chat/completions", review)
	add(10, "chat", "/v1/chat/completions", conversation)
	add(42, "embedding", "/v1/embeddings", embedding)
	add(10, "blurb", "/v1/completions", blurb)
	rnd.Shuffle(len(lines), func(i, j int) { lines[i], lines[j] = lines[j], lines[i] })

	enc := json.NewEncoder(os.Stdout)
	enc.SetEscapeHTML(false)
	for _, l := range lines {
		if err := enc.Encode(l); err != nil {
			log.Fatal(err)
		}
	}
}

var (
	products = []string{"Fernweh 65 rucksack", "Kestrel two-person tent", "Moraine down jacket", "Tarn water filter", "Cairn trekking poles",
		"Bergahorn hiking boots", "Lumen headlamp", "Polaris sleeping bag", "Talus gaiters", "Drift packraft"}
	cities  = []string{"Innsbruck", "Sapporo", "Bergen", "Valparaíso", "Kraków", "Taipei", "Busan", "Fort William", "Chamonix", "Ljubljana"}
	defects = []string{"the zip broke on the second day", "a seam came open in the rain", "the battery lasts an hour instead of ten", "one pole is shorter than the other",
		"it smells of glue even after airing", "the buckle snapped while I was crossing a river", "the colour is nothing like the picture", "the left boot squeaks at every step"}
	wishes = []string{"I would like my money back.", "Please send a replacement before the 14th.", "Can it be repaired?", "Is this covered by the warranty?",
		"I only want to know whether others had the same trouble.", "Please cancel the second parcel."}
	// Tickets in other scripts: what counting bytes or words alone gets wrong.
	foreign = []string{
		"先週届いた%sですが、%d回使っただけで縫い目がほつれました。交換をお願いできますか。",
		"我上周收到的%s才用了%d次，拉链就坏了，请问可以退货吗？另外发票上的地址写错了。",
		"지난주에 받은 %s 제품을 %d번 썼는데 버클이 부러졌습니다. 교환이 가능할까요?",
		"Die %s ist nach %d Touren undicht. Den Kassenzettel habe ich leider nicht mehr, die Bestellung liegt aber in meinem Konto.",
		"La %s llegó con %d días de retraso y con la caja abierta. ¿Me pueden devolver los gastos de envío?",
		"وصلتني %s بعد %d أيام وكانت العلبة مفتوحة. هل يمكنني إرجاعها؟",
		"Уже %[2]d раза писал о %[1]s: молния заедает. Когда мне ответят?",
		"My %s 🏕️ died after %d nights 😭😭 pls help 🙏 (photos below 👇🏽👨‍👩‍👧‍👦)",
	}
)

// ticket classifies a customer's mail, in JSON mode.
func ticket(i int) object {
	mail := fmt.Sprintf("Hello, I bought the %s in your shop in %s (order %d). After %d days %s. %s\n\nThank you,\nticket %d",
		pick(products), pick(cities), 100_000+rnd.IntN(900_000), 1+rnd.IntN(40), pick(defects), pick(wishes), i+1)
	if i%3 == 0 {
		mail = fmt.Sprintf(pick(foreign), pick(products), 2+rnd.IntN(5)) + fmt.Sprintf(" (#%d)", i+1)
	}
	body := object{
		"model": pick([]string{"gpt-4o-mini", "gpt-4o-mini", "gpt-4.1-nano"}),
		"messages": []object{
			{"role": "system", "content": "You sort the mail of an outdoor shop. Answer with a JSON object: \"topic\" (defect, delivery, refund, question), \"urgency\" from 1 to 5, \"language\" as an ISO code and a one-sentence \"summary\" in English."},
			{"role": "user", "content": mail},
		},
		"response_format": object{"type": "json_object"},
		"temperature":     0,
		"max_tokens":      120,
	}
	if i%20 == 7 {
		delete(body, "max_tokens") // people forget; the model's own maximum bounds it
	}
	return body
}

// summary condenses a long document: 3 to 40 kB of report.
func summary(i int) object {
	var doc strings.Builder
	fmt.Fprintf(&doc, "Field report %d, %s\n", i+1, pick(cities))
	for day := 1; doc.Len() < 3_000+i*1_350; day++ {
		fmt.Fprintf(&doc, "\nDay %d. We walked %d km from %s towards the pass, %d m of climbing in %s. ",
			day, 6+rnd.IntN(22), pick(cities), 200+rnd.IntN(1_400), pick([]string{"sleet", "full sun", "fog so thick that we lost the cairns twice", "a wind that tore at the tents", "soft snow"}))
		for range 2 + rnd.IntN(3) {
			fmt.Fprintf(&doc, "The %s %s: %s, though %s. ", pick(products), pick([]string{"did well", "disappointed us", "surprised everybody", "was left in the hut"}),
				pick(defects), pick([]string{"nobody complained", "the guide mended it with wire", "we would still buy it again", "the other group saw the same", "it dried overnight"}))
		}
		if day%4 == 0 {
			fmt.Fprintf(&doc, "Weights: %d g, %d g, %d g. Costs: %d.%02d EUR.", rnd.IntN(3000), rnd.IntN(3000), rnd.IntN(3000), rnd.IntN(400), rnd.IntN(100))
		}
	}
	return object{
		"model": pick([]string{"gpt-5-mini", "gpt-4.1-mini", "gpt-4o"}),
		"messages": []object{
			{"role": "system", "content": "Summarise the report for the buyers of the shop: three findings a product, each with the day it was seen. At most 300 words."},
			{"role": "user", "content": doc.String()},
		},
		"max_completion_tokens": 600,
	}
}

// tools are the functions the shop's assistant may call.
var tools = []object{
	{"type": "function", "function": object{
		"name": "find_order", "description": "Find an order by its number or by the customer's e-mail address.",
		"parameters": object{"type": "object", "properties": object{
			"number": object{"type": "integer", "description": "six digits"},
			"email":  object{"type": "string"},
		}, "additionalProperties": false},
	}},
	{"type": "function", "function": object{
		"name": "start_return", "description": "Start the return of one article of an order.",
		"parameters": object{"type": "object", "properties": object{
			"number":  object{"type": "integer"},
			"article": object{"type": "string"},
			"reason":  object{"type": "string", "enum": []string{"defect", "size", "late", "changed mind"}},
		}, "required": []string{"number", "article", "reason"}, "additionalProperties": false},
	}},
}

// order lets the model choose a function.
func order(i int) object {
	return object{
		"model": pick([]string{"gpt-4.1", "gpt-4.1-mini"}),
		"messages": []object{
			{"role": "system", "content": "You are the assistant of an outdoor shop. Use the functions; never promise what they did not confirm."},
			{"role": "user", "content": fmt.Sprintf("Order %d: %s. I want to send back the %s. %s", 100_000+i*7_919, pick(defects), pick(products), pick(wishes))},
		},
		"tools":               tools,
		"tool_choice":         "auto",
		"parallel_tool_calls": i%2 == 0,
		"max_tokens":          200,
	}
}

// translation turns a product text into another language.
func translation(i int) object {
	languages := []string{"Japanese", "Traditional Chinese", "Korean", "German", "Norwegian", "Polish", "Spanish", "Arabic"}
	text := fmt.Sprintf("The %s was made for people who leave the hut at four in the morning. %d g, %d litres, and a promise: should it ever be that %s, we mend it for nothing.",
		pick(products), 300+rnd.IntN(2_000), 20+i, pick(defects))
	return object{
		"model": "gpt-4.1-mini",
		"messages": []object{
			{"role": "developer", "content": "Translate for a catalogue. Keep figures and product names."},
			{"role": "user", "content": []object{{"type": "text", "text": "Into " + languages[i%len(languages)] + ":"}, {"type": "text", "text": text}}},
		},
		"max_completion_tokens": 250,
		"n":                     1 + i%4/3,
	}
}

// review asks a reasoning model about a piece of the shop's code.
func review(i int) object {
	fn := pick([]string{"priceOf", "shipDate", "restock", "mergeCarts"})
	code := fmt.Sprintf("func %s%d(items []Item, rate float64) (total float64) {\n\tfor i := 0; i <= len(items); i++ {\n\t\tif items[i].Weight > %d {\n\t\t\ttotal += items[i].Price * rate\n\t\t}\n\t}\n\treturn total\n}\n",
		fn, i+1, 100*(1+rnd.IntN(30)))
	return object{
		"model":                 pick([]string{"gpt-5", "o4-mini"}),
		"reasoning_effort":      pick([]string{"low", "medium"}),
		"messages":              []object{{"role": "user", "content": "Which bug would you fix first, and how?\n\n```go\n" + code + "```"}},
		"max_completion_tokens": 1_500,
		"response_format": object{"type": "json_schema", "json_schema": object{"name": "finding", "strict": true, "schema": object{
			"type": "object", "required": []string{"line", "fault", "fix"}, "additionalProperties": false,
			"properties": object{"line": object{"type": "integer"}, "fault": object{"type": "string"}, "fix": object{"type": "string"}},
		}}},
	}
}

// conversation is a talk of several turns, with a function's answer in it.
func conversation(i int) object {
	number := 200_000 + i*6_151
	return object{
		"model": "gpt-4o",
		"messages": []object{
			{"role": "system", "content": "You are the assistant of an outdoor shop. Be brief and kind."},
			{"role": "user", "content": fmt.Sprintf("Where is my %s?", pick(products))},
			{"role": "assistant", "content": "May I have the number of your order?"},
			{"role": "user", "content": fmt.Sprintf("%d, sent to %s", number, pick(cities))},
			{"role": "assistant", "content": nil, "tool_calls": []object{{"id": fmt.Sprintf("call_%d", i+1), "type": "function",
				"function": object{"name": "find_order", "arguments": fmt.Sprintf(`{"number":%d}`, number)}}}},
			{"role": "tool", "tool_call_id": fmt.Sprintf("call_%d", i+1), "content": fmt.Sprintf(`{"state":"on its way","parcel":"JX%08d","days":%d}`, rnd.IntN(1e8), 1+rnd.IntN(9))},
		},
		"tools":      tools,
		"max_tokens": 150,
		"user":       fmt.Sprintf("customer-%d", 5_000+i),
	}
}

// embedding indexes the catalogue: one text, several, or some in other scripts.
func embedding(i int) object {
	text := func() string {
		s := fmt.Sprintf("%s, tested near %s at %d m. Customers said that %s.", pick(products), pick(cities), rnd.IntN(3_000), pick(defects))
		if rnd.IntN(4) == 0 {
			s = fmt.Sprintf(pick(foreign), pick(products), 2+rnd.IntN(7))
		}
		return fmt.Sprintf("[%03d] %s", i+1, s)
	}
	body := object{"model": pick([]string{"text-embedding-3-small", "text-embedding-3-small", "text-embedding-3-large"}), "input": text()}
	if i%2 == 1 {
		many := make([]string, 2+rnd.IntN(6))
		for j := range many {
			many[j] = text()
		}
		body["input"] = many
	}
	if i%5 == 0 {
		body["dimensions"] = 256
	}
	return body
}

// blurb continues a text on the oldest endpoint.
func blurb(i int) object {
	return object{
		"model":       "gpt-3.5-turbo-instruct",
		"prompt":      fmt.Sprintf("Catalogue, page %d\n\n%s (as used in %s):", 12+i, products[i%len(products)], pick(cities)),
		"max_tokens":  80,
		"temperature": 0.7,
		"stop":        []string{"\n\n"},
	}
}
