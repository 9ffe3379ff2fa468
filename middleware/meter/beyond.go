package meter

// beyond says of what a request draws in beyond its own bytes whether it is
// bounded: by the model's context window, in every step that the model may take,
// if the options say what these are.
type beyond struct {
	window, steps  int64 // as the options have them
	stored, looped bool  // what was drawn in
}

func newBeyond(o Options) *beyond { return &beyond{window: o.ContextWindow, steps: o.Steps} }

// draws is asked for content that the provider keeps or fetches, and that the
// model reads once.
func (b *beyond) draws(what string) error {
	if b.window <= 0 {
		return &UnboundedError{What: what}
	}
	b.stored = true
	return nil
}

// loops is asked for what the provider does on the model's behalf, which then
// goes on with the result: each time it reads all again and writes anew.
func (b *beyond) loops(what string) error {
	if b.window <= 0 || b.steps <= 0 {
		return &UnboundedError{What: what, Steps: true}
	}
	b.looped = true
	return nil
}

// bound widens what the request's own bytes bound.
func (b *beyond) bound(x *Bound) {
	switch {
	case b.looped: // a cap would be one of each step
		x.capping = capping{}
		x.Input, x.Output = times(b.window, b.steps), times(x.Output, b.steps)
	case b.stored:
		x.Input = b.window
	}
}
