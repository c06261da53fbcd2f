package spray

// See internal/epe/flowcount/generate.go.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type plan -type network -type memory program ../../../bpf/epe/spray/spray.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
