// Command image writes an OCI image of the two programs, without a container engine:
//
//	go run ./deploy/image VERSION ARCH BIN FILE
//
// ARCH is Debian's name of the processor: amd64, arm64, armhf or riscv64. BIN holds the programs.
// FILE is a tar of an OCI image layout (image-spec, image-layout.md), which docker load, podman
// load, ctr image import and skopeo read. Its times are that of SOURCE_DATE_EPOCH, so that the same
// source gives the same file.
package main

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// platforms are the processors by Debian's names.
var platforms = map[string]v1.Platform{
	"amd64":   {OS: "linux", Architecture: "amd64"},
	"arm64":   {OS: "linux", Architecture: "arm64"},
	"armhf":   {OS: "linux", Architecture: "arm", Variant: "v7"},
	"riscv64": {OS: "linux", Architecture: "riscv64"},
}

func main() {
	if len(os.Args) != 5 {
		fmt.Fprintln(os.Stderr, "usage: go run ./deploy/image VERSION ARCH BIN FILE")
		os.Exit(2)
	}
	version, arch, bin, file := os.Args[1], os.Args[2], os.Args[3], os.Args[4]
	if err := write(version, arch, bin, file); err != nil {
		fmt.Fprintf(os.Stderr, "write image %q: %v\n", file, err)
		os.Exit(2)
	}
}

func write(version, arch, bin, file string) error {
	platform, ok := platforms[arch]
	if !ok {
		return fmt.Errorf("unknown processor %q; use amd64, arm64, armhf or riscv64", arch)
	}
	seconds, err := strconv.ParseInt(os.Getenv("SOURCE_DATE_EPOCH"), 10, 64)
	if err != nil {
		return fmt.Errorf("read SOURCE_DATE_EPOCH: %w", err)
	}
	date := time.Unix(seconds, 0).UTC()
	image, err := build(platform, version, bin, date)
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "tabane-image-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	index, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	// The annotation is the name that engines give the image which they load.
	if err := index.AppendImage(image, layout.WithPlatform(platform), layout.WithAnnotations(map[string]string{
		"io.containerd.image.name":          "docker.io/library/tabane:" + version,
		"org.opencontainers.image.ref.name": version,
	})); err != nil {
		return err
	}
	return pack(dir, file, date)
}

// build returns the image: the programs in /usr/bin, and the directories that daemons write to.
func build(platform v1.Platform, version, bin string, date time.Time) (v1.Image, error) {
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	for _, dir := range []struct {
		name string
		mode int64
	}{{"etc/", 0o755}, {"etc/tabane/", 0o750}, {"run/", 0o755}, {"tmp/", 0o1777}, {"usr/", 0o755}, {"usr/bin/", 0o755}} {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir.name, Mode: dir.mode, ModTime: date}); err != nil {
			return nil, err
		}
	}
	for _, name := range []string{"tabane", "tabane-lab"} {
		program, err := os.ReadFile(filepath.Join(bin, name))
		if err != nil {
			return nil, err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: "usr/bin/" + name, Mode: 0o755, Size: int64(len(program)), ModTime: date}); err != nil {
			return nil, err
		}
		if _, err := w.Write(program); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(content.Bytes())), nil
	}, tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err = mutate.Append(image, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: date}, CreatedBy: "make image"}})
	if err != nil {
		return nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.OS, config.Architecture, config.Variant = platform.OS, platform.Architecture, platform.Variant
	config.Created = v1.Time{Time: date}
	config.Config = v1.Config{
		Entrypoint: []string{"/usr/bin/tabane"},
		Env:        []string{"PATH=/usr/bin"},
		Labels: map[string]string{
			"org.opencontainers.image.title":    "tabane",
			"org.opencontainers.image.version":  version,
			"org.opencontainers.image.licenses": "Apache-2.0",
		},
	}
	return mutate.ConfigFile(image, config)
}

// pack writes a directory as a tar, in the order of the names.
func pack(dir, file string, date time.Time) (err error) {
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	w := tar.NewWriter(f)
	if err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || path == dir {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		if d.IsDir() {
			return w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: name + "/", Mode: 0o755, ModTime: date})
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o644, Size: int64(len(content)), ModTime: date}); err != nil {
			return err
		}
		_, err = w.Write(content)
		return err
	}); err != nil {
		return err
	}
	return w.Close()
}
