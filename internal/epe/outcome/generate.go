package outcome

// See internal/epe/flowcount/generate.go.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type report -type began -type flow_key -type flow program ../../../bpf/epe/outcome/outcome.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
