package cli

import (
	"crypto/rand"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/handshake"
)

func (a *App) gatewayKeyCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "key [FILE]",
		Short: "Make the key of a gateway, or print the public key of one",
		Long: `Key makes a new private key and prints it on standard output, and its public key on standard error. If standard output is a
file, its mode becomes 0600: a gateway refuses a key that others may read. With FILE it prints the public key of the private key in
that file. The other gateways need the public key as peers[].public_key.`,
		Example: `  tabane gateway key > /etc/tabane/gw.key
  tabane gateway key /etc/tabane/gw.key`,
		Args: Arguments(0, 1, "at most one file"),
		RunE: func(_ *cobra.Command, args []string) error {
			if len(args) == 1 {
				return a.printPublicKey(args[0])
			}
			return a.makeKey()
		},
	}
}

func (a *App) printPublicKey(file string) error {
	key, err := gateway.PublicKey(file)
	if err != nil {
		return &Failure{What: "print public key", Why: err}
	}
	fmt.Fprintln(a.Out, key)
	return nil
}

func (a *App) makeKey() error {
	const what = "make key"
	key, err := handshake.GenerateKey(rand.Reader)
	if err != nil {
		return &Failure{What: what, Why: err}
	}
	if f, ok := a.Out.(*os.File); ok {
		info, err := f.Stat()
		if err != nil {
			return &Failure{What: what, Why: err}
		}
		const owner = 0o600
		if info.Mode().IsRegular() && info.Mode().Perm() != owner {
			if err := f.Chmod(owner); err != nil {
				return &Failure{What: "write key to", Name: "standard output", Why: err}
			}
		}
	}
	if _, err := fmt.Fprintf(a.Out, "# public key: %s\n%s\n", key.Public(), key.Text()); err != nil {
		return &Failure{What: "write key to", Name: "standard output", Why: err}
	}
	fmt.Fprintf(a.Err, "public key: %s\n", key.Public())
	return nil
}
