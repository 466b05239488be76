"""A scikit-learn pipeline that cleans its training data.

    python examples/sklearn_pipeline.py

prints, after about a minute:

    the plan: relabel 235 and remove 17
    removed or relabeled: 252 rows; of 252 wrong labels it found 247
    accuracy on correct labels, without cleaning: 0.857
    accuracy on correct labels, with cleaning:    0.961
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from dross.integrations.sklearn import CleaningClassifier

# %% The data
# A fifth of the training labels are wrong; the test labels are correct.
X, y = load_digits(return_X_y=True)
X, X_test, y, y_test = train_test_split(X, y, test_size=0.3, random_state=0)

rng = np.random.default_rng(0)
wrong = rng.random(len(y)) < 0.2  # in training; the test labels are correct
noisy = np.where(wrong, (y + rng.integers(1, 10, len(y))) % 10, y)

# %% Two pipelines
# They differ only in the last step.
learner = LogisticRegression(max_iter=1000)
plain = make_pipeline(StandardScaler(), learner)
# annotated: somebody judged each image, and careful people would nearly always agree
cleaning = CleaningClassifier(learner, options={"labels": "annotated"})
cleaned = make_pipeline(StandardScaler(), cleaning)

# %% Fit and compare
plain.fit(X, noisy)
cleaned.fit(X, noisy)

touched = [*cleaning.removed_, *cleaning.relabeled_]
print(f"the plan: {cleaning.plan_.what}")
print(
    f"removed or relabeled: {len(touched)} rows; "
    f"of {wrong.sum()} wrong labels it found {wrong[touched].sum()}"
)
print(f"accuracy on correct labels, without cleaning: {plain.score(X_test, y_test):.3f}")
print(f"accuracy on correct labels, with cleaning:    {cleaned.score(X_test, y_test):.3f}")
