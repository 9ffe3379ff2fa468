//go:build ignore

// Generate writes prices.json, and the licence it comes under, anew from the npm package @pydantic/genai-prices:
//
//	go generate ./budget/price
//
// It needs npm and node. Of the data stays what the table reads, of the
// providers whose own prices are in it.
package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const npmPackage = "@pydantic/genai-prices"

var providers = []string{"openai", "anthropic", "google", "azure", "mistral", "cohere", "deepseek", "groq", "x-ai", "moonshotai", "perplexity", "cerebras"}

// dump prints what the package knows of some providers.
const dump = `
import {findProvider} from %q;
const rates = ["input_mtok","cache_read_mtok","cache_write_mtok","cache_write_1h_mtok","output_mtok","output_reasoning_mtok"];
const only = prices => Object.fromEntries(Object.entries(prices).filter(([k]) => rates.includes(k)));
const out = [];
for (const id of %s) {
  const p = findProvider({providerId: id});
  if (!p) throw new Error("no provider " + id);
  const models = [];
  for (const m of p.models) {
    const list = (Array.isArray(m.prices) ? m.prices : [{prices: m.prices}]).map(c => ({constraint: c.constraint, prices: only(c.prices)}));
    if (list.every(c => Object.keys(c.prices).length == 0)) continue; // sold by the hour or the page
    models.push({id: m.id, match: m.match, context_window: m.context_window, prices: list.length == 1 && !list[0].constraint ? list[0].prices : list});
  }
  out.push({id, fallback_model_providers: p.fallback_model_providers, models});
}
console.log(JSON.stringify(out));
`

func main() {
	log.SetFlags(0)
	dir, err := os.MkdirTemp("", "prices")
	check(err)
	defer os.RemoveAll(dir)
	version := strings.TrimSpace(string(run(dir, "npm", "view", npmPackage, "version")))
	var times map[string]string
	check(json.Unmarshal(run(dir, "npm", "view", npmPackage, "time", "--json"), &times))
	date := times[version]
	if len(date) < len("2026-09-23") {
		log.Fatalf("npm does not say when %s %s is from", npmPackage, version)
	}
	run(dir, "npm", "pack", "--silent", npmPackage+"@"+version)
	packed, err := filepath.Glob(filepath.Join(dir, "*.tgz"))
	check(err)
	run(dir, "tar", "xzf", packed[0])
	ids, err := json.Marshal(providers)
	check(err)
	check(os.WriteFile(filepath.Join(dir, "dump.mjs"), fmt.Appendf(nil, dump, "./package/dist/index.js", ids), 0o600))
	var list []json.RawMessage
	check(json.Unmarshal(run(dir, "node", "dump.mjs"), &list))

	// A line for each provider, so that a change can be read.
	var out bytes.Buffer
	source := fmt.Sprintf("npm %s %s, MIT License, Copyright (c) 2025 to present Pydantic Services Inc.", npmPackage, version)
	fmt.Fprintf(&out, "{\"date\":%q,\n\"source\":%q,\n\"providers\":[\n", date[:len("2026-09-23")], source)
	for i, p := range list {
		if i > 0 {
			out.WriteString(",\n")
		}
		out.Write(p)
	}
	out.WriteString("\n]}\n")
	check(os.WriteFile("prices.json", out.Bytes(), 0o644))
	licence, err := os.ReadFile(filepath.Join(dir, "package", "LICENSE"))
	check(err)
	check(os.WriteFile("prices.LICENSE", licence, 0o644))
	log.Printf("prices.json: %s, %d bytes", date, out.Len())
}

func run(dir, name string, args ...string) []byte {
	cmd := exec.Command(name, args...)
	cmd.Dir, cmd.Stderr = dir, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		log.Fatalf("%s %s: %v", name, strings.Join(args, " "), err)
	}
	return out
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
