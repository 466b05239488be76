"""The cleansing experiment in a small form, on made-up images in place of MNIST."""

import csv
from dataclasses import replace

import numpy as np
import pytest
from experiments.datasets import DataSet

from experiments import cleansing, cleansing_report

SMALL = cleansing.Settings("mnist", 200, 100, 150, 2, 50, 0.05, (5, 60))


@pytest.fixture
def images(monkeypatch):
    """Ten kinds of stripes; a tenth of the training labels is wrong."""
    rng = np.random.default_rng(0)

    def part(count, wrong):
        y = rng.integers(0, 10, count)
        x = rng.integers(0, 60, (count, 28, 28))
        for k in range(count):
            x[k, 2 * y[k] + 3 : 2 * y[k] + 6] += 180
        flipped = rng.random(count) < wrong
        return x.astype(np.uint8), np.where(flipped, (y + 3) % 10, y)

    made = DataSet("mnist", part(400, 0.1), part(150, 0), tuple("0123456789"))
    monkeypatch.setattr(cleansing, "load", lambda name: made)
    monkeypatch.setattr(cleansing_report, "load", lambda name: made)
    return made


def test_a_draw_is_written_continued_and_merged(images, tmp_path):
    first = cleansing.compute(0, SMALL, ["retrace", "random"], ["last"], tmp_path, progress=False)
    assert len(first["rows"]) == 4
    for row in first["rows"]:
        assert 0 <= row["error"] <= 1 and row["error_kept"] == pytest.approx(
            first["rows"][0]["error_kept"]
        )
    more = cleansing.compute(
        0, SMALL, ["retrace", "random", "loss"], ["last", "all"], tmp_path, progress=False
    )
    assert more["rows"][:4] == first["rows"]  # what was there is kept as it was
    assert {(row["method"], row["retrain"]) for row in more["rows"]} == {
        (method, way) for method in ("retrace", "random", "loss") for way in ("last", "all")
    }
    cleansing.compute(1, SMALL, ["retrace", "random"], ["last"], tmp_path, progress=False)
    results = cleansing.load_results(tmp_path, SMALL)
    table = cleansing.summarize([row for result in results for row in result["rows"]])
    assert {result["draw"] for result in results} == {0, 1}
    by_key = {(row["method"], row["m"], row["retrain"]): row for row in table}
    assert by_key["retrace", 5, "last"]["draws"] == 2
    with pytest.raises(ValueError, match="other settings"):
        cleansing.load_results(tmp_path, replace(SMALL, epochs=3))


@pytest.mark.slow
def test_the_report(images, tmp_path):
    results = [
        cleansing.compute(
            draw, SMALL, ["last-epoch", "random"], ["last", "all"], tmp_path, progress=False
        )
        for draw in range(3)
    ]
    paths = cleansing_report.write_report(tmp_path, results, SMALL)
    assert {path.name for path in paths} == {
        "mnist-rows.csv",
        "mnist-summary.csv",
        "mnist-summary.md",
        "mnist-last-curves.svg",
        "mnist-last-before-after.svg",
        "mnist-all-curves.svg",
        "mnist-all-before-after.svg",
        "mnist-contact-sheet.svg",
    }
    with open(tmp_path / "mnist-rows.csv") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 3 * 2 * 2 * 2
    last, everything = cleansing_report.findings(
        cleansing.summarize([row for result in results for row in result["rows"]])
    )
    assert last.startswith("Retrain Last: ") and everything.startswith("Retrain All: ")


def test_every_method_and_fresh_seeds(images, tmp_path):
    result = cleansing.compute(
        2, SMALL, list(cleansing.METHODS), ["fresh"], tmp_path, progress=False
    )
    assert {row["method"] for row in result["rows"]} == set(cleansing.METHODS)
    assert all(np.isfinite(row["loss"]) for row in result["rows"])


def test_removing_the_last_epoch_is_not_removing_all(images, tmp_path):
    rows = cleansing.compute(0, SMALL, ["random"], ["last", "all"], tmp_path, progress=False)[
        "rows"
    ]
    last, everything = (
        next(r for r in rows if r["retrain"] == way and r["m"] == 60) for way in ("last", "all")
    )
    assert last["loss"] != everything["loss"] and last["loss_kept"] == pytest.approx(
        everything["loss_kept"], rel=1e-3
    )


def test_draws():
    assert list(cleansing.parse_draws("2:5")) == [2, 3, 4]
    assert list(cleansing.parse_draws("7")) == [7]
