package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/tabane/tabane/internal/cli"
	"github.com/tabane/tabane/internal/cli/files"
	"github.com/tabane/tabane/internal/experiment/report"
	"github.com/tabane/tabane/internal/kernel/privilege"
	"github.com/tabane/tabane/internal/study"
	"github.com/tabane/tabane/internal/study/qoe"
)

func (a *app) qoeCommand() *cobra.Command {
	c := &cobra.Command{
		Use:     "qoe",
		Short:   "Run a study in which people rate web pages under several conditions",
		GroupID: "tools",
		Long: `Qoe serves the map and the shop to the participants of a study, each under every condition in a balanced order, asks them to rate
each task, and exports and analyzes what they answered: docs/study.md.`,
		Example: `  tabane qoe study -c examples/study.yaml
  tabane qoe export -c examples/study.yaml -o answers.csv
  tabane qoe report -c examples/study.yaml -o report`,
	}
	cli.Group(c)
	c.AddCommand(a.qoeStudyCommand(), a.qoeExportCommand(), a.qoeReportCommand(), a.qoeWithdrawCommand())
	return c
}

func (a *app) qoeStudyCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:   "study -c FILE",
		Short: "Serve a study to its participants",
		Long: `Study serves the pages of a study until SIGINT or SIGTERM: consent, tasks with the map and the shop, a rating after each, in English
and Japanese. Participants continue where they were after a reload of the page and after a restart of the server. Nothing is recorded before
consent, and nothing that identifies a person.`,
		Example: `  tabane check -c examples/study.yaml
  tabane qoe study -c examples/study.yaml`,
		Args: cli.Arguments(0, 0, "no arguments besides -c FILE"),
		RunE: func(c *cobra.Command, _ []string) error { return a.serveStudy(c.Context(), file) },
	}
	cli.FileFlag(c, &file)
	return c
}

func (a *app) serveStudy(ctx context.Context, file string) error {
	log, err := a.Logger(a.Err, slog.LevelInfo)
	if err != nil {
		return err
	}
	config, err := loadStudy(ctx, "serve study", file)
	if err != nil {
		return err
	}
	s, err := study.New(ctx, study.Options{Config: *config, Log: log})
	if err != nil {
		return studyFailure("serve study", config.Database, err)
	}
	// The database makes files in its directory, which may be another user's.
	if err := privilege.Keep(privilege.FileAccess); err != nil {
		log.Warn("capabilities are kept", "err", err)
	}
	for _, one := range config.Conditions {
		log.Info("serving", "transport", one.Transport, "environment", one.Group(), "url", one.URL, "address", one.Address)
	}
	if err := s.Run(ctx); err != nil {
		return studyFailure("serve study", config.Database, err)
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
		Args: cli.Arguments(0, 0, "no arguments besides -c FILE"),
		RunE: func(c *cobra.Command, _ []string) error {
			config, err := loadStudy(c.Context(), "export study", file)
			if err != nil {
				return err
			}
			outcome, err := study.Read(c.Context(), config)
			if err != nil {
				return studyFailure("export study", config.Database, err)
			}
			write := outcome.WriteCSV
			if asJSON {
				write = outcome.WriteJSON
			}
			if output == "" {
				return write(a.Out)
			}
			return writeAnswers(output, write)
		},
	}
	cli.FileFlag(c, &file)
	c.Flags().StringVarP(&output, "output", "o", "", "write to this `file` (default standard output)")
	c.Flags().BoolVar(&asJSON, "json", false, "export as JSON")
	return c
}

func (a *app) qoeReportCommand() *cobra.Command {
	var file, answers, output string
	c := &cobra.Command{
		Use:   "report -c FILE -o DIR",
		Short: "Analyze the answers of a study and draw them",
		Long: `Report writes report.html, figures/, summary.csv and comparisons.csv: satisfaction, time of the task, conditions met and efficiency by
condition, with 95 % confidence intervals. Transports are compared within participants, by Wilcoxon's signed-rank test with Holm's
correction for all pairs of a figure, and with the effect size. What has too few participants to be significant is not judged. It can run
while the study is served.`,
		Example: `  tabane qoe report -c examples/study.yaml -o report
  tabane qoe report -c examples/study.yaml --answers answers.csv -o report`,
		Args: cli.Arguments(0, 0, "no arguments besides -c FILE and -o DIR"),
		RunE: func(c *cobra.Command, _ []string) error {
			if output == "" {
				return cli.Usage(c, errors.New("-o DIR is missing"))
			}
			return a.reportStudy(c.Context(), file, answers, output)
		},
	}
	cli.FileFlag(c, &file)
	c.Flags().StringVar(&answers, "answers", "", "read this export, CSV or JSON `file`, instead of the database")
	c.Flags().StringVarP(&output, "output", "o", "", "`directory` of the report; an earlier one in it is replaced")
	return c
}

func (a *app) reportStudy(ctx context.Context, file, answers, output string) error {
	const what = "report study"
	config, err := loadStudy(ctx, what, file)
	if err != nil {
		return err
	}
	command := []string{"tabane", "qoe", "report", "-c", file}
	source := config.Database
	var outcome study.Outcome
	if answers == "" {
		outcome, err = study.Read(ctx, config)
	} else {
		command, source = append(command, "--answers", answers), answers
		if outcome, err = readExport(answers); err != nil && !errors.Is(err, study.ErrExport) {
			return cli.FileFailure(what, answers, err)
		}
	}
	if err != nil {
		return studyFailure(what, source, err)
	}
	analysis, err := config.Analyze(outcome)
	if err != nil {
		return studyFailure(what, source, err)
	}
	s := report.Study{
		Title: config.Title.EN, Command: strings.Join(append(command, "-o", output), " "), Version: a.Version,
		Agreed: outcome.Participants, Withdrawn: outcome.Withdrawn, Counted: outcome.Counted, Analysis: analysis,
	}
	if err := report.WriteStudy(output, s); err != nil {
		return cli.FileFailure(what, output, err)
	}
	_, err = fmt.Fprintf(a.Out, "%s\n%s\n", s.Headline(), filepath.Join(output, "report.html"))
	return err
}

// readExport reads an exported file.
func readExport(path string) (_ study.Outcome, err error) {
	f, err := os.Open(path)
	if err != nil {
		return study.Outcome{}, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return study.ReadExport(f)
}

func (a *app) qoeWithdrawCommand() *cobra.Command {
	var file string
	c := &cobra.Command{
		Use:     "withdraw -c FILE CODE",
		Short:   "Delete the answers of a participant, by the code that the pages showed",
		Example: "  tabane qoe withdraw -c examples/study.yaml K7MQ2XVA",
		Args:    cli.Arguments(1, 1, "one code"),
		RunE: func(c *cobra.Command, args []string) error {
			config, err := loadStudy(c.Context(), "withdraw", file)
			if err != nil {
				return err
			}
			if err := study.Withdraw(c.Context(), config, args[0]); err != nil {
				return studyFailure("withdraw "+strconv.Quote(args[0])+" from study", config.Database, err)
			}
			_, err = fmt.Fprintln(a.Out, "deleted")
			return err
		},
	}
	cli.FileFlag(c, &file)
	return c
}

func loadStudy(ctx context.Context, what, file string) (*study.Config, error) {
	f, err := cli.Loaded(ctx, file, files.Load)
	if err != nil {
		return nil, err
	}
	if f.Study == nil {
		return nil, &cli.Failure{What: what, Name: file, Why: fmt.Errorf("it has no section %q (it holds %s)", "study:", summary(f)), Do: "see examples/study.yaml"}
	}
	return f.Study, nil
}

// studyFailure returns the failure of a command on a study's database, with a remedy for the usual
// causes.
func studyFailure(what, database string, err error) error {
	f := &cli.Failure{What: what, Name: database, Why: err}
	switch {
	case errors.Is(err, study.ErrLocked):
		f.Do = "end the program that uses it"
	case errors.Is(err, study.ErrNotWrite), errors.Is(err, study.ErrFull):
		f.Do = "check the permissions and the space of its directory"
	case errors.Is(err, study.ErrDesign):
		f.Do = "name another database, or restore the study's file"
	case errors.Is(err, study.ErrNotStudy), errors.Is(err, study.ErrVersion):
		f.Do = "name another database"
	case errors.Is(err, study.ErrNoSession):
		f.Do = "check the code"
	case errors.Is(err, study.ErrExport):
		f.Do = "name what tabane qoe export has written"
	case errors.Is(err, qoe.ErrAnswers):
		f.Do = "name the file of the study that they are of"
	case errors.Is(err, os.ErrNotExist):
		f.Do = "serve the study first: tabane qoe study"
	case errors.Is(err, syscall.EADDRINUSE):
		f.Do = "stop the program that uses the address, or choose another"
	}
	return f
}

// writeAnswers creates a file with the answers of participants, which only its owner can read.
func writeAnswers(path string, content func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return cli.FileFailure("write answers", path, err)
	}
	if err := errors.Join(content(f), f.Close()); err != nil {
		return cli.FileFailure("write answers", path, err)
	}
	return nil
}
