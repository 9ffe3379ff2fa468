// The line format is the outside contract of DESIGN section 5: to the letter,
// both ways, and nothing else is taken for a line.
package journal

import (
	"encoding/json"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// encode returns the line of e and what it should parse to.
func encode(t require.TestingT, e Entry) ([]byte, Entry) {
	line, err := AppendLine(nil, &e)
	require.NoError(t, err)
	return line, e
}

// Each line is written down here as it stands on disk, but for its crc.
var golden = []struct {
	line string
	e    Entry
}{
	{
		`{"ev":"reserve","rid":"0198f3","amount":800,"t":1796061258.123456,"seq":42,"synced":5120,"scope":"nightly/shard-3","model":"gpt-5-mini","cost":1200000000,"requests":1,"prices":"2026-11-01","prev":"77aa01f0"`,
		Entry{Kind: Reserve, RID: "0198f3", Change: Change{Amount: 800, Cost: 1_200_000_000, Requests: 1}, T: 1796061258_123456,
			Seq: 42, Synced: 5120, Prev: 0x77aa01f0, Scope: "nightly/shard-3", Model: "gpt-5-mini", Prices: "2026-11-01"},
	}, {
		`{"ev":"settle","rid":"0198f3","amount":-180,"t":1796061260.9,"seq":43,"synced":5375,"cost":-270000000,"confirmed":620,"confirmed_cost":930000000,"usage":{"in":500,"cached":100,"out":120},"tries":1,"ref":"req_1","prev":"9a1b2c3d"`,
		Entry{Kind: Settle, RID: "0198f3", Change: Change{Amount: -180, Cost: -270_000_000, Confirmed: 620, ConfirmedCost: 930_000_000},
			T: 1796061260_900000, Seq: 43, Synced: 5375, Prev: 0x9a1b2c3d, Usage: Usage{In: 500, Cached: 100, Out: 120}, Tries: 1, Ref: "req_1"},
	}, {
		`{"ev":"extend","rid":"r","amount":0,"t":0,"key":"doc-17#v2","assumed":7,"assumed_cost":8,"maybe":1,"usage":{"write":1,"reasoning":2,"images":3,"seconds":4,"characters":5},"why":"timeout","evidence":"e","named":true,"carried":true,"prev":"00000000"`,
		Entry{Kind: Extend, RID: "r", Key: "doc-17#v2", Change: Change{Assumed: 7, AssumedCost: 8, Maybe: 1},
			Usage: Usage{Write: 1, Reasoning: 2, Images: 3, Seconds: 4, Characters: 5}, Why: "timeout", Evidence: "e", Named: true, Carried: true},
	}, {
		`{"ev":"limit","rid":"","amount":0,"t":-0.000001,"scope":"a","limit":{"unit":"tokens","max":0},"prev":"00000000"`,
		Entry{Kind: Limit, T: -1, Scope: "a", Cap: &Cap{Kind: "tokens"}},
	}, {
		`{"ev":"limit","rid":"","amount":0,"t":1,"limit":{"unit":"cost","unlimited":true},"prev":"00000000"`,
		Entry{Kind: Limit, T: 1e6, Cap: &Cap{Kind: "cost", Unlimited: true}},
	}, {
		`{"ev":"limit","rid":"","amount":0,"t":1,"limit":{"unit":"requests","max":9007199254740992,"told":80},"prev":"00000000"`,
		Entry{Kind: Limit, T: 1e6, Cap: &Cap{Kind: "requests", Max: 1 << 53, Told: 80}},
	}, {
		`{"ev":"open","rid":"","amount":9,"t":1,"seq":1,"format":1,"book":"b","segment":2,"last_crc":"0000abcd","carries":3,"balances":[{"scope":"x","amount":4,"cost":5,"requests":6,"confirmed":4},{"scope":"y"}],"prev":"0000abcd"`,
		Entry{Kind: Open, Change: Change{Amount: 9}, T: 1e6, Seq: 1, Prev: 0xabcd, Opening: &Opening{Version: 1, Book: "b", Segment: 2, LastCRC: 0xabcd,
			Carries: 3, Balances: []Balance{{Scope: "x", Change: Change{Amount: 4, Cost: 5, Requests: 6, Confirmed: 4}}, {Scope: "y"}}}},
	}, {
		`{"ev":"carry","rid":"r","amount":0,"t":1,"past":{"state":"settled","opened":0.5,"lost":3,"maybe":1,"last_cost":4,"held":2,"unsent":true,"evidence":[{"key":"k","usage":{"in":1},"cost":3},{"key":"l"}]},"prev":"00000000"`,
		Entry{Kind: Carry, RID: "r", T: 1e6, Past: &Past{State: "settled", Opened: 500_000, Lost: 3, Maybe: 1, LastCost: 4, Held: 2, Unsent: true,
			Evidence: []Proof{{Key: "k", Usage: Usage{In: 1}, Cost: 3}, {Key: "l"}}}},
	}, {
		`{"ev":"seal","rid":"","amount":0,"t":1,"seq":18446744073709551615,"synced":9223372036854775807,"prev":"ffffffff"`,
		Entry{Kind: Seal, T: 1e6, Seq: math.MaxUint64, Synced: math.MaxInt64, Prev: math.MaxUint32},
	}, {
		`{"ev":"refund","rid":"\"\\/\n\r\t\u0000\u001f\u0008ä€😀�","amount":-9223372036854775808,"t":9223372036854.775807,"prev":"00000000"`,
		Entry{Kind: Refund, RID: "\"\\/\n\r\t\x00\x1f\bä€😀\uFFFD", Change: Change{Amount: math.MinInt64}, T: math.MaxInt64},
	},
}

func TestGoldenLines(t *testing.T) {
	for _, g := range golden {
		line, e := encode(t, g.e)
		require.Equal(t, fmt.Sprintf("%s,\"crc\":\"%08x\"}\n", g.line, e.CRC), string(line))
		back, err := ParseLine(line)
		require.NoError(t, err, g.line)
		require.Equal(t, e, back)
		require.True(t, json.Valid(line))
	}
}

// The polynomial is CRC-32C, unseeded: the check value of its definition.
func TestChecksum(t *testing.T) {
	require.Equal(t, "e3069283", string(appendCRC(nil, checksum([]byte("123456789")))))
}

// Every field of every type survives, also those that are added later.
func TestEveryFieldRoundTrips(t *testing.T) {
	for kind := Open; kind <= Seal; kind++ {
		var e Entry
		fill(reflect.ValueOf(&e).Elem(), new(int64))
		e.Kind = kind
		if kind != Open {
			e.Opening = nil
		}
		if kind != Limit {
			e.Cap = nil
		} else {
			e.Cap.Unlimited = false
		}
		line, e := encode(t, e)
		back, err := ParseLine(line)
		require.NoError(t, err)
		require.Equal(t, e, back)

		// A reader that does not check finds the same, spaces or not.
		var loose map[string]any
		require.NoError(t, json.Unmarshal(line, &loose))
		delete(loose, "prev")
		delete(loose, "crc")
		indented, err := json.MarshalIndent(loose, "", " ")
		require.NoError(t, err)
		foreign, err := parseForeign(indented, string(indented))
		require.NoError(t, err)
		e.Prev, e.CRC = 0, 0
		require.Equal(t, e, foreign)
	}
}

// fill sets everything below v to values that are not zero and all differ.
func fill(v reflect.Value, n *int64) {
	*n++
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), n)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), n)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(v.Index(0), n)
		fill(v.Index(1), n)
	case reflect.String:
		v.SetString(fmt.Sprint("s", *n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Uint8, reflect.Uint32, reflect.Uint64:
		v.SetUint(uint64(*n))
	default:
		v.SetInt(*n)
	}
}

func drawEntry(t *rapid.T) Entry {
	text := rapid.OneOf(rapid.Just(""), rapid.String(), rapid.StringOfN(rapid.Rune(), 0, 40, 64))
	number := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64())
	usage := func(name string) Usage {
		return Usage{In: number.Draw(t, name), Out: number.Draw(t, name), Cached: number.Draw(t, name),
			Images: number.Draw(t, name), Seconds: number.Draw(t, name), Characters: number.Draw(t, name)}
	}
	change := func() Change {
		return Change{Amount: number.Draw(t, "amount"), Cost: number.Draw(t, "cost"), Requests: number.Draw(t, "requests"), Maybe: number.Draw(t, "maybe")}
	}
	e := Entry{
		Kind: Kind(rapid.IntRange(int(Open), int(Seal)).Draw(t, "kind")), RID: text.Draw(t, "rid"), Change: change(), T: number.Draw(t, "t"),
		Seq: rapid.Uint64().Draw(t, "seq"), Synced: number.Draw(t, "synced"), Prev: rapid.Uint32().Draw(t, "prev"),
		Scope: text.Draw(t, "scope"), Key: text.Draw(t, "key"), Model: text.Draw(t, "model"), Usage: usage("usage"),
		Why: text.Draw(t, "why"), Ref: text.Draw(t, "ref"), Named: rapid.Bool().Draw(t, "named"), Carried: rapid.Bool().Draw(t, "carried"),
	}
	switch e.Kind {
	case Open:
		e.Opening = &Opening{Version: 1, Book: text.Draw(t, "book"), Segment: number.Draw(t, "segment"), Balances: nil}
		for range rapid.IntRange(0, 3).Draw(t, "balances") {
			e.Opening.Balances = append(e.Opening.Balances, Balance{Scope: text.Draw(t, "scope"), Change: change()})
		}
	case Limit:
		e.Cap = &Cap{Kind: text.Draw(t, "unit"), Unlimited: rapid.Bool().Draw(t, "unlimited")}
		if !e.Cap.Unlimited {
			e.Cap.Max, e.Cap.Told = number.Draw(t, "max"), number.Draw(t, "told")
		}
	case Carry:
		e.Past = &Past{State: text.Draw(t, "state"), Opened: number.Draw(t, "opened"), Unsent: rapid.Bool().Draw(t, "unsent")}
		for range rapid.IntRange(0, 3).Draw(t, "proofs") {
			e.Past.Evidence = append(e.Past.Evidence, Proof{Key: text.Draw(t, "key"), Usage: usage("proof")})
		}
	}
	return e
}

func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		line, e := encode(t, drawEntry(t))
		back, err := ParseLine(line)
		require.NoError(t, err)
		require.Equal(t, e, back)

		// Any JSON reader sees what is meant.
		var plain struct {
			Ev     string
			RID    string
			Amount int64
		}
		require.NoError(t, json.Unmarshal(line, &plain))
		require.Equal(t, []any{e.Kind.String(), e.RID, e.Amount}, []any{plain.Ev, plain.RID, plain.Amount})
	})
}

func TestInvalidUTF8IsReplaced(t *testing.T) {
	line, _ := encode(t, Entry{Kind: Settle, RID: "a\xffb\xc3", Ref: "\xed\xa0\x80"})
	back, err := ParseLine(line)
	require.NoError(t, err)
	assert.Equal(t, "a\uFFFDb\uFFFD", back.RID)
	assert.Equal(t, "\uFFFD\uFFFD\uFFFD", back.Ref)
	assert.True(t, utf8.Valid(line))
}

func TestEncodeRefuses(t *testing.T) {
	for name, e := range map[string]Entry{
		"no kind":         {},
		"unknown kind":    {Kind: Seal + 1},
		"open, untold":    {Kind: Open},
		"opening, closed": {Kind: Settle, Opening: &Opening{}},
		"limit, untold":   {Kind: Limit},
		"cap on a refund": {Kind: Refund, Cap: &Cap{}},
	} {
		b, err := AppendLine([]byte("before"), &e)
		require.Error(t, err, name)
		require.Equal(t, "before", string(b))
	}
}

// Rule 29, B10: what could not be read back is not written, to the byte.
func TestLongestLine(t *testing.T) {
	short, _ := encode(t, Entry{Kind: Settle, Key: "k"})
	longest := Entry{Kind: Settle, Key: strings.Repeat("k", MaxLine-len(short)+1)}
	line, e := encode(t, longest)
	require.Len(t, line, MaxLine)
	back, err := ParseLine(line)
	require.NoError(t, err)
	require.Equal(t, e, back)

	longest.Key += "k"
	b, err := AppendLine([]byte("before"), &longest)
	require.ErrorIs(t, err, ErrTooLong)
	require.Equal(t, "before", string(b))
}

// resign gives a line the checksum that fits its content.
func resign(body string) []byte {
	return []byte(fmt.Sprintf(`%s,"crc":"%08x"}`, body, checksum([]byte(body))))
}

// A right checksum does not make a line of what is never written.
func TestOnlyCanonicalLines(t *testing.T) {
	good := `{"ev":"settle","rid":"r","amount":1,"t":2.5,"seq":3,"scope":"s","usage":{"in":4},"prev":"00000000"`
	_, err := ParseLine(resign(good))
	require.NoError(t, err)
	for _, c := range [][2]string{
		{`"settle"`, `"settled"`}, {`"settle"`, `"note"`}, {`"settle"`, `"open"`}, {`"settle"`, `"limit"`},
		{`"amount":1`, `"amount":01`}, {`"amount":1`, `"amount":-0`}, {`"amount":1`, `"amount":1.0`}, {`"amount":1`, `"amount":1e3`},
		{`"amount":1`, `"amount":9223372036854775808`}, {`"amount":1`, `"amount":-9223372036854775809`}, {`"amount":1`, `"amount":18446744073709551617`},
		{`"amount":1`, `"amount":"1"`}, {`"amount":1,`, ``}, {`"amount":1`, `"amount": 1`}, {`"amount":1`, `"amount":+1`}, {`"amount":1`, `"amount":`},
		{`2.5`, `2.50`}, {`2.5`, `2.`}, {`2.5`, `2.1234567`}, {`2.5`, `-0`}, {`2.5`, `9223372036854.775808`}, {`2.5`, `99999999999999999999`}, {`2.5`, `.5`},
		{`"seq":3`, `"seq":0`}, {`"seq":3`, `"seq":-3`}, {`"seq":3,`, `"seq":3,"synced":0,`}, {`"scope":"s"`, `"scope":""`},
		{`"scope":"s"`, `"new":1,"scope":"s"`}, {`"scope":"s",`, `"scope":"s","scope":"s",`}, {`"seq":3,"scope":"s"`, `"scope":"s","seq":3`},
		{`{"in":4}`, `{}`}, {`{"in":4}`, `{"out":1,"in":4}`}, {`{"in":4}`, `{"in":4,}`}, {`{"in":4}`, `{"in":0}`},
		{`"r"`, `"\u0041"`}, {`"r"`, `"\/"`}, {`"r"`, `"\u001F"`}, {`"r"`, `"\u000a"`}, {`"r"`, "\"\xff\""}, {`"r"`, "\"\x01\""}, {`"r"`, `"\n` + "\xff" + `"`}, {`"r"`, `"\`},
		{`"00000000"`, `"0000000G"`}, {`"00000000"`, `"0000000A"`}, {`"00000000"`, `"0000000"`}, {`,"prev":"00000000"`, ``},
	} {
		line := resign(strings.Replace(good, c[0], c[1], 1))
		_, err := ParseLine(line)
		assert.ErrorIs(t, err, ErrCorrupt, "%s -> %s", c[0], c[1])
		assert.False(t, quickly(t, line), "%s -> %s", c[0], c[1])
	}
	line := resign(good)
	_, err = ParseLine([]byte(strings.ToUpper(string(line[len(line)-10:]))))
	assert.ErrorIs(t, err, ErrCorrupt)
	for n := range line {
		_, err := ParseLine(line[:n])
		require.ErrorIs(t, err, ErrCorrupt, "the first %d bytes", n)
	}
}

func TestEveryBitFlipIsSeen(t *testing.T) {
	line, _ := encode(t, golden[0].e)
	for i := range line[:len(line)-1] {
		for bit := range 8 {
			line[i] ^= 1 << bit
			_, err := ParseLine(line)
			require.ErrorIs(t, err, ErrCorrupt, "byte %d bit %d", i, bit)
			line[i] ^= 1 << bit
		}
	}
}

func TestForeign(t *testing.T) {
	own, _ := encode(t, golden[1].e)
	for _, c := range []struct {
		line string
		want Entry
		bad  string // part of the error
	}{
		{line: `{"ev": "refund", "rid": "4da4", "amount": -1323, "t": 1790000000.038969}`,
			want: Entry{Kind: Refund, RID: "4da4", Change: Change{Amount: -1323}, T: 1790000000_038969}},
		{line: ` {"t":1.5e1,"amount":1,"rid":"","ev":"reserve","note":{"a":[1]},"usage":{"in":3,"new":4}} ` + "\r\n",
			want: Entry{Kind: Reserve, Change: Change{Amount: 1}, T: 15_000_000, Usage: Usage{In: 3}}},
		{line: `{"ev":"settle","rid":"\u0041","amount":1,"t":1790000000.12345678}`,
			want: Entry{Kind: Settle, RID: "A", Change: Change{Amount: 1}, T: 1790000000_123457}},
		{line: `{"ev":"limit","rid":"","amount":0}`, want: Entry{Kind: Limit, Cap: &Cap{}}},
		{line: `{"ev":"limit","rid":"","amount":0,"limit":{"told":80,"max":5,"unit":"tokens","window":"day"}}`, want: Entry{Kind: Limit, Cap: &Cap{Kind: "tokens", Max: 5, Told: 80}}},
		{line: `{"ev":"reserve","amount":1,"t":1}`, bad: "no rid"},
		{line: `{"ev":"reserve","rid":"r","t":1}`, bad: "no amount"},
		{line: `{"rid":"r","amount":1}`, bad: "no ev"},
		{line: `{"ev":"refunded","rid":"r","amount":1}`, bad: "an ev that no entry has"},
		{line: `{"ev":"refund","rid":"r","amount":1.5}`, bad: `field "amount"`},
		{line: `{"ev":"refund","rid":"r","amount":"secret"}`, bad: `field "amount" is not a whole number of 64 bits`},
		{line: `{"ev":"refund","rid":"r","amount":1,"t":1e300}`, bad: "t is no time"},
		{line: `{"ev":"refund","rid":"r","amou`, bad: "unexpected end"},
		{line: `[]`, bad: "no JSON object"},
		{line: strings.Replace(string(own), "-180", "-181", 1), bad: "checksum"},
		{line: strings.Replace(string(own), `"crc"`, `"crd"`, 1), bad: "checksum"}, // prev gives it away
		{line: strings.Replace(string(own), `"prev"`, `"prew"`, 1), bad: "checksum"},
	} {
		e, err := parseForeign([]byte(c.line), c.line)
		if c.bad != "" {
			assert.ErrorContains(t, err, c.bad, c.line)
			assert.NotContains(t, fmt.Sprint(err), "secret")
			continue
		}
		assert.NoError(t, err, c.line)
		assert.Equal(t, c.want, e, c.line)
	}
	e, err := parseForeign(own, string(own))
	require.NoError(t, err)
	require.Equal(t, golden[1].e.Ref, e.Ref)
}

func TestEncodeAllocatesNothing(t *testing.T) {
	e := golden[1].e
	buf := make([]byte, 0, 1024)
	assert.Zero(t, testing.AllocsPerRun(100, func() {
		if _, err := AppendLine(buf, &e); err != nil {
			t.Fatal(err)
		}
	}))
}
