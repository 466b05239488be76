"""Clean a table.

This tutorial starts from a CSV file and ends with a verdict and a cleaned copy. The table describes
569 tumors; 12 % of its labels were deliberately changed, so that we can count how many of these
dross finds.
"""

# %% The file
# Any CSV, TSV, Excel, JSON Lines, Parquet or Feather file works. The label is one of its columns;
# dross infers the types of the other columns and prints them.
import numpy as np
from sklearn.datasets import load_breast_cancer

import dross

data = load_breast_cancer(as_frame=True)
frame = data.data.iloc[:, :10].assign(diagnosis=np.array(["malignant", "benign"])[data.target])
rng = np.random.default_rng(0)
wrong = rng.random(len(frame)) < 0.12
other = {"malignant": "benign", "benign": "malignant"}
frame.loc[wrong, "diagnosis"] = frame.loc[wrong, "diagnosis"].map(other)
frame.to_csv("tumors.csv", index=False)
print(len(frame), "rows,", wrong.sum(), "labels are wrong")

# %% Clean
# On the command line, use `dross clean tumors.csv --label diagnosis --labels annotated`.
# *Annotated* means that a person judged each row and that careful people would nearly always agree.
# dross examines the label of every row with models that were not trained on it, and scores every
# row. It then compares each plan with changing nothing, on held-out rows.
#
# The labels of the held-out rows are as noisy as the others. Plans are chosen by the *noise-aware*
# figures, which take this into account. The plain figures treat every given label as correct, and
# therefore penalize a model that confidently predicts the true class.
project = dross.clean(
    "tumors.csv", "diagnosis", labels="annotated", out="runs/tumors", progress=False
)
print(project.recommended)
print(project.info.recommendation.reason)
for name, figure in project.recommended.figures.items():
    low, high = figure.interval
    print(f"{name}: {figure.before:.3f} -> {figure.after:.3f} ({low:+.3f} to {high:+.3f})")

# %% Results
# `project.table` has one row for each row of the file, in the same order. `wrong` is the
# probability that the label of the row is wrong, and `action` is what the recommended plan does
# with the row.
table = project.table
touched = table[table["action"] != "keep"]
print(touched[["source", "label", "prediction", "score", "wrong"]].sort_values("score").head(8))
hits = wrong[touched.index].sum()
print(f"The plan changes {len(touched)} rows; {hits} of {wrong.sum()} wrong labels are among them.")

# %% Does it help?
# `dross judge runs/tumors` splits the rows into five folds and holds out each of them in turn. It
# repeats everything without these rows, trains new models with and without the plan, and compares
# them on the held-out rows. About one in eight of the labels used for the evaluation is wrong as
# well; the log loss takes this into account.
verdict = dross.judge("runs/tumors", progress=False)
print(verdict.verdict)
print(verdict.sentence)

# %% The cleaned copy
# `dross export runs/tumors cleaned.csv` writes the copy. The input is not changed; a list next to
# the copy shows which rows were removed or relabeled.
done = dross.export("runs/tumors", "cleaned.csv")
print(done.written, "rows,", done.removed, "removed,", done.relabeled, "relabeled")
