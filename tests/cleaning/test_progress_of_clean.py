"""What `dross clean` and `dross judge` say about the time that is left, in a log file."""

import re

import numpy as np
import pandas

import dross
from dross import _progress
from tests.cleaning.made_labels import QUICK

LINE = re.compile(r"dross (clean|judge): (\d+)%, about [\d.]+ (ms|s|minutes) left")


def test_the_time_that_is_left_is_printed_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(_progress, "_FIRST_LINE", 0.05)
    monkeypatch.setattr(_progress, "_LONGEST_SILENCE", 0.3)
    x = np.random.default_rng(0).normal(size=(160, 3))
    frame = pandas.DataFrame(x).add_prefix("x").assign(kind=np.where(x[:, 0] > 0, "a", "b"))
    frame.to_csv(tmp_path / "t.csv", index=False)
    options = QUICK | {"progress": True, "repeats": 1}
    dross.clean(tmp_path / "t.csv", "kind", out=tmp_path / "run", **options)
    dross.judge(tmp_path / "run", remove=3, seeds=2, quick=True)
    lines = capsys.readouterr().err.splitlines()
    found = [LINE.fullmatch(line) for line in lines]
    assert all(found) and {match[1] for match in found if match} == {"clean", "judge"}
    shares = [int(match[2]) for match in found if match and match[1] == "clean"]
    assert len(shares) > 1 and shares[0] < 60
    dross.judge(tmp_path / "run", remove=3, seeds=2, quick=True, progress=False)
    assert capsys.readouterr().err == ""
