package flowcount

// The bindings and the object are committed, so that building needs no compiler. The compiler is
// pinned to one version, because another one makes another object of the same source. One object
// serves all little-endian architectures.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type flow_key -type slot -type count -type reason counter ../../../bpf/epe/flowcount/flowcount.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
