# Writes signedrank.json, with which TestSignedRank compares: python3 signedrank.py (SciPy 1.17).
# With ties the p-value is that of all 2^n signs, computed by SciPy's permutation test.
import json
import numpy as np
from scipy import stats

cases = []


def add(name, d, **how):
    d = np.array(d, dtype=float)
    r = stats.wilcoxon(d, zero_method="wilcox", **how)
    nonzero = d[d != 0]
    ranks = stats.rankdata(abs(nonzero))
    cases.append({
        "name": name, "differences": d.tolist(), "plus": float(ranks[nonzero > 0].sum()),
        "minus": float(ranks[nonzero < 0].sum()), "p": float(r.pvalue),
    })


everything = stats.PermutationMethod(n_resamples=np.inf)
rng = np.random.default_rng(1)
# C. Darwin's plants (The effects of cross- and self-fertilization, 1876), in eighths of an inch.
add("darwin", [49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48], method="exact")
# The sleep data of Student, of which one difference is 0 and two are equal.
add("sleep", [1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4], method=everything)
add("ratings", [1, 0, -1, 2, 1, 1, 0, 3, -1, 1, 0, 2, -2, 1], method=everything)
add("one direction", [1, 1, 1, 1, 1, 1], method=everything)
add("a single pair", [3], method="exact")
add("twelve", rng.normal(0.3, 1, 12).tolist(), method="exact")
add("forty", rng.normal(0.3, 1, 40).tolist(), method="exact")
add("many ratings", rng.integers(-4, 5, 300).tolist(), method="approx", correction=True)
add("many times", rng.normal(0.1, 1, 250).tolist(), method="approx", correction=True)

with open("signedrank.json", "w") as f:
    f.write("[\n" + ",\n".join(json.dumps(c) for c in cases) + "\n]\n")
