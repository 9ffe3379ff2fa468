// Proves what an HTTP answer means, and that no Retry-After, however broken, is
// waited for blindly or breaks anything.
package retry_test

import (
	"math"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/tollbook/tollbook/retry"
)

var noon = time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC)

func TestStatusClass(t *testing.T) {
	should := func(v string) http.Header { return http.Header{"X-Should-Retry": {v}} }
	tests := []struct {
		status int
		header http.Header
		want   retry.Class
	}{
		{200, nil, retry.None}, {307, nil, retry.None}, {200, should("true"), retry.None},
		{400, nil, retry.Permanent}, {401, nil, retry.Permanent}, {404, nil, retry.Permanent}, {422, nil, retry.Permanent},
		{402, nil, retry.Stop}, {402, should("true"), retry.Stop}, {402, should("false"), retry.Stop}, // case 38
		{408, nil, retry.Transient}, {409, nil, retry.Transient},
		{429, nil, retry.RateLimited}, {429, should("true"), retry.RateLimited}, {429, should("false"), retry.Permanent},
		{500, nil, retry.Transient}, {502, nil, retry.Transient}, {503, nil, retry.Transient}, {504, nil, retry.Transient},
		{529, nil, retry.Transient}, {501, nil, retry.Permanent}, {505, nil, retry.Permanent},
		{500, should("false"), retry.Permanent}, {400, should("true"), retry.Transient}, {400, should("maybe"), retry.Permanent},
	}
	for _, tt := range tests {
		require.Equal(t, tt.want, retry.StatusClass(tt.status, tt.header), "%d %v", tt.status, tt.header)
		err := retry.CheckStatus(tt.status, tt.header)
		require.Equal(t, tt.want, retry.Classify(err), "the error answers alike: %d %v", tt.status, tt.header)
	}
}

// case 43
func TestRetryAfter(t *testing.T) {
	const none = -1
	tests := []struct {
		ms, value string
		want      time.Duration
	}{
		{"", "30", 30 * time.Second},
		{"", "1800", 30 * time.Minute},
		{"", "0", 0},
		{"", "0.25", 250 * time.Millisecond},
		{"", " 2 ", 2 * time.Second},
		{"1500", "30", 1500 * time.Millisecond},
		{"0.5", "", 500 * time.Microsecond},
		{"soon", "30", 30 * time.Second},
		{"-1", "30", 30 * time.Second},
		{"", noon.Add(30 * time.Second).Format(http.TimeFormat), 30 * time.Second},
		{"", noon.Add(30 * time.Second).Format(time.ANSIC), 30 * time.Second},
		{"", noon.Add(30 * time.Second).Format("Monday, 02-Jan-06 15:04:05 GMT"), 30 * time.Second},
		{"", noon.Add(-time.Hour).Format(http.TimeFormat), 0},
		{"", "Mon, 01 Jan 0001 00:00:00 GMT", 0},
		{"", "Fri, 31 Dec 99999 23:59:59 GMT", none},
		{"", "Fri, 31 Dec 9999 23:59:59 GMT", none},
		{"", strconv.FormatInt(noon.Unix(), 10), none}, // a time where seconds belong
		{"", "31622400", retry.MaxRetryAfter},
		{"", "31622401", none},
		{"", "-1", none},
		{"", "NaN", none},
		{"", "Inf", none},
		{"", "1e100", none},
		{"", "1e400", none},
		{"1e100", "", none},
		{"", "", none},
		{"", "soon", none},
	}
	for _, tt := range tests {
		header := http.Header{"Retry-After": {tt.value}, "Retry-After-Ms": {tt.ms}}
		got, ok := retry.RetryAfter(header, noon)
		if tt.want == none {
			require.False(t, ok, "%q %q: %v", tt.ms, tt.value, got)
			require.Zero(t, got)
			continue
		}
		require.True(t, ok, "%q %q", tt.ms, tt.value)
		require.Equal(t, tt.want, got, "%q %q", tt.ms, tt.value)
	}
	_, ok := retry.RetryAfter(nil, noon)
	require.False(t, ok)
}

// The time a server asks for counts from its answer, not from the moment
// somebody looks at it.
func TestStatusErrorTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := retry.CheckStatus(429, http.Header{"Retry-After": {"30"}}).(*retry.StatusError)
		require.Equal(t, time.Now().Add(30*time.Second), err.RetryAt())
		for _, left := range []time.Duration{30 * time.Second, 10 * time.Second, 0} {
			got, ok := err.RetryAfter()
			require.True(t, ok)
			require.Equal(t, left, got)
			time.Sleep(20 * time.Second) // the bubble's time
		}
		_, ok := retry.CheckStatus(429, nil).(*retry.StatusError).RetryAfter()
		require.False(t, ok)
	})
}

func FuzzRetryAfter(f *testing.F) {
	for _, value := range []string{"", "0", "-0", "30", "1800", "0.5", "-1", "NaN", "-Inf", "1e100", "1e-400", "0x1p-2", "9223372036854775807",
		"Mon, 30 Nov 2026 12:00:30 GMT", "Fri, 31 Dec 9999 23:59:59 GMT", "Fri, 31 Dec 99999 23:59:59 GMT", "Mon Nov 30 12:00:30 2026"} {
		f.Add("", value)
		f.Add(value, "30")
	}
	f.Fuzz(func(t *testing.T, ms, value string) {
		header := http.Header{"Retry-After": {value}, "Retry-After-Ms": {ms}}
		got, ok := retry.RetryAfter(header, noon)
		if got < 0 || got > retry.MaxRetryAfter || (!ok && got != 0) {
			t.Fatalf("%q %q: %v, %v", ms, value, got, ok)
		}
		// Whole seconds, alone, mean what they say.
		if n, err := strconv.ParseUint(value, 10, 32); err == nil && strings.TrimSpace(ms) == "" {
			want := time.Duration(n) * time.Second
			if fits := float64(n) <= math.Floor(retry.MaxRetryAfter.Seconds()); ok != fits || (ok && got != want) {
				t.Fatalf("%q: %v, %v; want %v", value, got, ok, want)
			}
		}
		_ = retry.CheckStatus(429, header).Error()
	})
}
