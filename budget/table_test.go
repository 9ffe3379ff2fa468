package budget

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/tollbook/tollbook/journal"
)

// What the ledger stores its reservations in: the table finds what a map finds,
// whatever the hash, and the archive gives back what was put away (I2, I3).

func TestTableIsAMap(t *testing.T) {
	hashes := map[string]func(int) uint64{
		"good":            func(k int) uint64 { return uint64(k+1) * 0x9e3779b97f4a7c15 },
		"all one":         func(int) uint64 { return 1<<64 - 1 },
		"one shard":       func(k int) uint64 { return uint64(k) << 32 },
		"few, at the end": func(k int) uint64 { return 1<<56 - 1 - uint64(k%3)<<32 },
	}
	for name, hash := range hashes {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				var table table
				model := map[int]ref{} // a key's ref is key + 1000 n: it tells the key
				find := func(k int) ref {
					return table.find(hash(k), func(r ref) bool { return int(r)%1000 == k })
				}
				key := rapid.IntRange(1, 999)
				t.Repeat(map[string]func(*rapid.T){
					"": func(t *rapid.T) {
						require.Equal(t, len(model), table.count)
						k := key.Draw(t, "looked for")
						require.Equal(t, model[k], find(k))
					},
					"put": func(t *rapid.T) {
						for range rapid.IntRange(1, 40).Draw(t, "n") {
							if k := key.Draw(t, "k"); model[k] == 0 {
								model[k] = ref(k)
								table.put(hash(k), ref(k))
							}
						}
					},
					"replace": func(t *rapid.T) {
						k := key.Draw(t, "k")
						now := ref(k + 1000*rapid.IntRange(1, 1<<29).Draw(t, "n"))
						require.Equal(t, model[k] != 0, table.replace(hash(k), model[k], now))
						if model[k] != 0 {
							model[k] = now
						}
					},
					"remove": func(t *rapid.T) {
						for range rapid.IntRange(1, 40).Draw(t, "n") {
							k := key.Draw(t, "k")
							table.remove(hash(k), model[k])
							delete(model, k)
						}
					},
				})
				for k, r := range model {
					require.Equal(t, r, find(k))
				}
			})
		})
	}
}

// drawLife returns any closed reservation, also one that no decision leads to.
func drawLife(t *rapid.T, accounts []*account) life {
	n := func(name string) int64 {
		return rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1000), rapid.Int64()).Draw(t, name)
	}
	text := rapid.StringN(0, 20, 40)
	h := life{rid: rapid.OneOf(text, rapid.Just(uuid.NewString()), rapid.Just(strings.ToUpper(uuid.NewString()))).Draw(t, "rid"),
		key: text.Draw(t, "key"), model: text.Draw(t, "model"), prices: text.Draw(t, "prices"), named: rapid.Bool().Draw(t, "named"),
		account: rapid.SampledFrom(accounts).Draw(t, "account"), opened: n("opened"), each: n("each"), eachCost: n("each cost")}
	h.standing = standing{state: rapid.SampledFrom([]State{StateSettled, StateRefunded}).Draw(t, "state"), lost: n("lost"), tries: n("tries"),
		sum: journal.Change{Amount: n("amount"), Cost: n("cost"), Requests: n("requests"), Confirmed: n("confirmed"), ConfirmedCost: n("confirmed cost"),
			Assumed: n("assumed"), AssumedCost: n("assumed cost"), Maybe: n("maybe")},
		closed: n("closed"), usage: journal.Usage{In: n("in"), Cached: n("cached"), Write: n("write"), Out: n("out"), Reasoning: n("reasoning"),
			Images: n("images"), Seconds: n("seconds"), Characters: n("characters")},
		lastCost: n("last cost"), held: n("held"), heldCost: n("held cost"), unsent: rapid.Bool().Draw(t, "unsent")}
	for i := range rapid.IntRange(0, 3).Draw(t, "proofs") {
		h.proofs = append(h.proofs, journal.Proof{Key: fmt.Sprint("proof", i), Usage: journal.Usage{In: n("proof in"), Out: n("proof out"), Seconds: n("proof seconds")}, Cost: n("proof cost")})
	}
	if h.plain() {
		h.key, h.model, h.prices = "", "", "" // nobody asks for these
	}
	return h
}

func TestArchiveGivesBack(t *testing.T) {
	l := newLedger()
	l.account("a/b")
	rapid.Check(t, func(t *rapid.T) {
		var a archive
		var all []life
		var refs []ref
		for range rapid.IntRange(1, 20).Draw(t, "n") {
			h := drawLife(t, l.numbered)
			if rapid.IntRange(0, 9).Draw(t, "long") == 0 {
				h.rid = strings.Repeat("long", rapid.IntRange(1, 20_000).Draw(t, "times"))
			}
			all, refs = append(all, h), append(refs, a.add(&h))
		}
		for i, h := range all {
			got, _ := a.get(refs[i], l.numbered)
			require.Equal(t, h, got)
			require.True(t, a.named(refs[i], h.rid))
			require.False(t, a.named(refs[i], h.rid+"x"))
			require.False(t, a.named(refs[i], uuid.NewString()))
		}
		var each []life
		for i := range a.blocks {
			a.each(i, l.numbered, func(r ref, h *life) {
				require.Equal(t, refs[len(each)], r)
				each = append(each, *h)
			})
		}
		require.Equal(t, all, each)
	})
}

// What is plain is forgotten by and by, but not what was closed just before; what a
// late call may name stays, and memory is in proportion to it.
func TestForgetting(t *testing.T) {
	b := Memory()
	close := func(rid string) *Reservation {
		r, err := b.Reserve(t.Context(), Request{RID: rid, Tokens: 10})
		if err == nil {
			_, err = r.Settle(t.Context(), Usage{Input: 7})
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	first := close("")
	named := map[string]*Reservation{}
	for i := range 3 * forgetEach / 27 { // more bytes than that each
		rid := ""
		if i%100 == 0 {
			rid = fmt.Sprint("named-", i)
		}
		r := close(rid)
		if rid != "" {
			named[rid] = r
		}
		if i%64 == 0 || b.ledger.closed.added < 100 {
			receipt, err := r.Settle(t.Context(), Usage{Input: 7})
			require.NoError(t, err)
			require.False(t, receipt.Booked, "a repeat right after")
		}
	}
	require.Less(t, putAway(b.ledger), 3*forgetEach)
	require.Less(t, b.ledger.rids.count, 3*forgetEach/24)
	require.Len(t, b.ledger.holds, 1)
	for rid, r := range named {
		for _, r := range []*Reservation{r, b.Reservation(rid)} {
			receipt, err := r.Settle(t.Context(), Usage{Input: 7})
			require.NoError(t, err)
			require.False(t, receipt.Booked)
		}
		_, err := b.Reserve(t.Context(), Request{RID: rid, Tokens: 10})
		require.ErrorIs(t, err, ErrClosed)
	}
	_, err := first.Settle(t.Context(), Usage{Input: 7})
	require.ErrorIs(t, err, ErrUnknown)
	require.NoError(t, first.Close(), "a deferred close of what was settled says nothing")
	require.ErrorIs(t, b.Reservation(first.RID()).Close(), ErrUnknown)
}

// putAway is how much memory the closed ones take.
func putAway(l *ledger) (bytes int) {
	for _, b := range l.closed.blocks {
		bytes += cap(b.bytes)
	}
	return bytes
}

// Late calls leave garbage, too, and with evidence more than the closes.
func TestForgettingWhatLateCallsReplaced(t *testing.T) {
	b := Memory()
	for i := range 4 {
		r, err := b.Reserve(t.Context(), Request{RID: fmt.Sprint("r", i), Tokens: 10})
		require.NoError(t, err)
		for range maxProofs - 1 {
			require.NoError(t, r.Extend(t.Context(), MaybeBilled, "timeout"))
		}
		require.NoError(t, r.Close())
		for k := range maxProofs {
			_, err := r.Adjust(t.Context(), Evidence{Key: fmt.Sprintf("%0124d%d", k, i), Usage: Usage{Input: 3}})
			require.NoError(t, err)
		}
	}
	require.Less(t, putAway(b.ledger), 3*forgetEach)
	require.NoError(t, Inconsistent(b))
}

func TestParseUUID(t *testing.T) {
	rid := "0198f3a2-7c1e-7d44-9b1a-bcdef09a1c2d"
	for i := range rid {
		for c := range 256 {
			s := rid[:i] + string([]byte{byte(c)}) + rid[i+1:]
			want, err := uuid.Parse(s)
			first, last, ok := parseUUID(s)
			require.Equal(t, err == nil && want.String() == s, ok, "%q", s)
			if ok {
				require.Equal(t, first, binary.LittleEndian.Uint64(want[:]))
				require.Equal(t, last, binary.LittleEndian.Uint64(want[8:]))
			}
		}
		_, _, ok := parseUUID(rid[:i])
		require.False(t, ok)
	}
}
