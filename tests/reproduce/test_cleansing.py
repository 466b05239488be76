"""The cleansing experiment in a small form, on made-up pictures in place of MNIST."""

import csv
import gzip
import json
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from dross import cli
from dross.datasets import DataSet, sets
from dross.errors import InputChanged, InvalidInput
from dross.reproduce import cleansing, cleansing_report, cleansing_settings

SMALL = cleansing_settings.Settings("mnist", 200, 100, 150, 2, 50, 0.05, (5, 60))


@pytest.fixture
def pictures(monkeypatch):
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


def test_a_draw_is_written_continued_and_merged(pictures, tmp_path):
    first = cleansing.compute(SMALL, 0, ["retrace", "random"], ["last"], tmp_path, progress=False)
    assert len(first["rows"]) == 4
    for row in first["rows"]:
        assert 0 <= row["error"] <= 1 and row["error_kept"] == pytest.approx(
            first["rows"][0]["error_kept"]
        )
    more = cleansing.compute(
        SMALL, 0, ["retrace", "random", "loss"], ["last", "all"], tmp_path, progress=False
    )
    assert more["rows"][:4] == first["rows"]  # what was there is kept as it was
    assert {(row["method"], row["retrain"]) for row in more["rows"]} == {
        (method, way) for method in ("retrace", "random", "loss") for way in ("last", "all")
    }
    cleansing.compute(SMALL, 1, ["retrace", "random"], ["last"], tmp_path, progress=False)
    results = cleansing.load_results(tmp_path, SMALL)
    table = cleansing.summarize([row for result in results for row in result["rows"]])
    assert {result["draw"] for result in results} == {0, 1}
    by_place = {(row["method"], row["m"], row["retrain"]): row for row in table}
    assert by_place["retrace", 5, "last"]["draws"] == 2
    with pytest.raises(InputChanged, match="other settings"):
        cleansing.load_results(tmp_path, replace(SMALL, epochs=3))
    (tmp_path / "mnist-001.json").write_text("{broken")
    assert {result["draw"] for result in cleansing.load_results(tmp_path, SMALL)} == {0}


def test_the_report_shows_everything_in_one_file(pictures, tmp_path):
    for draw in range(3):
        cleansing.compute(
            SMALL, draw, ["last-epoch", "random"], ["last", "all"], tmp_path, progress=False
        )
    results = cleansing.load_results(tmp_path, SMALL)
    paths = cleansing_report.write_report(
        tmp_path, results, SMALL, "dross reproduce cleansing <now>"
    )
    names = {path.name for path in paths}
    assert {
        "mnist-rows.csv",
        "mnist-summary.csv",
        "mnist-summary.md",
        "mnist-last-curves.svg",
        "mnist-all-before-after.svg",
    } < names
    page = (tmp_path / "mnist.html").read_text()
    assert (
        page.count("<svg") == 4
        and page.count("data:image/png;base64,") == 2 * cleansing.PICTURES_PER_METHOD
    )
    assert "Retrain Last" in page and "Retrain All" in page
    assert "&lt;now&gt;" in page and "<script" not in page
    for harmless in ("http://www.w3.org", "http-equiv", "https://matplotlib.org"):
        page = page.replace(harmless, "")
    assert "http" not in page
    with open(tmp_path / "mnist-rows.csv") as file:
        assert len(list(csv.DictReader(file))) == 3 * 2 * 2 * 2


def test_without_the_pictures_there_is_a_report_all_the_same(pictures, tmp_path, monkeypatch):
    cleansing.compute(SMALL, 0, ["random"], ["last"], tmp_path, progress=False)

    def unavailable(name):
        raise InvalidInput("no network")

    monkeypatch.setattr(cleansing_report, "load", unavailable)
    *_, page = cleansing_report.write_report(
        tmp_path, cleansing.load_results(tmp_path, SMALL), SMALL, ""
    )
    assert (
        "1 draw can show a direction" in page.read_text() and "data:image" not in page.read_text()
    )


def test_every_method_and_fresh_seeds(pictures, tmp_path):
    result = cleansing.compute(
        SMALL, 2, list(cleansing_settings.METHODS), ["fresh"], tmp_path, progress=False
    )
    assert {row["method"] for row in result["rows"]} == set(cleansing_settings.METHODS)
    assert all(np.isfinite(row["loss"]) for row in result["rows"])


def test_removing_the_last_epoch_is_not_removing_all(pictures, tmp_path):
    rows = cleansing.compute(SMALL, 0, ["random"], ["last", "all"], tmp_path, progress=False)[
        "rows"
    ]
    last, everything = (
        next(r for r in rows if r["retrain"] == way and r["m"] == 60) for way in ("last", "all")
    )
    assert last["loss"] != everything["loss"] and last["loss_kept"] == pytest.approx(
        everything["loss_kept"], rel=1e-3
    )


def test_the_command(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(cleansing_settings.Settings, "of", staticmethod(lambda data, quick: SMALL))
    command = [
        "reproduce",
        "cleansing",
        "--quick",
        "--draws",
        "0",
        "--methods",
        "loss,random",
        "--out",
        str(tmp_path),
    ]
    result = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert (tmp_path / "mnist.html").exists()
    assert (
        result.exit_code == 0 and "nothing removed" in result.output and "random" in result.output
    )
    assert json.loads((tmp_path / "mnist-000.json").read_text())["draw"] == 0


def test_draws_in_two_processes_are_the_serial_ones(pictures, tmp_path, monkeypatch):
    from joblib.externals.loky import get_reusable_executor

    for name, array in zip(sets._IDX_FILES, [*pictures.train, *pictures.test]):
        (tmp_path / "mnist").mkdir(exist_ok=True)
        header = bytes([0, 0, 8, array.ndim]) + b"".join(
            side.to_bytes(4, "big") for side in array.shape
        )
        (tmp_path / "mnist" / f"{name}.gz").write_bytes(
            gzip.compress(header + array.astype(np.uint8).tobytes())
        )
    monkeypatch.setenv("DROSS_DATA", str(tmp_path))
    get_reusable_executor().shutdown()  # workers of earlier tests have an older environment
    chosen, rows = (["loss", "random"], ["last"]), {}
    for jobs in (1, 2):
        folder = tmp_path / f"out-{jobs}"
        done = cleansing.compute_all(SMALL, range(2), *chosen, folder, n_jobs=jobs, progress=False)
        assert set(done) == {0, 1}
        rows[jobs] = [result["rows"] for result in cleansing.load_results(folder, SMALL)]
    assert rows[1] == rows[2] and len(rows[1]) == 2
    get_reusable_executor().shutdown()


def test_bad_input(monkeypatch, tmp_path):
    with pytest.raises(InvalidInput, match="Did you mean 'cifar10'"):
        cleansing_settings.Settings.of("cifar", True)
    with pytest.raises(InvalidInput, match="Did you mean 'retrace'"):
        cleansing_settings.check_names("method", ["retrase"], cleansing_settings.METHODS)
    for wrong in ("a:b", "5:2", "-1", ""):
        with pytest.raises(InvalidInput):
            cleansing_settings.parse_draws(wrong)
    assert list(cleansing_settings.parse_draws("2:5")) == [2, 3, 4] and list(
        cleansing_settings.parse_draws("7")
    ) == [7]
    monkeypatch.delenv("DROSS_DATA", raising=False)
    monkeypatch.setenv("DROSS_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "dross.datasets.sets._HOMES", {"mnist": ("http://127.0.0.1:9/", ("0" * 32,) * 4)}
    )
    with pytest.raises(InvalidInput, match="DROSS_DATA"):
        cleansing.Draw.of(SMALL, 0)
