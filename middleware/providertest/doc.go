// Package providertest is a simulated provider of language models for tests:
// an OpenAI-compatible HTTP API, deterministic from a seed, that makes every
// kind of trouble on demand and keeps a true bill of its own.
//
//	p := providertest.New(providertest.Options{Seed: 7, Faults: providertest.Faults{providertest.Cut: 0.1}})
//	config := openai.DefaultConfig("any key")
//	config.BaseURL = providertest.NewServer(t, p).URL + "/v1"
//	…
//	if p.Bill().TotalTokens > limit { … }
//
// It serves POST /v1/chat/completions and /v1/completions (whole and as a
// stream), POST /v1/embeddings, GET /v1/models, the usage reports GET
// /v1/organization/usage/completions and …/embeddings, and, of its own, GET
// /sim/bill ([Bill]) and GET /sim/seen ([Seen]). Any other path is a 404.
// Any key and any model are good.
//
// # What is drawn
//
// The answer to a request, its length and the fault it meets depend on the
// seed, the path, the bytes of the body and how often just these came before;
// not on the clock, nor on what else goes on. So a run repeats, whatever its
// concurrency, and its bill with it. Two requests with the same bytes share
// their count of attempts.
//
// # The bill
//
// The bill counts words ([Words]), not tokens of some vocabulary, so that a
// guard is not measured by its own ruler. It is chosen never to exceed a sound
// bound of the request:
//
//   - Input of a chat is 3 for the reply, 3 and the words of content and name for
//     each message, the words of its tool calls, 85 for each part that is not text,
//     and for each tool offered 4 and the words of its name and description. That is
//     at most the published count of tokens for chat, and at most that overhead plus
//     the bytes.
//   - Input of a completion or an embedding is its words; tokens given as numbers
//     count one each.
//   - Output is one for each word made up, plus reasoning for models that do. Each
//     choice stays within the cap that the request names (max_completion_tokens, else
//     max_tokens; for completions, 16 if neither) except under [Overrun], and within
//     Options.Longest where there is none. With best_of all candidates are billed.
//
// A request with an error of its own (400, 404, 413) is not billed. What a
// fault bills stands with the [Fault]. A client that goes away is billed for
// the whole answer, or as far as it was generated with Options.BillAsSent.
//
// # Scripts
//
// [Provider.Expect] replaces the simulation by exact answers: for a test that
// needs this byte, this cut, this stall.
package providertest
