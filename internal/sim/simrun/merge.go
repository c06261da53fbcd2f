package simrun

import (
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"github.com/google/renameio/v2"
)

// ErrShards means that files are not the shards of one sweep.
var ErrShards = errors.New("not the shards of one sweep")

// Merge writes the rows of all shards of a sweep to one file, in the order of the grid: the file is
// the same as that of a sweep without shards. The order of files does not matter. An existing file
// is not replaced. Merge returns the number of rows.
func Merge(to string, files []string) (rows int, err error) {
	var header []string
	var shards [][][]string
	from := map[int]string{}
	for _, name := range files {
		shard, all, err := readShard(name)
		if err != nil {
			return 0, err
		}
		if header == nil {
			header, shards = all[0], make([][][]string, shard.of)
		}
		switch other, twice := from[shard.number]; {
		case !slices.Equal(all[0], header):
			return 0, fmt.Errorf("%w: %q has other columns than the rest", ErrShards, name)
		case shard.of != len(shards):
			return 0, fmt.Errorf("%w: %q is one of %d shards, others are of %d", ErrShards, name, shard.of, len(shards))
		case twice:
			return 0, fmt.Errorf("%w: %q and %q are both shard %d", ErrShards, other, name, shard.number)
		}
		from[shard.number], shards[shard.number] = name, all[1:]
		rows += len(all) - 1
	}
	for i := range shards {
		if from[i] == "" {
			return 0, fmt.Errorf("%w: shard %d of %d is missing", ErrShards, i, len(shards))
		}
	}
	// Shard i of n has the rows i, i+n, i+2n and so on.
	for i, list := range shards {
		if want := (rows - i + len(shards) - 1) / len(shards); len(list) != want {
			return 0, fmt.Errorf("%w: %q has %d rows, want %d of %d in all: a shard is not done", ErrShards, from[i], len(list), want, rows)
		}
	}
	var out bytes.Buffer
	if err := writeRow(&out, header[1:]); err != nil {
		return 0, err
	}
	for r := range rows {
		if err := writeRow(&out, shards[r%len(shards)][r/len(shards)][1:]); err != nil {
			return 0, err
		}
	}
	if _, err := os.Lstat(to); err == nil {
		return 0, &fs.PathError{Op: "create", Path: to, Err: fs.ErrExist}
	}
	err = renameio.WriteFile(to, out.Bytes(), 0o644, renameio.WithTempDir(filepath.Dir(to)))
	if of, ok := errors.AsType[*fs.PathError](err); ok {
		of.Path = to // that of the temporary file
	}
	return rows, err
}

// shard identifies shard number, from 0 to of-1, of a sweep split into of shards.
type shard struct{ number, of int }

// maxShards limits the number of shards that a file can declare.
const maxShards = 1_000_000

// readShard reads the rows of a shard. The first row is the header.
func readShard(name string) (shard, [][]string, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return shard{}, nil, err
	}
	if len(data) > 0 && data[len(data)-1] != '\n' {
		return shard{}, nil, fmt.Errorf("%w: the last row of %q is cut off; run that shard again", ErrShards, name)
	}
	all, err := csv.NewReader(bytes.NewReader(data)).ReadAll()
	if err != nil || len(all) == 0 || all[0][0] != columnShard || all[0][len(all[0])-1] != columnFingerprint {
		return shard{}, nil, fmt.Errorf("%w: %q was not written by a sweep with --shard", ErrShards, name)
	}
	if len(all) == 1 {
		return shard{}, nil, fmt.Errorf("%w: %q has no rows", ErrShards, name)
	}
	var s shard
	if _, err := fmt.Sscanf(all[1][0], "%d/%d", &s.number, &s.of); err != nil || s.number < 0 || s.number >= s.of || s.of > maxShards {
		return shard{}, nil, fmt.Errorf("%w: %q has a row of shard %q", ErrShards, name, all[1][0])
	}
	for _, row := range all[2:] {
		if row[0] != all[1][0] {
			return shard{}, nil, fmt.Errorf("%w: %q has rows of shards %q and %q", ErrShards, name, all[1][0], row[0])
		}
	}
	return s, all, nil
}
