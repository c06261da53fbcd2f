package cli

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strconv"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/qoe"
	"github.com/tabane/tabane/internal/study"
)

func (a *app) qoeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "qoe",
		Short:   "Study with people what pages feel like under several conditions",
		GroupID: "tools",
		Long: `Qoe serves the map and the shop to the participants of a study, each under every condition in a balanced order, asks them to rate
each task, and exports what they answered: docs/study.md.`,
	}
	group(c)
	c.AddCommand(a.qoeStudyCommand(), a.qoeExportCommand(), a.qoeWithdrawCommand())
	return c
}

func (a *app) qoeStudyCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "study -c FILE",
		Short: "Serve a study to its participants",
		Long: `Study serves the pages of a study until SIGINT or SIGTERM: consent, tasks with the map and the shop, a rating after each, in English
and Japanese. Participants go on where they were after a reload of the page and after a restart of the server. Nothing is recorded before
consent, and nothing that identifies a person.`,
		Example: `  tabane check -c examples/study.yaml
  tabane qoe study -c examples/study.yaml`,
		Args: arguments(0, 0, "no arguments besides -c FILE"),
		RunE: func(c *cobra.Command, _ []string) error { return a.serveStudy(c.Context(), file) },
	}
	fileFlag(c, &file)
	return c
}

func (a *app) serveStudy(ctx context.Context, file string) error {
	log, err := a.logger(a.err, slog.LevelInfo)
	if err != nil {
		return err
	}
	config, err := loadStudy("serve the study", file)
	if err != nil {
		return err
	}
	s, err := study.New(ctx, study.Options{Config: *config, Log: log})
	if err != nil {
		return studyFailure("serve the study", config.Database, err)
	}
	for _, one := range config.Conditions {
		log.Info("serving", "transport", one.Transport, "environment", one.Group(), "url", one.URL, "address", one.Address)
	}
	if err := s.Run(ctx); err != nil {
		return studyFailure("serve the study", config.Database, err)
	}
	return nil
}

func (a *app) qoeExportCommand() *cobra.Command {
	var file, output string
	var asJSON bool
	c := &cobra.Command{
		Use:   "export -c FILE",
		Short: "Export the answers of a study as CSV or JSON",
		Long: `Export writes one row for each task that a participant has finished: the condition, the conditions met, the time, and the rating, which
is empty where there is none. It can run while the study is served.`,
		Example: `  tabane qoe export -c examples/study.yaml -o answers.csv
  tabane qoe export -c examples/study.yaml --json`,
		Args: arguments(0, 0, "no arguments besides -c FILE"),
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := loadStudy("export the study", file)
			if err != nil {
				return err
			}
			outcome, err := study.Read(c.Context(), config)
			if err != nil {
				return studyFailure("export the study", config.Database, err)
			}
			write := writeAnswers
			if asJSON {
				write = writeAnswersJSON
			}
			if output == "" {
				return write(a.out, outcome)
			}
			return writeFile(output, func(w io.Writer) error { return write(w, outcome) })
		},
	}
	fileFlag(c, &file)
	c.Flags().StringVarP(&output, "output", "o", "", "write to this `file` (default standard output)")
	c.Flags().BoolVar(&asJSON, "json", false, "export as JSON")
	return c
}

func (a *app) qoeWithdrawCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:     "withdraw -c FILE CODE",
		Short:   "Delete the answers of a participant, by the code that the pages showed",
		Example: "  tabane qoe withdraw -c examples/study.yaml K7MQ2XVA",
		Args:    arguments(1, 1, "one code"),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := loadStudy("withdraw", file)
			if err != nil {
				return err
			}
			if err := study.Withdraw(c.Context(), config, args[0]); err != nil {
				return studyFailure("withdraw "+strconv.Quote(args[0]), config.Database, err)
			}
			_, err = fmt.Fprintln(a.out, "deleted")
			return err
		},
	}
	fileFlag(c, &file)
	return c
}

func loadStudy(what, file string) (*study.Config, error) {
	f, err := load(file)
	if err != nil {
		return nil, err
	}
	if f.Study == nil {
		return nil, &failure{what: what, on: file, why: fmt.Errorf("it has no section %q (it holds %s)", "study:", summary(f)), do: "see examples/study.yaml"}
	}
	return f.Study, nil
}

// studyFailure returns the failure of a command on a study's database, with a remedy for the usual
// causes.
func studyFailure(what, database string, err error) error {
	f := &failure{what: what, on: database, why: err}
	switch {
	case errors.Is(err, study.ErrLocked):
		f.do = "end the program that uses it"
	case errors.Is(err, study.ErrNotWrite):
		f.do = "check the permissions and the space of its directory"
	case errors.Is(err, study.ErrDesign):
		f.do = "name another database, or restore the study's file"
	case errors.Is(err, study.ErrNotStudy), errors.Is(err, study.ErrVersion):
		f.do = "name another database"
	case errors.Is(err, study.ErrNoSession):
		f.do = "check the code"
	case errors.Is(err, os.ErrNotExist):
		f.do = "serve the study first: tabane qoe study"
	case errors.Is(err, syscall.EADDRINUSE):
		f.do = "stop the program that uses the address, or choose another"
	}
	return f
}

// answer is an exported answer. Absent values are null, and empty in CSV.
type answer struct {
	Participant string   `json:"participant"`
	Language    string   `json:"language"`
	Position    int      `json:"position"`
	Environment string   `json:"environment"`
	Transport   string   `json:"transport"`
	Service     string   `json:"service"`
	TimeS       *float64 `json:"time_s"`
	Met         int      `json:"conditions_met"`
	PerMinute   *float64 `json:"conditions_met_per_min"`
	GaveUp      bool     `json:"gave_up"`
	Interrupted bool     `json:"interrupted"`
	Views       int      `json:"views"`
	Rating      *int     `json:"rating"`
}

func answersOf(o study.Outcome) []answer {
	list := make([]answer, len(o.Answers))
	for i, one := range o.Answers {
		list[i] = answer{Participant: one.Participant, Language: one.Language, Position: one.Position, Environment: one.Environment, Transport: one.Transport,
			Service: one.Service, Met: one.Met, GaveUp: one.GaveUp, Interrupted: one.Interrupted, Views: one.Views}
		if u, ok := one.Usability(); ok {
			seconds := one.Took.Seconds()
			list[i].TimeS, list[i].PerMinute = &seconds, &u.Efficiency
		}
		if score := int(one.Score); one.Score >= qoe.MinScore {
			list[i].Rating = &score
		}
	}
	return list
}

func writeAnswersJSON(w io.Writer, o study.Outcome) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(struct {
		Participants int      `json:"participants"`
		Withdrawn    int      `json:"withdrawn"`
		Answers      []answer `json:"answers"`
	}{o.Participants, o.Withdrawn, answersOf(o)})
}

func writeAnswers(w io.Writer, o study.Outcome) error {
	rows := [][]string{{"participant", "language", "position", "environment", "transport", "service", "time_s", "conditions_met", "conditions_met_per_min", "gave_up", "interrupted", "views", "rating"}}
	number := func(v *float64) string {
		if v == nil {
			return ""
		}
		return strconv.FormatFloat(*v, 'f', 3, 64)
	}
	for _, one := range answersOf(o) {
		rating := ""
		if one.Rating != nil {
			rating = strconv.Itoa(*one.Rating)
		}
		rows = append(rows, []string{one.Participant, one.Language, strconv.Itoa(one.Position), one.Environment, one.Transport, one.Service, number(one.TimeS), strconv.Itoa(one.Met),
			number(one.PerMinute), strconv.FormatBool(one.GaveUp), strconv.FormatBool(one.Interrupted), strconv.Itoa(one.Views), rating})
	}
	return csv.NewWriter(w).WriteAll(rows)
}

// writeFile creates a file that others may not read with the content.
func writeFile(path string, content func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return fileFailure("write the answers", path, err)
	}
	if err := errors.Join(content(f), f.Close()); err != nil {
		return fileFailure("write the answers", path, err)
	}
	return nil
}
