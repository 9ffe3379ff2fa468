package disk_test

import (
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/tollbook/tollbook/journal/disk"
)

// save is what is put to the test: after nil, the new content is to be there.
func save(fsys disk.FS, content string) error {
	const name = "state.json"
	err := disk.WriteTemp(fsys, name+disk.TempSuffix, func(w disk.File) error {
		_, err := io.WriteString(w, content)
		return err
	})
	if err != nil {
		return err
	}
	return fsys.Rename(name+disk.TempSuffix, name) // and its directory?
}

// Power fails before each operation of a program, and what it said was saved is
// looked for. The program is wrong: nothing syncs the directory.
func Example() {
	rng := rand.New(rand.NewPCG(1, 2))
	for k := 1; ; k++ {
		var after *disk.Mem
		mem, saved := disk.NewMem(), 0
		fsys := disk.Failing(mem, func(op disk.Op) disk.Fault {
			if op.N == k {
				after = mem.Crash(rng) // this operation and all later ones fail
			}
			return disk.Fault{}
		})
		for n := 1; n <= 3 && save(fsys, fmt.Sprint(n)) == nil; n++ {
			saved = n
		}
		if after == nil {
			fmt.Println("it survived power cuts before each of its operations")
			return
		}
		found, _ := disk.ReadFile(after, "state.json", 100)
		if saved > 0 && string(found) < fmt.Sprint(saved) {
			fmt.Printf("power cut before operation %d: %d was saved, %q is there\n", k, saved, found)
			return
		}
	}
	// Output: power cut before operation 6: 1 was saved, "" is there
}
