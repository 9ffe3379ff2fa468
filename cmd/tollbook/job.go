package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
	"github.com/tollbook/tollbook/middleware"
	"github.com/tollbook/tollbook/middleware/meter"
	"github.com/tollbook/tollbook/retry"
)

// job sends items, one call each.
type job struct {
	client   *http.Client // its transport is the guard
	provider *provider
	apart    bool // failures have a file of their own
	attempts int  // an item may have
	pace     *pacer
	bounds   meter.Options
	progress *checkpoint.Progress
	log      *slog.Logger

	// halt ends with the run's own end and with a pause that another item
	// would not escape: then what waits is taken back.
	halt   context.Context
	cancel context.CancelFunc
	once   sync.Once
	cause  error // of the first such pause; to be read when the run is over

	sent     atomic.Int64 // items of which an attempt left
	requests atomic.Int64 // attempts that left
	answers  atomic.Int64 // of success
	givenUp  atomic.Int64 // items in a row
	limited  sync.Map     // the dryness of items that met the rate limit, by index
}

// do sends one item and says how it ended, in the words of checkpoint:
//
//	an answer, or a refusal that no repetition would change   its output line
//	still rate limited after all attempts                     later, in this run
//	other trouble after all attempts                          a dead letter
//	no budget, no quota, an outage, a refusal of all calls,
//	an end of the run, a fault of ours                        a pause
func (j *job) do(ctx context.Context, t checkpoint.Task[item]) (checkpoint.Line, error) {
	line, err := j.send(ctx, t)
	// Without budget for one item, another that waits for room may still get it.
	if err != nil && isPause(err) && !errors.Is(err, errDraining) && reasonOf(err) != "budget" {
		j.once.Do(func() {
			j.cause = err
			j.cancel()
		})
	}
	return line, err
}

// send makes the calls of one item.
func (j *job) send(ctx context.Context, t checkpoint.Task[item]) (checkpoint.Line, error) {
	f := &flight{job: j, again: t.Start > 1}
	ctx, land := f.launch(ctx)
	defer land()
	ctx = middleware.WithScope(middleware.WithKey(ctx, t.Key), t.ShardName())

	for {
		// Of a stream that is cut by the end of ctx it may come late.
		var receipt atomic.Pointer[budget.Receipt]
		resp, err := j.call(middleware.WithReceipt(ctx, func(r budget.Receipt) { receipt.Store(&r) }), f, t.Item)
		booked := budget.Receipt{}
		if r := receipt.Load(); r != nil {
			booked = *r
		}
		attempts := int(f.attempts.Load())
		outage, _ := errors.AsType[*middleware.OutageError](err)
		switch {
		case outage != nil && outage.Pauses < maxPauses && !j.unanswered():
			if attempts >= j.attempts {
				return checkpoint.Line{}, j.giveUp(attempts, errors.New(err.Error())) // which is no pause
			}
			if err := j.wait(ctx, min(max(time.Until(outage.At), 100*time.Millisecond), time.Second)); err != nil {
				return checkpoint.Line{}, stopped{err}
			}
		case err == nil && j.refusesAll(resp.status):
			return checkpoint.Line{}, stopped{fmt.Errorf("%w: HTTP %d %s", errRefused, resp.status, http.StatusText(resp.status))}
		case err == nil && retry.StatusClass(resp.status, resp.header).Again():
			return checkpoint.Line{}, j.stillFailing(t, attempts, resp)
		case err == nil:
			j.givenUp.Store(0)
			j.limited.Delete(t.Index)
			if resp.status < 300 {
				j.answers.Add(1)
			}
			return j.line(t.Key, booked.RID, resp)
		case errors.Is(err, errBroken) && ctx.Err() == nil && attempts < j.attempts:
			// The guard has handed this one on and closed its reservation, so
			// that the next call has one of its own.
		default:
			return checkpoint.Line{}, j.judge(ctx, err, attempts, booked)
		}
	}
}

// refusesAll reports whether a refusal is not the item's: a key is, until there
// is a good one, and so are, as long as no item was ever answered, the signs of
// a wrong address or of a key without rights.
func (j *job) refusesAll(status int) bool {
	switch {
	case status == http.StatusUnauthorized:
		return true
	case status/100 == 3, status == http.StatusForbidden, status == http.StatusNotFound,
		status == http.StatusMethodNotAllowed, status == http.StatusProxyAuthRequired:
		return j.unanswered()
	}
	return false
}

// unanswered reports whether the provider never answered any item of the state.
func (j *job) unanswered() bool { return j.answers.Load() == 0 && j.progress.Counts().Done == 0 }

// maxPauses is how many pauses of the guard in a row end the run. Of many
// failures some come in a row by chance, so earlier ones are waited for: what
// was under way, or is let through after the pause, may end it.
const maxPauses = 4

// wait returns when it is time, or when the run stops.
func (j *job) wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-j.halt.Done():
		return errDraining
	}
}

// line is the output line of an item that has an answer.
func (j *job) line(id, rid string, resp *response) (checkpoint.Line, error) {
	line := answered(id, resp.header.Get("X-Request-Id"), resp.status, resp.body)
	line.ID = batchID(rid)
	output := 0
	if j.apart && !line.ok() {
		output = 1
	}
	text, err := line.encode()
	return checkpoint.Line{Output: output, JSON: text}, err
}

// stillFailing is the error for an item whose last attempt got an answer that
// may be another one next time.
func (j *job) stillFailing(t checkpoint.Task[item], attempts int, resp *response) error {
	err := retry.CheckStatus(resp.status, resp.header)
	if resp.status != http.StatusTooManyRequests {
		return j.giveUp(attempts, errors.New(err.Error())) // without its RetryAt
	}
	if j.limitedForGood(t) {
		return stopped{fmt.Errorf("%w: %w", errLimited, err)}
	}
	at := middleware.RetryAt(err)
	if at.IsZero() {
		at = time.Now().Add(patience)
	}
	if soonest := time.Now().Add(min(time.Second<<min(max(t.Start-1, 0), 6), time.Minute)); at.Before(soonest) {
		at = soonest
	}
	j.log.Warn("the provider limits the rate, so items wait and come back", "the first at", at.Format(time.TimeOnly))
	return checkpoint.Later(at, err)
}

// limitedForGood reports whether an item came back to the rate limit again and
// again while no other came through.
func (j *job) limitedForGood(t checkpoint.Task[item]) bool {
	now := dryness{answers: j.answers.Load(), start: t.Start}
	since, _ := j.limited.LoadOrStore(t.Index, now)
	if since := since.(dryness); since.answers == now.answers {
		return t.Start-since.start >= maxComeBacks
	}
	j.limited.Store(t.Index, now)
	return false
}

// dryness is since when nothing came through: what an item saw when it met the
// rate limit first.
type dryness struct {
	answers int64
	start   int
}

// maxComeBacks is how often an item comes back to a rate limit that lets
// nothing through before the run pauses.
const maxComeBacks = 3

// giveUp makes an item a dead letter; where several in a row would become one,
// it is a pause: trouble must not use up the items either. The guard's own pause
// is for what may be billed, and knows nothing of refusals that are free (an
// overloaded provider), nor of answers that are none to us.
func (j *job) giveUp(attempts int, err error) error {
	if j.givenUp.Add(1) < maxGivenUp {
		return checkpoint.Dead(attempts, err)
	}
	return stopped{fmt.Errorf("%w: %d items in a row gave up after all attempts: %w", errOutage, maxGivenUp, err)}
}

// maxGivenUp is how many items in a row may give up before the run pauses.
const maxGivenUp = 5

// patience is when to come back to a provider that is over its rate and does
// not say when.
const patience = 15 * time.Second

// before is asked ahead of each further attempt.
func (j *job) before(ctx context.Context, _ retry.Attempt) error {
	f, _ := ctx.Value(flightKey{}).(*flight)
	return j.pace.wait(ctx, f.tokens)
}

// response is a whole answer.
type response struct {
	status int
	header http.Header
	body   []byte
}

// call makes the HTTP call of an item.
func (j *job) call(ctx context.Context, f *flight, it item) (*response, error) {
	if j.pace.TPM > 0 {
		bound, err := boundOf(it, j.bounds)
		if err != nil {
			return nil, err
		}
		f.tokens = bound.Total()
	}
	if err := j.pace.wait(ctx, f.tokens); err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, j.provider.base+strings.TrimPrefix(it.URL, "/v1"), bytes.NewReader(it.Body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "tollbook/"+version())
	if j.provider.key != "" {
		req.Header.Set("Authorization", "Bearer "+j.provider.key)
	}
	resp, err := j.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := readAnswer(resp, it.Stream)
	return &response{resp.StatusCode, resp.Header, body}, err
}

// errBroken is a success without a whole answer.
var errBroken = errors.New("no whole answer came")

// readAnswer reads an answer to its end. One of success must be what was asked
// for: proxies put pages of their own, and some providers their errors, behind
// a status of 200.
func readAnswer(resp *http.Response, stream bool) ([]byte, error) {
	success := resp.StatusCode < 300
	if media, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); stream && success && media == "text/event-stream" {
		return assemble(resp.Body)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer+1))
	var top map[string]json.RawMessage
	switch {
	case err != nil || !success:
		return body, err
	case len(body) > maxAnswer:
		return nil, fmt.Errorf("%w: it is longer than %d MiB", errBroken, maxAnswer>>20)
	case json.Unmarshal(body, &top) != nil:
		return nil, fmt.Errorf("%w: it is no JSON object", errBroken)
	case top["choices"] == nil && top["data"] == nil:
		return nil, fmt.Errorf("%w: it holds neither choices nor data", errBroken)
	}
	return body, nil
}

// flight is one item on its way. Until its first attempt leaves, a run that
// stops takes it back; afterwards it finishes.
type flight struct {
	job    *job
	again  bool         // it was sent before in this run, and came back later
	tokens int64        // of one attempt at most, where that is asked for
	state  atomic.Int32 // 0 waiting, 1 left, 2 taken back

	attempts atomic.Int64 // that left
}

type flightKey struct{}

func (f *flight) launch(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(context.WithValue(ctx, flightKey{}, f))
	unwatch := context.AfterFunc(f.job.halt, func() {
		if f.state.CompareAndSwap(0, 2) {
			cancel(errDraining)
		}
	})
	return ctx, func() { unwatch(); cancel(nil) }
}

// departures counts what leaves. It stands below the guard.
type departures struct{ base http.RoundTripper }

func (d departures) RoundTrip(r *http.Request) (*http.Response, error) {
	f, _ := r.Context().Value(flightKey{}).(*flight)
	if f != nil {
		if f.state.CompareAndSwap(0, 1) {
			if !f.again {
				f.job.sent.Add(1)
			}
		} else if f.state.Load() == 2 {
			return nil, errDraining
		}
		f.attempts.Add(1)
		f.job.requests.Add(1)
	}
	return d.base.RoundTrip(r)
}
