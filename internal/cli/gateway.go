package cli

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/gateway"
	"github.com/tabane/tabane/internal/gateway/handshake"
)

func (a *App) gatewayKeyCommand() *cobra.Command {
	var out string
	c := &cobra.Command{
		Use:   "key [FILE]",
		Short: "Make the key of a gateway, or print the public key of one",
		Long: `Key makes a new private key. With --out it writes a new file, which root and the package's units can read, and prints the
public key. Without it prints the private key on standard output, and the public key on standard error; if standard output is a
file, its mode becomes 0600: a gateway refuses a key that others may read. With FILE it prints the public key of the private key in
that file. The other gateways need the public key as peers[].public_key.`,
		Example: `  tabane gateway key --out /etc/tabane/gw.key
  tabane gateway key /etc/tabane/gw.key
  tabane gateway key > gw.key`,
		Args: Arguments(0, 1, "at most one file"),
		RunE: func(c *cobra.Command, args []string) error {
			switch {
			case c.Flags().Changed("out") && out == "":
				return Invalid("--out", out, "the name of a new file")
			case len(args) == 1 && out != "":
				return Usage(c, errors.New("give FILE, whose public key is printed, or --out, not both"))
			case len(args) == 1:
				return a.printPublicKey(args[0])
			case out != "":
				return a.writeKey(out)
			}
			return a.makeKey()
		},
	}
	c.Flags().StringVar(&out, "out", "", "write the key to a new `file`")
	return c
}

func (a *App) writeKey(file string) error {
	const what = "make key"
	key, err := handshake.GenerateKey(rand.Reader)
	if err == nil {
		err = gateway.WriteKey(file, key)
	}
	if err != nil {
		return &Failure{What: what, Why: err}
	}
	fmt.Fprintf(a.Out, "public key: %s\n", key.Public())
	return nil
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
	if f, ok := fileOf(a.Out); ok {
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
		return err
	}
	fmt.Fprintf(a.Err, "public key: %s\n", key.Public())
	return nil
}
