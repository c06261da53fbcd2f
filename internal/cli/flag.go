package cli

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tabane/tabane/internal/analysis/traffic"
)

// flagFailure returns the error of flags that could not be parsed.
func flagFailure(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if !errors.As(err, &invalid) {
		return Usage(c, err)
	}
	f := invalid.GetFlag()
	want := accepted(f.Value.Type())
	if errors.Is(err, strconv.ErrRange) {
		want += " closer to 0"
	}
	return Invalid("--"+f.Name, invalid.GetValue(), want)
}

// accepted describes the values of a type of flags.
func accepted(kind string) string {
	switch kind {
	case "bool":
		return "true or false"
	case "int":
		return "a whole number"
	case "uint64":
		return "a whole number >= 0"
	case "uint16":
		return "a whole number from 0 to 65535"
	case "float64":
		return "a number"
	case "duration":
		return "a duration like 500ms, 10s or 1m30s"
	case "stringSlice":
		return "texts with commas between them"
	}
	panic("BUG: flags of type " + kind + " are not described")
}

// FetchFlags checks the flags of the commands that fetch.
func FetchFlags(o traffic.FetchOptions) error {
	switch {
	case o.Interval < traffic.MinInterval:
		return Invalid("--interval", o.Interval.String(), "at least "+traffic.MinInterval.String())
	case o.Limit < 0:
		return Invalid("--limit", o.Limit.String(), "a duration > 0")
	case o.After < 0:
		return Invalid("--after", o.After.String(), "a duration > 0")
	case o.Objects < 0:
		return Invalid("--objects", strconv.Itoa(o.Objects), "a number > 0")
	case o.Datagram != 0 && (o.Datagram < traffic.MinDatagram || o.Datagram > traffic.MaxDatagram):
		return Invalid("--datagram", strconv.Itoa(o.Datagram), fmt.Sprintf("%d to %d bytes", traffic.MinDatagram, traffic.MaxDatagram))
	}
	return nil
}
