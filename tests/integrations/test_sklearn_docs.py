"""The lines on scikit-learn in docs/cleaning.md, as they stand there."""

from pathlib import Path

from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from tests.integrations.test_sklearn import made

PAGE = Path(__file__).parents[2] / "docs" / "cleaning.md"


def test_what_the_page_shows_runs(capsys):
    blocks = PAGE.read_text(encoding="utf-8").split("```python\n")[1:]
    shown = next(each.split("```")[0] for each in blocks if "integrations.sklearn" in each)
    x, y, _ = made()
    known = [LogisticRegression, make_pipeline, StandardScaler]
    exec(shown, {each.__name__: each for each in known} | {"X": x, "y": y})
    assert "<plan" in capsys.readouterr().out
