package meter

// readMembers takes a request body apart into the fields that are known, by the
// name that fold makes of theirs. Of the rest it returns what other says costs
// tokens. A known member that stands twice, or in a way that only some servers
// read, is refused: which one counts is up to the provider.
func readMembers(body []byte, fields map[string]*value, fold func([]byte) (known string, exact bool),
	other func(name string, v value) (costs bool, err error)) (rest []value, err error) {
	if !valid(body) {
		return nil, &BodyError{Reason: "it is not JSON"}
	}
	v, _ := parse(body)
	if v.kind() != '{' {
		return nil, &BodyError{Reason: "it is not a JSON object"}
	}
	for name, m := range v.members() {
		known, exact := fold(name)
		if field := fields[known]; field != nil {
			if err := single(string(name), exact, *field != nil); err != nil {
				return nil, err
			}
			*field = m
			continue
		}
		costs, err := other(known, m)
		if err != nil {
			return nil, err
		}
		if costs || !exact {
			rest = append(rest, m)
		}
	}
	return rest, nil
}

// exactly folds a name as most servers do: as it stands.
func exactly(name []byte) (known string, exact bool) {
	known = fold(name)
	return known, known == string(name)
}
