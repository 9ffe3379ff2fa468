package reconcile

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/journal"
)

func fixture(t testing.TB, name string) string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	require.NoError(t, err)
	return string(text)
}

// lastPage makes the page of a series its last.
func lastPage(text string) string {
	return strings.Replace(text, `"has_more": true`, `"has_more": false`, 1)
}

var (
	nov1 = time.Date(2024, 11, 1, 0, 0, 0, 0, time.UTC)
	nov2 = nov1.AddDate(0, 0, 1)
	nov3 = nov1.AddDate(0, 0, 2)
)

// openAIPage is a page of one bucket of usage.
func openAIPage(kind string, start, end time.Time, more bool, results ...string) string {
	text, err := json.Marshal(map[string]any{"object": "page", "has_more": more, "data": []any{map[string]any{
		"object": "bucket", "start_time": start.Unix(), "end_time": end.Unix(), "results": raw(kind, results)}}})
	if err != nil {
		panic(err)
	}
	return string(text)
}

func raw(kind string, results []string) []json.RawMessage {
	list := []json.RawMessage{}
	for _, r := range results {
		list = append(list, json.RawMessage(strings.Replace(r, "{", `{"object":"organization.usage.`+kind+`.result",`, 1)))
	}
	return list
}

const usage350 = `{"input_tokens":300,"input_cached_tokens":100,"output_tokens":50,"num_model_requests":2,"model":"gpt-4o-2024-08-06"}`

func TestReadFormats(t *testing.T) {
	day := func(source string, unit budget.Unit, lines ...Line) Bucket {
		return Bucket{Source: source, Unit: unit, Start: nov1, End: nov2, Lines: lines}
	}
	of := func(model string, a Amounts) Line { return Line{model, a} }
	claude := of("claude-sonnet-4-20250514", Amounts{Input: 3200, Cached: 200, CacheWrite: 1500, Output: 500})
	for name, c := range map[string]struct {
		text string
		want []Bucket
	}{
		"OpenAI usage": {lastPage(fixture(t, "openai-usage-completions.json")),
			[]Bucket{day("completions", budget.TokenUnit, of("", Amounts{Input: 1000, Cached: 400, CacheWrite: 100, Output: 500, Requests: 5}))}},
		"OpenAI costs": {fixture(t, "openai-costs.json"),
			[]Bucket{day("OpenAI costs", budget.CostUnit, of("", Amounts{Cost: 60_000_000_000}))}},
		"OpenAI embeddings, which have no output": {openAIPage("embeddings", nov1, nov2, false, `{"input_tokens":16,"num_model_requests":2,"model":"text-embedding-3-small"}`),
			[]Bucket{day("embeddings", budget.TokenUnit, of("text-embedding-3-small", Amounts{Input: 16, Requests: 2}))}},
		"groups": {openAIPage("completions", nov1, nov2, false, usage350, usage350),
			[]Bucket{day("completions", budget.TokenUnit, of("gpt-4o-2024-08-06", Amounts{Input: 300, Cached: 100, Output: 50, Requests: 2}),
				of("gpt-4o-2024-08-06", Amounts{Input: 300, Cached: 100, Output: 50, Requests: 2}))}},
		"an empty bucket": {openAIPage("completions", nov1, nov2, false), []Bucket{day("", 0)}},
		"pages in a list; an empty one is of what it continues": {"[" + openAIPage("completions", nov1, nov2, true, usage350) + "," + openAIPage("", nov2, nov3, false) + "]",
			[]Bucket{day("completions", budget.TokenUnit, of("gpt-4o-2024-08-06", Amounts{Input: 300, Cached: 100, Output: 50, Requests: 2})),
				{Source: "completions", Unit: budget.TokenUnit, Start: nov2, End: nov3}}},
		"pages one after another": {openAIPage("", nov1, nov2, true) + "\n" + openAIPage("completions", nov2, nov3, false, usage350) + "\n",
			[]Bucket{day("completions", budget.TokenUnit),
				{Source: "completions", Unit: budget.TokenUnit, Start: nov2, End: nov3, Lines: []Line{of("gpt-4o-2024-08-06", Amounts{Input: 300, Cached: 100, Output: 50, Requests: 2})}}}},
		"Anthropic messages": {`{"data":[{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","results":[{"uncached_input_tokens":1500,
			"cache_creation":{"ephemeral_5m_input_tokens":500,"ephemeral_1h_input_tokens":1000},"cache_read_input_tokens":200,"output_tokens":500,
			"server_tool_use":{"web_search_requests":10},"model":"claude-sonnet-4-20250514","api_key_id":null,"service_tier":"standard"}]}],"has_more":false,"next_page":null}`,
			[]Bucket{day("messages", budget.TokenUnit, claude)}},
		"Anthropic costs, in cents": {`{"data":[{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","results":[{"amount":"123.45","currency":"USD","cost_type":"tokens"},
			{"amount":"0.5","currency":"USD"}]}],"has_more":false}`,
			[]Bucket{day("Anthropic costs", budget.CostUnit, of("", Amounts{Cost: 1_234_500_000_000}), of("", Amounts{Cost: 5_000_000_000}))}},
		"Anthropic analytics, an item for each group": {`{"data":[{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","group":{"model":"claude-sonnet-4-20250514"},
			"usage":{"uncached_input_tokens":1500,"cache_read_input_tokens":200,"cache_creation":{"ephemeral_5m_input_tokens":1500},"output_tokens":500,"total_tokens":3700}},
			{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","group":{"model":"claude-haiku"},"usage":{"uncached_input_tokens":1,"cache_creation":4,"output_tokens":2,"requests":1}}]}`,
			[]Bucket{day("messages", budget.TokenUnit, claude, of("claude-haiku", Amounts{Input: 5, CacheWrite: 4, Output: 2, Requests: 1}))}},
		"Anthropic analytics of cost": {`{"data":[{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","cost":{"amount":"10.5","list_amount":"12","currency":"USD","requests":3}}]}`,
			[]Bucket{day("Anthropic costs", budget.CostUnit, of("", Amounts{Cost: 105_000_000_000, Requests: 3}))}},
		"a table": {"\ufeffstart,end,model,input,output,cached,requests\n2024-11-01T00:00:00Z,2024-11-02T00:00:00Z,gpt-4o,300,50,100,2\n1730419200,1730505600,gpt-4o-mini,1,2,,\n",
			[]Bucket{day("table", budget.TokenUnit, of("gpt-4o", Amounts{Input: 300, Cached: 100, Output: 50, Requests: 2}), of("gpt-4o-mini", Amounts{Input: 1, Output: 2}))}},
		"a table of both": {"start,end,input,output,cost\n1730419200,1730505600,300,50,0.06\n",
			[]Bucket{day("table", budget.TokenUnit, of("", Amounts{Input: 300, Output: 50})), day("table", budget.CostUnit, of("", Amounts{Cost: 60_000_000_000}))}},
		"an export, with floats and a row for each key": {"start_time,end_time,start_time_iso,end_time_iso,api_key_id,model,input_tokens,output_tokens,input_cached_tokens,input_uncached_tokens,num_model_requests\n" +
			"1730419200,1730505600,x,y,key_1,gpt-4o,300.0,50.0,100.0,200.0,2.0\n1730419200,1730505600,x,y,key_2,gpt-4o,3.0,4.0,0,3.0,1.0\n1730505600,1730592000,x,y,,,,,,,\n",
			[]Bucket{day("table", budget.TokenUnit, of("gpt-4o", Amounts{Input: 300, Cached: 100, Output: 50, Requests: 2}), of("gpt-4o", Amounts{Input: 3, Output: 4, Requests: 1})),
				{Source: "table", Unit: budget.TokenUnit, Start: nov2, End: nov3, Lines: []Line{{}}}}},
		"an empty export": {"start_time,end_time,start_time_iso,end_time_iso\n1730419200,1730505600,2024-11-01T00:00:00+00:00,2024-11-02T00:00:00+00:00\n",
			[]Bucket{day("table", budget.TokenUnit, Line{})}},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Read(strings.NewReader(c.text))
			require.NoError(t, err)
			require.Equal(t, c.want, r.Buckets)
		})
	}
}

func TestMoneyIsExact(t *testing.T) {
	for text, want := range map[string]int64{"0": 0, "0.06": 60_000_000_000, "0.06000000000000001": 60_000_000_000, "0.0599999999999999": 60_000_000_000, "1e-12": 1, "4e-13": 0, "5e-13": 1,
		"6.0E-2": 60_000_000_000, "1e3": 1000 * 1e12, "1152921.504606846976": budget.MaxCost} {
		got, err := parseMoney(text, dollar)
		require.NoError(t, err, text)
		require.Equal(t, want, got, text)
	}
	for _, text := range []string{"", ".5", "5.", "-1", "+1", "1e", "1e1.5", "0x10", "1_000", "1,000", "1152921.504606846977", "1e99", strings.Repeat("9", 65), "Inf", "nan", " 1"} {
		_, err := parseMoney(text, dollar)
		require.Error(t, err, text)
	}
}

func TestReadSeveral(t *testing.T) {
	one, two := openAIPage("completions", nov1, nov2, true, usage350), openAIPage("completions", nov2, nov3, false, usage350)
	embeddings := openAIPage("embeddings", nov1, nov2, false, `{"input_tokens":16}`)
	r, err := Read(strings.NewReader(one), strings.NewReader(two))
	require.NoError(t, err)
	require.Len(t, r.Buckets, 2)

	_, err = Read(strings.NewReader(two), strings.NewReader(one))
	require.ErrorIs(t, err, ErrIncomplete)
	_, err = Read(strings.NewReader(one), strings.NewReader(embeddings))
	require.ErrorIs(t, err, ErrIncomplete)
	_, err = Read(strings.NewReader(two), strings.NewReader(two))
	require.ErrorIs(t, err, ErrOverlap)
	require.ErrorContains(t, err, "2024-11-02T00:00:00Z to 2024-11-03T00:00:00Z of completions comes twice")
	_, err = Read(strings.NewReader(two), strings.NewReader(openAIPage("completions", nov1, nov3, false)))
	require.NoError(t, err, "an empty page of its own says nothing")
	_, err = Read(strings.NewReader(two), strings.NewReader(openAIPage("completions", nov1, nov3, false, usage350)))
	require.ErrorIs(t, err, ErrOverlap)
	_, err = Read(strings.NewReader(one+two), strings.NewReader(embeddings))
	require.ErrorIs(t, err, ErrIncomplete, "no embeddings of the second day")
	require.ErrorContains(t, err, "2024-11-02T00:00:00Z to 2024-11-03T00:00:00Z is not in the report of embeddings")
}

func TestReadRefuses(t *testing.T) {
	result := func(members string) string { return openAIPage("completions", nov1, nov2, false, "{"+members+"}") }
	anthropic := func(result string) string {
		return `{"data":[{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","results":[` + result + `]}]}`
	}
	for name, c := range map[string]struct{ text, says string }{
		"nothing":                {" \n", "it is empty"},
		"the page as recorded":   {fixture(t, "openai-usage-completions.json"), "says that another page follows"},
		"an error answer":        {`{"error":{"message":"secret"}}`, "an error that the provider answered with"},
		"no page":                {`5 `, "neither JSON nor a table"},
		"no page in a list":      {`[5]`, "a page is an object"},
		"no data":                {`{}`, "no list of data"},
		"data of another form":   {`{"data":{}}`, "data: it is no list"},
		"a bucket without time":  {`{"data":[{}]}`, "data[0]: it has neither"},
		"truncated":              {result(`"input_tokens":1,"output_tokens":1`)[:150], "it ends in the middle of document 1"},
		"garbage behind":         {result(`"input_tokens":1,"output_tokens":1`) + "}", "document 2: invalid character"},
		"nested too deep":        {strings.Repeat("[", 1000), "nested deeper than 32"},
		"negative":               {result(`"input_tokens":-5,"output_tokens":1`), `data[0].results[0].input_tokens: "-5" is no whole number`},
		"a fraction":             {result(`"input_tokens":1.5,"output_tokens":1`), `"1.5" is no whole number`},
		"scientific":             {result(`"input_tokens":1e30,"output_tokens":1`), `"1e30" is no whole number`},
		"huge":                   {result(`"input_tokens":9007199254740993,"output_tokens":1`), "is above 9007199254740992"},
		"beyond 64 bits":         {result(`"input_tokens":99999999999999999999999,"output_tokens":1`), "is above 9007199254740992"},
		"a string":               {result(`"input_tokens":"5","output_tokens":1`), "input_tokens: it is no number"},
		"no output":              {result(`"input_tokens":5`), "output_tokens: it is missing"},
		"null output":            {result(`"input_tokens":5,"output_tokens":null`), "output_tokens: it is missing"},
		"a member twice":         {`{"data":[],"data":[]}`, `an object has "data" twice`},
		"cached above input":     {result(`"input_tokens":5,"input_cached_tokens":6,"output_tokens":1`), "exceed the input"},
		"a sum above the bound":  {openAIPage("completions", nov1, nov2, false, `{"input_tokens":9007199254740990,"output_tokens":0}`, `{"input_tokens":9,"output_tokens":0}`), "its sums are above"},
		"a name with a newline":  {result(`"input_tokens":5,"output_tokens":1,"model":"a\nb"`), "is no name of a model"},
		"some without a model":   {openAIPage("completions", nov1, nov2, false, usage350, `{"input_tokens":5,"output_tokens":1}`), "fetch it grouped by model"},
		"two kinds in a bucket":  {strings.Replace(openAIPage("completions", nov1, nov2, false, usage350, usage350), "completions", "embeddings", 1), "is of completions, and others of the page are of embeddings"},
		"moderations":            {openAIPage("moderations", nov1, nov2, false, `{"input_tokens":5}`), "moderations are not billed"},
		"images":                 {openAIPage("images", nov1, nov2, false, `{"images":5}`), "counts no tokens"},
		"a bucket of no time":    {openAIPage("completions", nov2, nov2, false, usage350), "a bucket from 2024-11-02"},
		"backwards":              {openAIPage("completions", nov2, nov1, false, usage350), "a bucket from 2024-11-02"},
		"a time of long ago":     {`{"data":[{"starting_at":"0001-01-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","results":[]}]}`, "is no time"},
		"euros":                  {strings.Replace(fixture(t, "openai-costs.json"), `"usd"`, `"eur"`, 1), `"eur"; dollars can be compared`},
		"a debt":                 {anthropic(`{"amount":"-3","currency":"USD"}`), "is no amount of money"},
		"not a number of money":  {anthropic(`{"amount":"NaN","currency":"USD"}`), "is no amount of money"},
		"too much money":         {anthropic(`{"amount":"1e30","currency":"USD"}`), "is above"},
		"an exponent of war":     {anthropic(`{"amount":"1e999999999","currency":"USD"}`), "is no amount of money"},
		"no cache figure":        {anthropic(`{"uncached_input_tokens":5,"cache_creation":"x","output_tokens":1}`), "cache_creation: it is no number"},
		"a table of what":        {"a,b,c\n1,2,3\n", "neither JSON nor a table"},
		"a table of other names": {"start,end,prompt_tokens,completion_tokens\n1730419200,1730505600,1,2\n", "needs the columns input and output"},
		"two columns of input":   {"start,end,input,input_tokens,output\n", `two columns for "input"`},
		"a cell too few":         {"start,end,input,output\n1730419200,1730505600,1\n", "wrong number of fields"},
		"a cell of what":         {"start,end,input,output\n1730419200,1730505600,1,x\n", `line 2: "x" is no whole number`},
		"half a row":             {"start,end,input,output\n1730419200,1730505600,1,\n", "line 2: it has input without output"},
		"a quote left open":      {"start,end,input,output\n\"1730419200,1730505600,1,2\n", "line"},
		"a second header":        {"start,end,input,output\n1730419200,1730505600,1,2\nstart,end,input,output\n", `line 3: "start" is no time`},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := Read(strings.NewReader(c.text))
			require.Error(t, err)
			require.True(t, errors.Is(err, ErrFormat) || errors.Is(err, ErrIncomplete), "%v", err)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "secret")
			_ = r
		})
	}
}

// FuzzRead: whatever a report says, it is refused with an error of ours, or what
// was read of it can be compared with a book.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{lastPage(fixture(f, "openai-usage-completions.json")), fixture(f, "openai-costs.json"),
		openAIPage("completions", nov1, nov2, true, usage350) + openAIPage("", nov2, nov3, false),
		"start,end,model,input,output,cost\n1730419200,1730505600,gpt-4o,300,50,0.25\n",
		`{"data":[{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","group":{"model":"m"},"usage":{"uncached_input_tokens":1,"output_tokens":2}}]}`,
		`{"data":[{"starting_at":"2024-11-01T00:00:00Z","ending_at":"2024-11-02T00:00:00Z","results":[{"amount":"1.5e2","currency":"USD"}]}]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := Read(strings.NewReader(string(text)))
		if err != nil {
			if !errors.Is(err, ErrFormat) && !errors.Is(err, ErrIncomplete) && !errors.Is(err, ErrOverlap) {
				t.Fatalf("an error of nobody's: %v", err)
			}
			return
		}
		for _, b := range r.Buckets {
			if !b.Start.Before(b.End) {
				t.Fatalf("a bucket from %v to %v", b.Start, b.End)
			}
			for _, l := range b.Lines {
				if err := l.check(); err != nil {
					t.Fatal(err)
				}
			}
		}
		result, err := Compare(r, none, Options{})
		if err != nil && !errors.Is(err, ErrFormat) {
			t.Fatal(err)
		}
		for _, row := range result.Rows {
			if row.Verdict != Above && (row.Unit == budget.TokenUnit || row.Drift > aCent) || row.Drift < 0 || len(row.Adjustments) > 0 {
				t.Fatalf("against an empty book: %+v", row)
			}
		}
	})
}

// none are the entries of a book that was never used.
func none(func(journal.Entry, error) bool) {}
