"""Copies in tables, texts and images: which are found, which are natural, in which order."""

import numpy as np
import pandas
import pytest
from sklearn.datasets import load_breast_cancer

from dross._figures import encode_png
from dross.cleaning.duplicates import CopyCounts, find_copies
from dross.cleaning.inputs import Request, prepare


def find(path, label=None, **options):
    data = prepare(Request(str(path), label, **options))
    return find_copies(data, progress=False)


def cancer(rows=slice(None)) -> pandas.DataFrame:
    frame = load_breast_cancer(as_frame=True).frame.iloc[rows]
    return frame.assign(target=frame["target"].map({0: "malignant", 1: "benign"}))


def write_parts(folder, train, validation, test) -> dict:
    for name, frame in (("train", train), ("validation", validation), ("test", test)):
        frame.to_csv(folder / f"{name}.csv", index=False)
    return {"validation": str(folder / "validation.csv"), "test": str(folder / "test.csv")}


def test_copies_between_and_within_parts_are_found_and_ordered(tmp_path):
    frame = cancer()
    train, validation, test = frame[:300], frame[300:400], frame[400:]
    twice = train.iloc[[5, 6]].assign(target=["benign", "benign"])
    assert train["target"].iloc[5] == train["target"].iloc[6] == "malignant"
    train = pandas.concat([train, train.iloc[[50]], twice])  # 300, 301, 302
    test = pandas.concat([test, train.iloc[[10, 11]]])
    nearly = train.iloc[[20]].copy()
    nearly.iloc[0, :30] *= 1.0005
    validation = pandas.concat([validation, nearly])
    copies, counts = find(
        tmp_path / "train.csv", "target", **write_parts(tmp_path, train, validation, test)
    )
    places = [(row.group, row.part, row.id, row.exact) for row in copies.table.itertuples()]
    assert places == [
        (0, "train", 10, True),
        (0, "test", 169, True),
        (1, "train", 11, True),
        (1, "test", 170, True),
        (2, "train", 20, False),
        (2, "validation", 100, False),
        (3, "train", 5, True),
        (3, "train", 301, True),
        (4, "train", 6, True),
        (4, "train", 302, True),
        (5, "train", 50, True),
        (5, "train", 300, True),
    ]
    assert counts == CopyCounts(test=2, validation=1, train=6, groups=3, conflicting=2)
    assert 0 < copies.table["distance"][4] < 0.1 and copies.table["distance"].iloc[-1] == 0
    assert copies.content["mean radius"].iloc[0] == copies.content["mean radius"].iloc[1]
    assert copies.table["source"][1] == "row 171"
    assert [(row["id"], row["is_same"]) for row in copies.others(5)] == [(301, True)]
    assert not copies.others(20)[0]["is_same"] and copies.others(7) == []


def test_a_table_without_copies_has_none(tmp_path):
    cancer().to_csv(tmp_path / "all.csv", index=False)
    copies, counts = find(tmp_path / "all.csv", "target")
    assert len(copies) == 0 and counts == CopyCounts()


@pytest.mark.parametrize("values, columns", [(2, 6), (3, 8), (4, 10)])
def test_equal_rows_of_few_values_are_natural_and_counted(tmp_path, values, columns):
    rng = np.random.default_rng(values)
    kind = rng.integers(0, 3, 1500)  # columns hang together through it
    shares = rng.dirichlet(np.ones(values), (3, columns)).cumsum(2)
    cells = (shares[kind] < rng.random((1500, columns, 1))).sum(2)
    frame = pandas.DataFrame(cells).add_prefix("c").map(lambda cell: f"v{cell}")
    frame.assign(kind=np.where(kind == 1, "a", "b")).to_csv(tmp_path / "all.csv", index=False)
    copies, counts = find(tmp_path / "all.csv", "kind")
    repeated = frame.duplicated(keep=False).sum()
    assert len(copies) == 0 and counts.natural == repeated


def test_numbers_twice_are_no_conflict_of_a_regression(tmp_path):
    frame = cancer().drop(columns="target").assign(size=np.arange(569.0))
    again = frame.iloc[:5].assign(size=[600.0, 601, 602, 603, 604])
    parts = write_parts(tmp_path, pandas.concat([frame[:400], again]), frame[400:480], frame[480:])
    _, counts = find(tmp_path / "train.csv", "size", task="regression", **parts)
    assert counts.train == 10 and counts.conflicting == 0


def test_cells_that_are_not_learnt_do_not_hide_a_copy(tmp_path):
    frame = pandas.concat([cancer(), cancer(slice(0, 8))])
    frame.assign(name=[f"person {k}" for k in range(577)]).to_csv(tmp_path / "all.csv", index=False)
    copies, _ = find(tmp_path / "all.csv", "target")
    assert set(copies.table["source"]) == {f"row {k + 2}" for k in [*range(8), *range(569, 577)]}
    assert len(copies) == 8 and copies.table["exact"].all()


WORDS = np.array([f"word{k}" for k in range(300)])


def write_texts(path, texts):
    labels = np.where(["word1 " in text for text in texts], "a", "b")
    pandas.DataFrame({"text": texts, "label": labels}).to_csv(path, index=False)
    return path


def make_texts(count: int) -> list[str]:
    rng = np.random.default_rng(0)
    return [" ".join(["word1", *rng.choice(WORDS[2:], 40)][k % 2 :]) for k in range(count)]


def test_texts_but_for_blanks_and_with_a_word_changed(tmp_path):
    texts = make_texts(300)
    again = [f"  {text.replace(' ', '   ')}\t" for text in texts[:30]]
    changed = [f"other {text.rpartition(' ')[0]}" for text in texts[30:60]]
    whole = write_texts(tmp_path / "all.csv", [*texts, *again, *changed])
    copies, _ = find(whole, "label", text="text")
    number = copies.table["source"].str.removeprefix("row ").astype(int) - 2
    pairs = {tuple(sorted(group)) for _, group in number.groupby(copies.table["group"])}
    assert pairs <= {(k, 300 + k) for k in range(60)} and len(pairs) > 40
    exact = {
        tuple(sorted(g)) for _, g in number[copies.table["exact"]].groupby(copies.table["group"])
    }
    assert exact == {pair for pair in pairs if pair[0] < 30}


def test_short_texts_are_equal_by_nature_and_unknown_words_say_nothing(tmp_path):
    texts = [*make_texts(300), *["thank you word5"] * 20, *(f"unknown{k} " * 9 for k in range(20))]
    copies, counts = find(write_texts(tmp_path / "all.csv", texts), "label", text="text")
    assert len(copies) == 0 and counts.natural == 20


def test_images_by_their_pixels_and_with_a_little_noise(tmp_path):
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
    for kind in ("cat", "dog"):
        for k in range(60):
            pixels = rng.integers(0, 255, (12, 12), dtype=np.uint8)
            (tmp_path / kind / f"{k:02d}.png").write_bytes(encode_png(pixels))
            noise = np.clip(pixels + rng.integers(-1, 2, (12, 12)), 0, 255).astype(np.uint8)
            if k < 20:
                copy = encode_png(pixels if k < 10 else noise)
                (tmp_path / "dog" / f"{kind}-{k:02d}.png").write_bytes(copy)
    copies, counts = find(tmp_path)
    stems = copies.table["source"].str.extract(r"(\w+)[/-](\d+)\.png")
    assert copies.table["exact"].tolist() == (stems[1].astype(int) < 10).tolist()
    assert all(
        len(set(zip(*names))) <= 2
        for names in (stems[copies.table["group"] == k].T.values for k in range(len(copies)))
    )
    assert len(copies) == 40 == counts.groups and counts.train == 80
    assert counts.test == counts.validation == 0


def test_more_equal_ones_than_neighbors_are_one_group(tmp_path):
    frame = pandas.concat([cancer(), *[cancer(slice(3, 4))] * 50])
    frame.to_csv(tmp_path / "all.csv", index=False)
    copies, counts = find(tmp_path / "all.csv", "target")
    assert len(copies) == 1 and len(copies.table) == 51
    assert counts.train == 51 and counts.groups == 1


def test_a_table_of_a_few_different_rows_has_none(tmp_path):
    frame = pandas.DataFrame({"a": [1, 2, 3, 4] * 30, "b": ["x", "y", "y", "y"] * 30})
    frame.to_csv(tmp_path / "all.csv", index=False)
    assert len(find(tmp_path / "all.csv", "b")[0]) == 0
