package ccbpf

// See internal/epe/flowcount/generate.go. Each control is an object of its own, because the library
// assigns programs to the members of a struct_ops by the object that they are in.

//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type stats -type counters newreno ../../../bpf/mptcp/cc/newreno.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types lia ../../../bpf/mptcp/cc/lia.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types olia ../../../bpf/mptcp/cc/olia.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types balia ../../../bpf/mptcp/cc/balia.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types vegas ../../../bpf/mptcp/cc/vegas.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types wvegas ../../../bpf/mptcp/cc/wvegas.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types ratio ../../../bpf/mptcp/cc/ratio.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types cubic ../../../bpf/mptcp/cc/cubic.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -output-suffix _test -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type vector vectors ../../../bpf/mptcp/cc/vectors.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
//go:generate go tool bpf2go -output-suffix _test -cc clang-14 -strip llvm-strip-14 -target bpfel -no-global-types -type pacing pacing ../../../bpf/mptcp/cc/pacing.c -- -mcpu=v3 -Wall -Wextra -Werror -I../../../bpf/include -I../../../bpf/lib
