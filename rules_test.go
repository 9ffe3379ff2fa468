package tollbook_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var (
	// numberedRow is a row of one of the tables of journal/DURABILITY.md.
	numberedRow = regexp.MustCompile(`(?m)^\| (B?\d+) \|.*$`)
	// ruleNumbers is how a test says which rules it holds: Rules 3, 4 and 6.
	ruleNumbers   = regexp.MustCompile(`Rules? (\d+(?:(?:, | and )\d+)*)`)
	reportNumbers = regexp.MustCompile(`\bB\d+\b`)
	number        = regexp.MustCompile(`\d+`)
)

// Every rule of the journal, and every report behind them, stands with its
// number at a test. What is not built yet says so in its row.
func TestRulesAreTested(t *testing.T) {
	doc, err := os.ReadFile(filepath.Join("journal", "DURABILITY.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := numberedRow.FindAllStringSubmatch(string(doc), -1)
	if len(rows) < 29 {
		t.Fatalf("%d rules and reports are listed", len(rows))
	}
	tested := numbersAtTests(t)
	for _, row := range rows {
		later := strings.Contains(row[0], "(*With the SQL journals.*)")
		if !tested[row[1]] && !later {
			t.Errorf("no test carries the number %s: %s", row[1], row[0])
		}
	}
}

// numbersAtTests collects the numbers in the comments of tests and fuzz tests:
// above them, in their bodies and at the ends of their lines.
func numbersAtTests(t *testing.T) map[string]bool {
	found := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") || path == "rules_test.go" {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		for _, decl := range file.Decls {
			f, ok := decl.(*ast.FuncDecl)
			if !ok || !strings.HasPrefix(f.Name.Name, "Test") && !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			from, to := f.Pos(), f.End()
			if f.Doc != nil {
				from = f.Doc.Pos()
			}
			for _, c := range file.Comments {
				if c.Pos() < from || c.Pos() > to && files.Position(c.Pos()).Line > files.Position(to).Line {
					continue
				}
				for _, rules := range ruleNumbers.FindAllString(c.Text(), -1) {
					for _, n := range number.FindAllString(rules, -1) {
						found[n] = true
					}
				}
				for _, n := range reportNumbers.FindAllString(c.Text(), -1) {
					found[n] = true
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}
