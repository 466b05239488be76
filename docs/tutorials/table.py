"""Clean a table.

A table of 569 tumours, of whose labels 12 % are wrong on purpose, so that we can see how many
dross finds. From a CSV file to a verdict and a cleaned copy.
"""

# %% The file
# Any CSV, TSV or Parquet file will do. The label is a column of it; dross infers what the other
# columns are, and says so.
import numpy as np
from sklearn.datasets import load_breast_cancer

import dross

data = load_breast_cancer(as_frame=True)
frame = data.data.iloc[:, :10].assign(diagnosis=np.array(["malignant", "benign"])[data.target])
rng = np.random.default_rng(0)
wrong = rng.random(len(frame)) < 0.12
other = {"malignant": "benign", "benign": "malignant"}
frame.loc[wrong, "diagnosis"] = frame.loc[wrong, "diagnosis"].map(other)
frame.to_csv("tumours.csv", index=False)
print(len(frame), "rows,", wrong.sum(), "labels are wrong")

# %% Clean
# The same on the command line: `dross clean tumours.csv --label diagnosis --labels annotated`.
# *Annotated* says that somebody judged each row, and that careful people would nearly always
# agree. It examines the label of every row with models that were not trained on it, scores every row,
# and compares plans with changing nothing, on rows that had no part in the plan.
#
# The held-out labels are as noisy as the others. The *noise-aware* figures, by which plans are
# chosen, take that into account. The plain ones count every given label as right, and so punish a
# model that is sure of the truth.
project = dross.clean(
    "tumours.csv", "diagnosis", labels="annotated", out="runs/tumours", progress=False
)
print(project.recommended)
print(project.info.recommendation.reason)
for name, figure in project.recommended.figures.items():
    low, high = figure.interval
    print(f"{name}: {figure.before:.3f} -> {figure.after:.3f} ({low:+.3f} to {high:+.3f})")

# %% What was found
# `project.table` has one row for each row of the file, in its order; `wrong` is the
# probability that its label is wrong, and `action` what the recommended plan does with it.
table = project.table
touched = table[table["action"] != "keep"]
print(touched[["source", "label", "prediction", "score", "wrong"]].sort_values("score").head(8))
hits = wrong[touched.index].sum()
print(f"The plan changes {len(touched)} rows; {hits} of {wrong.sum()} wrong labels are among them.")

# %% Does it help?
# `dross judge runs/tumours` repeats everything without a fifth of the rows, trains new models with
# and without the plan, and compares them on that fifth; then on the next. About one label in eight
# is wrong in what measures as well: the log loss takes that into account.
verdict = dross.judge("runs/tumours", progress=False)
print(verdict.verdict)
print(verdict.sentence)

# %% The cleaned copy
# `dross export runs/tumours cleaned.csv`. The input stays as it is; a list beside the copy says
# what was removed or relabelled.
done = dross.export("runs/tumours", "cleaned.csv")
print(done.written, "rows,", done.removed, "removed,", done.relabelled, "relabelled")
