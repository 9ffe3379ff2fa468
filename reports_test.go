package tollbook_test

import (
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// reports are the numbers of the public reports that were collected: faults of
// other guards, batch tools, SDKs and ledgers. The numbering has gaps.
var reports = []int{1, 2, 4, 6, 7, 8, 10, 11, 12, 14, 15, 17, 18, 19, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 32, 34, 35, 36, 38, 39, 40, 41,
	43, 44, 45, 46, 47, 50, 51, 52, 53, 54, 56, 57, 58, 59, 61, 63, 65, 66, 67, 68, 70, 71, 73, 75, 77, 79, 80, 81, 83, 84, 85}

var (
	// caseNumbers is how a test says which reports it holds: cases 38, 39 and 40.
	caseNumbers = regexp.MustCompile(`\b[Cc]ases? (\d+(?:(?:, | and )\d+)*)`)
	// openReports is the list of those that no test can hold yet.
	openReports = regexp.MustCompile(`Public reports without a test yet: (.*)`)
	reasons     = regexp.MustCompile(`\([^)]*\)`)
)

// Every report stands with its number at a test, or in the list of CONTRIBUTING.md
// of those that wait for what they are about.
func TestReportsAreTested(t *testing.T) {
	doc, err := os.ReadFile("CONTRIBUTING.md")
	if err != nil {
		t.Fatal(err)
	}
	list := openReports.FindStringSubmatch(string(doc))
	if list == nil {
		t.Fatalf("CONTRIBUTING.md has no line that matches %s", openReports)
	}
	open := map[int]bool{}
	addNumbers(open, reasons.ReplaceAllString(list[1], ""))
	tested := casesAtTests(t)
	for _, n := range reports {
		if tested[n] && open[n] {
			t.Errorf("report %d has a test: take it off the list in CONTRIBUTING.md", n)
		}
		if !tested[n] && !open[n] {
			t.Errorf("report %d is at no test (write \"case %d\" there), nor on the list in CONTRIBUTING.md", n, n)
		}
	}
	for n := range open {
		if !slices.Contains(reports, n) {
			t.Errorf("there is no report %d", n)
		}
	}
}

// casesAtTests collects the numbers in the comments and strings of tests, and in
// the comments of scripts.
func casesAtTests(t *testing.T) map[int]bool {
	found := map[int]bool{}
	add := func(text string) {
		for _, m := range caseNumbers.FindAllStringSubmatch(text, -1) {
			addNumbers(found, m[1])
		}
	}
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		script := strings.HasSuffix(path, ".txtar")
		if err != nil || d.IsDir() || !script && !strings.HasSuffix(path, "_test.go") || path == "reports_test.go" {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if script {
			for line := range strings.Lines(string(text)) {
				if strings.HasPrefix(line, "#") {
					add(line)
				}
			}
			return nil
		}
		var s scanner.Scanner
		s.Init(token.NewFileSet().AddFile(path, -1, len(text)), text, nil, scanner.ScanComments)
		for _, kind, text := s.Scan(); kind != token.EOF; _, kind, text = s.Scan() {
			if kind == token.COMMENT || kind == token.STRING {
				add(text)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func addNumbers(to map[int]bool, text string) {
	for _, n := range number.FindAllString(text, -1) {
		i, _ := strconv.Atoi(n) // number matches digits only
		to[i] = true
	}
}
