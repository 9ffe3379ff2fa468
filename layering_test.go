package tollbook_test

import (
	"os/exec"
	"strings"
	"testing"
)

const module = "github.com/tollbook/tollbook/"

// arrows says which packages of ours a package may import, itself or through
// others. What is not listed may import all.
var arrows = map[string][]string{
	"journal/disk":            {},
	"journal":                 {"journal/disk"},
	"journal/journaltest":     {"journal", "journal/disk"},
	"budget":                  {"journal", "journal/disk"},
	"budget/budgettest":       {"budget", "journal", "journal/disk"},
	"budget/price":            {"budget", "journal", "journal/disk"},
	"budget/reconcile":        {"budget", "journal", "journal/disk"},
	"retry":                   {},
	"checkpoint":              {"journal/disk"},
	"middleware/meter":        {"budget", "journal", "journal/disk"},
	"middleware/tokens":       {},
	"middleware/providertest": {},
	"middleware":              {"budget", "journal", "journal/disk", "middleware/meter", "retry"},
}

// core packages link the standard library and these modules, nothing else.
var core = map[string]bool{"journal/disk": true, "journal": true, "budget": true, "retry": true, "checkpoint": true}

var coreModules = []string{"github.com/google/uuid", "golang.org/x/sync", "github.com/cenkalti/backoff"}

// TestLayering holds the arrows of DESIGN section 4: data flows one way, and
// weight lives in side packages.
func TestLayering(t *testing.T) {
	for pkg, allowed := range arrows {
		out, err := exec.Command("go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", "./"+pkg).CombinedOutput()
		if err != nil {
			t.Fatalf("go list %s: %v\n%s", pkg, err, out)
		}
		may := map[string]bool{pkg: true}
		for _, a := range allowed {
			may[a] = true
		}
		for dep := range strings.FieldsSeq(string(out)) {
			if ours, ok := strings.CutPrefix(dep, module); ok {
				if !may[ours] {
					t.Errorf("%s imports %s", pkg, ours)
				}
			} else if core[pkg] && !inCore(dep) {
				t.Errorf("%s, a core package, links %s", pkg, dep)
			}
		}
	}
}

func inCore(dep string) bool {
	for _, m := range coreModules {
		if dep == m || strings.HasPrefix(dep, m+"/") {
			return true
		}
	}
	return false
}
