package main

import (
	"bufio"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// said is what go test -json prints for a package that passes, one that fails, and one that is
// running when go test ends.
const said = `{"Action":"start","Package":"good"}
{"Action":"output","Package":"good","Test":"TestA","Output":"loud\n"}
{"Action":"pass","Package":"good","Test":"TestA","Elapsed":1}
{"Action":"output","Package":"good","Output":"ok  \tgood\t1.5s\n"}
{"Action":"pass","Package":"good","Elapsed":1.5}
{"Action":"output","Package":"bad","Test":"TestB","Output":"why it failed\n"}
{"Action":"fail","Package":"bad","Test":"TestB","Elapsed":1}
{"Action":"skip","Package":"bad","Test":"TestC","Elapsed":0}
{"Action":"output","Package":"bad","Output":"FAIL\tbad\t1s\n"}
{"Action":"fail","Package":"bad","Elapsed":1}
{"Action":"output","Package":"cut","Test":"TestD","Output":"where it was\n"}
{"ImportPath":"broken","Action":"build-output","Output":"does not compile\n"}
`

func TestResultsAreReadFromGoTest(t *testing.T) {
	var out strings.Builder
	r := &runner{dir: t.TempDir(), out: &out}
	if err := r.read(bufio.NewReader(strings.NewReader(said))); err != nil {
		t.Fatal(err)
	}
	r.table(&out, &starts{})
	got := out.String()
	for _, want := range []string{
		"ok  \tgood\t1.5s\n", "why it failed\n", "FAIL\tbad\t1s\n", "where it was\n", "does not compile\n",
		"failed: bad TestB\n", "failed: cut \n", "1 passed, 1 failed, 1 skipped\n",
	} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is missing", want)
		}
	}
	if strings.Contains(got, "loud") {
		t.Error("the output of a test that passed is printed")
	}
	if t.Failed() {
		t.Log(got)
	}
}

func TestLeftTemporaryFilesFailTheRun(t *testing.T) {
	t.Parallel()
	r := &runner{dir: t.TempDir()}
	if err := r.makeTemp(); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.temp, "forgotten"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := r.close(); err == nil || !strings.Contains(err.Error(), "forgotten") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(r.temp); !os.IsNotExist(err) {
		t.Errorf("the folder is still there: %v", err)
	}
}

func TestFloodsThatWouldNeverRunAreRefused(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "x_flood_test.go")
	for source, refused := range map[string]bool{"func TestFloodOfX(t *testing.T) {}": false, "func TestAFlood(t *testing.T) {}": true} {
		if err := os.WriteFile(name, []byte("package x\n\n"+source+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := checkFlood(name); (err != nil) != refused {
			t.Errorf("%s: %v", source, err)
		}
	}
}
