"""Clean texts.

This tutorial cleans a table with a column of texts. The reviews are generated from lists of words,
so that nothing needs to be downloaded, and one in eight labels is wrong.
"""

# %% The file
import numpy as np
import pandas as pd

import dross

GOOD = ["lovely", "warm", "bright", "clean", "friendly", "quiet", "fresh", "charming", "tidy"]
BAD = ["dirty", "cold", "dark", "noisy", "rude", "broken", "cramped", "dull", "shabby"]
OTHER = ["the", "room", "was", "we", "had", "breakfast", "with", "view", "street", "staff", "bed"]
rng = np.random.default_rng(0)


def write_review(stars: str) -> str:
    """A dozen words, of which a few say what is meant."""
    telling, misleading = (GOOD, BAD) if stars == "good" else (BAD, GOOD)
    words = [*rng.choice(telling, 3), *rng.choice(misleading, 1), *rng.choice(OTHER, 9)]
    return " ".join(rng.permutation(words))


meant = rng.choice(["good", "bad"], 600)
reviews = [write_review(each) for each in meant]
wrong = rng.random(600) < 0.125
stars = np.where(wrong, np.where(meant == "good", "bad", "good"), meant)
pd.DataFrame({"review": reviews, "stars": stars}).to_csv("reviews.csv", index=False)
print(reviews[0], "->", stars[0])

# %% Clean
# On the command line, use `dross clean reviews.csv --text review --label stars --backbone none`.
# With the extra `text` installed and without `--backbone none`, static embeddings are compared as
# well, and the best features are used. Labels of texts are treated as annotated by default.
project = dross.clean(
    "reviews.csv", "stars", text="review", backbone="none", out="runs/reviews", progress=False
)
print(project.recommended)

# %% Results
table = project.table
touched = table[table["action"] != "keep"]
hits = wrong[touched.index].sum()
print(f"The plan changes {len(touched)} reviews; {hits} of them have a wrong label.")
sure = touched.sort_values("confidence", ascending=False).index[:3]
for id in sure:
    row, text = table.loc[id], project.content["text"][id]
    print(f"{row['label']} -> {row['prediction']}: {text}")

# %% Words that determine the prediction
# If models are trained on word counts, the explanation of a review lists the words that contribute
# most to the prediction.
for word, weight in project.why(int(table["score"].idxmin())).words[:5]:
    print(f"{word:10} {weight:+.2f}")

# %% Does it help?
verdict = dross.judge("runs/reviews", quick=True, progress=False)
print(verdict.verdict, "-", verdict.sentence)
