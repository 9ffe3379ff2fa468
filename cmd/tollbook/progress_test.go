package main

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/tollbook/tollbook/budget"
	"github.com/tollbook/tollbook/checkpoint"
)

// screen is a terminal that only this test looks at.
type screen struct {
	mu sync.Mutex
	bytes.Buffer
}

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.Buffer.Write(p)
}

// A look at the book may say something: who looks may lead it, and has to tell
// then what others were waiting for. The live line lets it through, whole.
func TestLiveLineAndWhatIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out screen
		u := newUI(nil, &out)
		u.live = true
		looks := 0
		stop := u.follow(10, func() snapshot {
			looks++
			u.softLimit(budget.SoftLimit{Unit: budget.TokenUnit, Percent: 80, Spent: 1600 + int64(looks), Max: 2000})
			return snapshot{Counts: checkpoint.Counts{Items: 10, Done: min(10, looks)}, Limit: 2000, Tokens: budget.Figures{Net: 1700}}
		})
		time.Sleep(5 * lookEvery)
		stopped := make(chan bool)
		go func() { stop(); close(stopped) }()
		select {
		case <-stopped:
		case <-time.After(time.Minute):
			t.Fatal("the line is stuck")
		}
		u.say("over")
		assert.GreaterOrEqual(t, looks, 5)
		said := 0
		for line := range strings.Lines(out.String()) {
			if i := strings.Index(line, "tollbook: "); i >= 0 {
				said++
				assert.Regexp(t, `^tollbook: (80 % of the budget is used: 1,60\d of 2,000 tokens|over)\n$`, line[i:])
			}
		}
		assert.Equal(t, looks+1, said)
		assert.Contains(t, out.String(), "1,700 of 2,000 tokens")
	})
}
