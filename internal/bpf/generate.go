package bpf

// The bindings and objects that this makes are committed, so that building needs no compiler for them. The compiler is
// pinned to one version: another one makes other objects of the same source.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target amd64,arm64 -no-global-types -type flow_key -type slot -type count -type reason flows ../../bpf/flows/flows.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../bpf/include -I../../bpf/lib
