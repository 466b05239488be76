"""What is read from tables and folders of images, and what is inferred about them."""

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from dross.cleaning import inputs as load
from dross.errors import InvalidInput


def test_what_is_inferred_from_awkward_tables(tmp_path):
    rows = 120
    frame = pandas.DataFrame(
        {
            "id": np.arange(rows),
            "all missing": None,
            "mostly numbers": [
                "n/k" if k % 43 == 3 else "?" if k == 7 else str(k) for k in range(rows)
            ],
            "day": pandas.date_range("2020-03-01", periods=rows),
            "yes or no": np.where(np.arange(rows) % 2, "y", "n"),
            "name": [f"person {k}" for k in range(rows)],
            "wild": np.r_[np.ones(rows - 1), 1e30],
            "größe": np.random.default_rng(0).normal(size=rows),
            "kind": np.where(np.arange(rows) % 3 == 0, "a", "b"),
        }
    )
    frame = pandas.concat([frame, frame.head(3)])
    path = tmp_path / "t.csv"
    path.write_bytes(frame.to_csv(index=False, sep=";").encode("cp1252"))
    prepared = load.prepare(load.Request(str(path), "kind"))
    kinds = {column.name: column.kind for column in prepared.columns}
    assert kinds == {
        "id": "ignore",
        "all missing": "ignore",
        "mostly numbers": "number",
        "day": "date",
        "yes or no": "category",
        "name": "ignore",
        "wild": "number",
        "größe": "number",
    }
    told = " ".join(prepared.notes)
    assert "not UTF-8" in told and "separated by ';'" in told
    assert "3 rows are exact copies" in told and "are treated as missing" in told
    x = prepared.x["train"]
    assert torch.isfinite(x).all() and x.abs().max() <= 8
    sizes = {part: len(ids) for part, ids in prepared.parts.items()}
    assert sizes == {"train": rows + 3, "validation": 0, "test": 0}  # every row is examined
    assert prepared.parts["train"].tolist() == list(range(rows + 3))
    assert prepared.x["test"].shape == (0, *prepared.shape)


def test_a_class_too_rare_to_be_examined_is_named(tmp_path):
    labels = ["a"] * 60 + ["b"] * 60 + ["once"]
    path, test = tmp_path / "t.csv", tmp_path / "test.csv"
    pandas.DataFrame({"x": np.arange(121) % 13, "kind": labels}).to_csv(path, index=False)
    prepared = load.prepare(load.Request(str(path), "kind"))
    assert "once" in prepared.part("train").labels
    assert "fewer than 5 instances, too few to examine their labels: once" in str(prepared.notes)
    pandas.DataFrame({"x": [1, 2] * 30, "kind": ["a", "zebra"] * 30}).to_csv(test, index=False)
    with pytest.raises(InvalidInput, match="zebra"):
        load.prepare(load.Request(str(path), "kind", test=str(test)))


@pytest.fixture
def pets(tmp_path):
    """A folder of 30 cats and 30 dogs of different sizes; a cat is cut short, a dog is empty."""
    rng, folder = np.random.default_rng(0), tmp_path / "pets"
    for kind in ("cat", "dog"):
        (folder / kind).mkdir(parents=True)
        for k in range(30):
            pixels = rng.integers(0, 255, (20 + k % 3, 24, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / kind / f"{k}.png")
    whole = (folder / "cat" / "0.png").read_bytes()
    (folder / "cat" / "0.png").write_bytes(whole[: len(whole) // 2])
    (folder / "dog" / "1.png").write_bytes(b"")
    return folder


def test_images_that_cannot_be_opened_are_left_out(pets):
    prepared = load.prepare(load.Request(str(pets)))
    assert len(prepared.source) == 58 and "2 images cannot be opened" in " ".join(prepared.notes)
    assert prepared.shape == (3, 32, 32)  # of different sizes: all made equal


def test_images_listed_in_a_table(pets):
    files = [f"cat/{k}.png" for k in range(1, 30)] + [f"dog/{k}.png" for k in range(2, 30)]
    listing = pandas.DataFrame({"file": files, "pet": ["cat"] * 29 + ["dog"] * 28})
    listing.to_csv(pets / "list.csv", index=False)
    table = load.prepare(load.Request(str(pets / "list.csv"), "pet", images="file"))
    assert len(table.source) == 57 and table.source.modality.name == "images"


def test_folders_without_usable_images_are_refused(pets, tmp_path):
    (tmp_path / "none").mkdir()
    with pytest.raises(InvalidInput, match="no images under"):
        load.prepare(load.Request(str(tmp_path / "none")))
    (pets / "loose.png").write_bytes((pets / "cat" / "1.png").read_bytes())
    with pytest.raises(InvalidInput, match="is directly in"):
        load.prepare(load.Request(str(pets)))
    for kind in ("cat", "dog"):
        for path in (pets / kind).iterdir():
            path.write_bytes(b"nonsense")
    (pets / "loose.png").unlink()
    with pytest.raises(InvalidInput, match="cannot be opened"):
        load.prepare(load.Request(str(pets)))
