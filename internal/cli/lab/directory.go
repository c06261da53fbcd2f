package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/tabane/tabane/internal/cli"
)

// resultFile is the file that identifies a directory as that of a result.
const resultFile = "result.json"

// resultParts are the files of a result's directory; others are not removed. resultFile is the last
// one that is replaced.
var resultParts = []string{
	"runs.csv", "summary.csv", "report.html", "series", "figures", "compare.json", "sim", "comparisons.csv", "findings.csv", "browsertime.json", "pages", resultFile,
}

// unfinishedPrefix begins the names of directories in which a result is written before it replaces
// an earlier one.
const unfinishedPrefix = ".result-"

// savedFile has the runs so far of one that goes on, or was killed.
const savedFile = unfinishedPrefix + "saved.json"

// madeDirectory is a directory that was made for a result; "" where it was there before.
type madeDirectory string

// leave removes the directory if nothing was written to it.
func (d madeDirectory) leave() {
	if d != "" {
		// It fails where the directory has a result.
		_ = os.Remove(string(d))
	}
}

// resultDirectory checks whether a result can be written to a directory, which it makes if it does
// not exist. A directory with other content than a result is refused. An earlier result stays until
// replaceResult, because a run can fail or be interrupted.
func resultDirectory(dir string) (madeDirectory, error) {
	entries, err := os.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return "", cli.FileFailure("make directory", dir, err)
		}
		return madeDirectory(dir), nil
	case err != nil:
		return "", cli.FileFailure("read directory", dir, err)
	}
	ours := len(entries) == 0
	for _, e := range entries {
		ours = ours || e.Name() == resultFile || strings.HasPrefix(e.Name(), unfinishedPrefix)
	}
	if !ours {
		return "", &cli.Failure{What: "write result to", Name: dir, Why: errors.New("it has other content than a result"), Do: "choose another with --out"}
	}
	unfinished, err := unfinishedDirectory(dir) // now, not after hours of runs
	if err == nil {
		err = os.Remove(unfinished)
	}
	return "", err
}

// unfinishedDirectory makes a directory in which a result is written.
func unfinishedDirectory(dir string) (string, error) {
	made, err := os.MkdirTemp(dir, unfinishedPrefix)
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		err = of.Err // its name is a temporary one
	}
	if err != nil {
		return "", cli.FileFailure("write report to", dir, err)
	}
	return made, nil
}

// partDirectory returns the directory for the result of an experiment that ended early: dir, or a new
// one beside it where dir has an earlier result, which stays.
func partDirectory(dir string) (string, error) {
	if _, err := os.Lstat(filepath.Join(dir, resultFile)); errors.Is(err, fs.ErrNotExist) {
		return dir, nil
	}
	return besideDirectory(dir)
}

// besideDirectory makes a new directory beside dir.
func besideDirectory(dir string) (string, error) {
	beside, err := filepath.Abs(dir) // that has a name, unlike "." and ".."
	if err != nil {
		return "", cli.FileFailure("make directory beside", dir, err)
	}
	if base := filepath.Base(dir); base != "." && base != ".." {
		beside = filepath.Clean(dir)
	}
	for n := 1; ; n++ {
		part := fmt.Sprintf("%s-part%d", beside, n)
		switch err := os.Mkdir(part, 0o755); {
		case err == nil:
			return part, nil
		case !errors.Is(err, fs.ErrExist):
			return "", cli.FileFailure("make directory", part, err)
		}
	}
}

// replaceResult has write put a result into a new directory inside dir, and replaces the earlier
// result in dir by it. Where write fails, the earlier one stays as it is.
func replaceResult(dir string, write func(dir string) error) (err error) {
	unfinished, err := unfinishedDirectory(dir)
	if err != nil {
		return err
	}
	if err := write(unfinished); err != nil {
		if of, ok := errors.AsType[*fs.PathError](err); ok {
			err = of.Err // its file is a temporary one
		}
		return cli.FileFailure("write report to", dir, errors.Join(err, os.RemoveAll(unfinished)))
	}
	for _, name := range resultParts {
		err := os.RemoveAll(filepath.Join(dir, name))
		if err == nil {
			err = os.Rename(filepath.Join(unfinished, name), filepath.Join(dir, name))
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return &cli.Failure{What: "replace earlier result", Name: dir, Why: err, Do: "the new one is in " + unfinished}
		}
	}
	return os.Remove(unfinished)
}
