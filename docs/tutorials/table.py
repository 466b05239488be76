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
# The same on the command line: `dross clean tumours.csv --label diagnosis`. It splits the rows,
# trains and records four runs, scores every training row, checks the scores by retraining, and
# lets plans compete.
project = dross.clean("tumours.csv", "diagnosis", out="runs/tumours", progress=False)
print(project.recommended)

# %% What was found
# `project.instances` has one row for each training instance; `action` is what the recommended
# plan does with it. Line 2 of the file is row 0 of the frame.
table = project.instances
touched = table[table["action"] != "keep"]
print(touched[["source", "label", "prediction", "score", "wrong"]].sort_values("score").head(8))
rows = [int(source.split()[-1]) - 2 for source in table["source"]]
hits = wrong[[int(source.split()[-1]) - 2 for source in touched["source"]]].sum()
print(
    f"The plan touches {len(touched)} rows; "
    f"{hits} of {wrong[rows].sum()} wrong labels are among them."
)

# %% Does it help?
# `dross judge runs/tumours` trains new models with and without the plan, and compares them on the
# test part. About one test label in eight is wrong as well, so look at both halves of the answer.
verdict = dross.judge("runs/tumours", progress=False)
print(verdict.verdict)
print(verdict.sentence)
print(verdict.without_doubted.sentence if verdict.without_doubted else "")

# %% The cleaned copy
# `dross export runs/tumours cleaned.csv`. The input stays as it is; a list beside the copy says
# what was removed or relabelled.
done = dross.export("runs/tumours", "cleaned.csv")
print(done.written, "rows,", done.removed, "removed,", done.relabelled, "relabelled")
