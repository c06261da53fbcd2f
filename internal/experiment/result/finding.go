package result

// Finding is a published difference between two cells, beside that of the runs.
type Finding struct {
	// Name is what was found, Source where it is published.
	Name, Source string
	// The ratio is that of Metric in the cell to the same in the cell that Relative names
	// ("transport:tcp", "case:env1").
	Metric string
	CellKey
	Relative string
	// Want is what the ratio is published to be: "< 1".
	Want string
	// Pairs is the number of trials with a value in both cells. Ratio is the geometric mean of
	// their ratios, Low and High are its 95 % confidence interval by Student's t of the logarithms;
	// all are 0 for OutcomeTooFew and OutcomeZero.
	Pairs            int
	Ratio, Low, High float64
	// P is that of the paired t-test of these logarithms against the bound in Want, 1 without a
	// test. Wilcoxon is that of the signed-rank test, 0 if the trials are too few for it to be
	// significant. Corrected and WilcoxonCorrected are these after Holm's correction for all
	// findings of the result.
	P, Corrected, Wilcoxon, WilcoxonCorrected float64
	Outcome                                   Outcome
}

// Outcome is what became of a Finding.
type Outcome string

// The outcomes. The t-test decides, as the t-tests of publications did.
const (
	OutcomeReproduced     Outcome = "reproduced"
	OutcomeContrary       Outcome = "the contrary"
	OutcomeNotSignificant Outcome = "not significant"
	OutcomeTooFew         Outcome = "too few trials"
	OutcomeZero           Outcome = "no ratio: a value is 0"
)

// fields returns the keys of a finding in the order of the contract, with pointers to the values.
func (f *Finding) fields() []field {
	return []field{
		{"name", &f.Name}, {"source", &f.Source}, {"metric", &f.Metric}, {"case", &f.Case}, {"traffic", &f.Traffic}, {"transport", &f.Transport},
		{"relative", &f.Relative}, {"want", &f.Want}, {"pairs", &f.Pairs}, {"ratio", &f.Ratio}, {"low", &f.Low}, {"high", &f.High},
		{"p", &f.P}, {"p_holm", &f.Corrected}, {"wilcoxon_p", &f.Wilcoxon}, {"wilcoxon_p_holm", &f.WilcoxonCorrected}, {"outcome", &f.Outcome},
	}
}

// MarshalJSON writes the keys in the order of the contract.
func (f Finding) MarshalJSON() ([]byte, error) { return marshalObject(f.fields()...) }

// UnmarshalJSON reads what MarshalJSON wrote and nothing else.
func (f *Finding) UnmarshalJSON(data []byte) error { return unmarshalObject(data, f.fields()...) }
