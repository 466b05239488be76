"""Data from Python: taken, kept as files, read like files, and given back in their own types."""

import datetime

import numpy as np
import pandas
import pytest
import torch
from scipy import sparse

import dross
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.memory import (
    file_name,
    pixels_of,
    read_image,
    restore_data,
    store_data,
)
from dross.errors import InvalidInput

RNG = np.random.default_rng(0)
N = 60
NUMBERS = RNG.normal(size=(N, 3)).astype(np.float32)
KINDS = np.array(["no", "yes"])[np.arange(N) % 2]
TEXTS = [f"the word {'good' if k % 2 else 'bad'} and {k % 7}" for k in range(N)]
PIXELS = RNG.integers(0, 256, (N, 6, 5), dtype=np.uint8)
FRAME = pandas.DataFrame(
    {
        "size": NUMBERS[:, 0],
        "zip": pandas.Categorical(RNG.choice([10115, 20095], N)),
        "colour": RNG.choice(["red", "blue", None], N),
        "when": pandas.date_range("2024-01-01", periods=N),
    },
    index=pandas.Index([f"r{k}" for k in range(N)], name="key"),
)


def take(x, y, place, **options):
    """The files, the request for them, and what is given back when nothing is edited."""
    stored = store_data(x, y, options.pop("others", {}), place, **options)
    request = Request(
        file_name("train"),
        stored.label,
        text=stored.text,
        images=stored.images,
        columns=stored.columns,
        memory=stored.types,
    ).located(place)
    frame = pandas.read_parquet(request.data)
    back = restore_data(frame, stored.label, stored.types, pixels_of(place / file_name("train")))
    return prepare(request), back


def same(one, other) -> bool:
    if isinstance(other, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if sparse.issparse(other):
        return one.format == other.format and one.dtype == other.dtype and (one != other).nnz == 0
    if isinstance(other, (pandas.DataFrame, pandas.Series)):
        return one.equals(other) and type(one) is type(other)
    if isinstance(other, np.ndarray):
        return one.shape == other.shape and bool((one == other).all())
    return one == other


@pytest.mark.parametrize(
    ("x", "kind"),
    [
        (NUMBERS, "table"),
        (NUMBERS.astype(np.float64)[:, 0], "table"),
        (NUMBERS.tolist(), "table"),
        (torch.from_numpy(NUMBERS), "table"),
        (torch.from_numpy(NUMBERS).bfloat16(), "table"),
        (sparse.csr_matrix(NUMBERS), "table"),
        (sparse.coo_array(NUMBERS.astype(np.float64)), "table"),
        (TEXTS, "text"),
        (np.array(TEXTS), "text"),
        (PIXELS, "images"),
        (PIXELS[..., None].repeat(3, 3), "images"),
        (torch.from_numpy(PIXELS[:, None].repeat(3, 1)).float() / 255, "images"),
        (PIXELS.astype(np.float32) * 3 - 100, "images"),
    ],
)
def test_every_kind_of_x_is_read_and_given_back(x, kind, tmp_path):
    prepared, (back, y) = take(x, KINDS, tmp_path)
    assert prepared.source.modality.name == kind and len(prepared.source) == N
    assert prepared.source.classes == ["no", "yes"] and prepared.source.names[17] == "row 17"
    assert type(back) is type(x) and same(back, x) and same(y, KINDS.astype(object))


@pytest.mark.parametrize(
    "y",
    [
        (np.arange(N) % 3),
        (np.arange(N) % 3).tolist(),
        torch.arange(N) % 3,
        np.arange(N) % 2 == 0,
        pandas.Series(KINDS, name="answer"),
        pandas.Series(KINDS).astype("category"),
        np.linspace(0, 5, N),
        KINDS.tolist(),
    ],
    ids=str,
)
def test_every_kind_of_y_is_given_back(y, tmp_path):
    prepared, (_, back) = take(NUMBERS, y, tmp_path)
    assert prepared.source.label == ("answer" if getattr(y, "name", None) else "label")
    assert type(back) is type(y) and back[0] == y[0]
    if not isinstance(y, list):
        assert back.dtype == y.dtype and bool((back == y).all())


@pytest.mark.parametrize("library", ["polars", "pyarrow", "datasets"])
def test_tables_of_other_libraries_are_read_and_given_back(library, tmp_path):
    module = pytest.importorskip(library, reason=f"{library} is not installed")
    plain = FRAME.reset_index(drop=True).astype({"zip": int}).assign(label=KINDS)
    if library == "polars":
        table = module.from_pandas(plain)
    elif library == "pyarrow":
        table = module.Table.from_pandas(plain)
    else:
        table = module.Dataset.from_pandas(plain)
    data, back = take(table, "label", tmp_path)
    kinds = {column.name: column.kind for column in data.columns}
    assert kinds == {"size": "number", "zip": "category", "colour": "category", "when": "date"}
    assert type(back) is type(table)
    again = back.to_pandas()
    assert again.columns.tolist() == plain.columns.tolist() and again["label"].tolist() == [*KINDS]
    assert again["colour"].isna().tolist() == plain["colour"].isna().tolist()
    _, (x, y) = take(table, table["label"], tmp_path / "apart")
    assert type(x) is type(table) and list(y) == [*KINDS]


def test_the_columns_of_a_frame_keep_their_kinds_and_its_index_stays(tmp_path):
    prepared, back = take(FRAME.assign(kind=KINDS), "kind", tmp_path)
    kinds = {column.name: column.kind for column in prepared.columns}
    assert kinds == {"size": "number", "zip": "category", "colour": "category", "when": "date"}
    assert same(back, FRAME.assign(kind=KINDS)) and back.index.name == "key"
    _, (x, y) = take(FRAME, pandas.Series(KINDS, name="size"), tmp_path / "other")
    assert same(x, FRAME) and (y == KINDS).all() and y.index[3] == "r3"  # its name was taken
    whole = pandas.DataFrame(NUMBERS)  # columns 0, 1, 2
    _, (x, _) = take(whole, KINDS, tmp_path / "third")
    assert same(x, whole) and x.columns.tolist() == [0, 1, 2]


def test_texts_in_a_frame(tmp_path):
    frame = pandas.DataFrame({"review": TEXTS, "other": NUMBERS[:, 0], "stars": KINDS})
    prepared, back = take(frame, "stars", tmp_path, text="review")
    assert prepared.source.modality.name == "text" and same(back, frame)


def test_a_frame_of_paths_of_images(tmp_path, monkeypatch):
    from dross._figures import encode_png

    monkeypatch.chdir(tmp_path)
    for k in range(N):
        (tmp_path / f"{k}.png").write_bytes(encode_png(PIXELS[k]))
    frame = pandas.DataFrame({"file": [f"{k}.png" for k in range(N)], "kind": KINDS})
    prepared, _ = take(frame, "kind", tmp_path / "kept", images="file")
    assert prepared.source.modality.name == "images" and prepared.shape == (1, 6, 5)


def test_other_parts_are_pairs_or_frames(tmp_path):
    others = {"validation": (NUMBERS[:20], KINDS[:20]), "test": None}
    take(NUMBERS, KINDS, tmp_path, others=others)
    kept = pandas.read_parquet(tmp_path / file_name("validation"))
    assert kept.columns.tolist() == ["x0", "x1", "x2", "label"] and len(kept) == 20
    assert not (tmp_path / file_name("test")).exists()
    with pytest.raises(InvalidInput, match="only one of them contains images"):
        take(NUMBERS, KINDS, tmp_path, others={"test": (PIXELS, KINDS)})
    with pytest.raises(InvalidInput, match=r"validation=\(X, y\)"):
        take(NUMBERS, KINDS, tmp_path, others={"validation": NUMBERS})
    frame = FRAME.assign(kind=KINDS)
    take(frame, "kind", tmp_path / "frames", others={"test": frame.head(30)})
    assert len(pandas.read_parquet(tmp_path / "frames" / file_name("test"))) == 30


def test_images_are_scaled_for_the_eye(tmp_path):
    gray = np.linspace(-2, 2, 2 * 4 * 4).reshape(2, 4, 4)
    np.save(tmp_path / "data.npy", gray)
    first, last = (read_image(tmp_path / "data.npy" / str(k)) for k in (0, 1))
    assert first is not None and last is not None and first.shape == (4, 4, 3)
    assert first.min() == 0 and last.max() == 255
    assert read_image(tmp_path / "data.npy" / "2") is None
    assert read_image(tmp_path / "none.npy" / "0") is None
    np.save(tmp_path / "colour.npy", np.full((1, 4, 4, 4), 0.5))
    colour = read_image(tmp_path / "colour.npy" / "0")
    assert colour is not None and colour.dtype == np.uint8 and (colour == 128).all()


def with_cell(cell, place=7):
    frame = FRAME.assign(odd="x").astype({"odd": object})
    frame.iat[place, frame.columns.get_loc("odd")] = cell
    return frame


def missing(place):
    labels = KINDS.astype(object)
    labels[place] = None
    return labels


@pytest.mark.parametrize(
    ("x", "y", "said"),
    [
        (NUMBERS, KINDS[:50], r"y has 50 labels, but there are 60 instances"),
        (FRAME, KINDS[:50], r"y has 50 labels, but there are 60 instances"),
        (NUMBERS, missing(9), r"y has 1 missing label .*the first at position 9"),
        (
            NUMBERS,
            np.where(np.arange(N) > 57, np.nan, 1),
            r"2 missing labels .*first at position 58",
        ),
        (
            FRAME.assign(kind=missing(9)),
            "kind",
            r"The column 'kind' of X has 1 missing label .* position 9",
        ),
        (NUMBERS[:0], KINDS[:0], r"X is empty: it has the shape \(0, 3\)"),
        (FRAME.head(0), KINDS[:0], r"X is empty"),
        (FRAME[[]], KINDS, r"X is empty"),
        ([], [], r"X is empty"),
        (
            np.array([[object()] * 2] * N),
            KINDS,
            r"'x0' of X contains .* position 0, is of type object",
        ),
        (with_cell([1, 2]), KINDS, r"'odd' of X contains objects .* position 7, is of type list"),
        (with_cell({1: 2}), KINDS, r"position 7, is of type dict"),
        (NUMBERS, [object()] * N, r"y contains objects .* position 0, is of type object"),
        (NUMBERS, np.eye(N), r"y has the shape \(60, 60\).*argmax"),
        (NUMBERS, None, r"dross.clean\(X, y\)"),
        (NUMBERS, "kind", r"dross.clean\(X, y\)"),
        (FRAME, None, r"Specify the column to predict"),
        (FRAME, "colur", r"Did you mean 'colour'"),
        (pandas.concat([FRAME, FRAME], axis=1), KINDS, r"two columns named 'size'"),
        ([[1, 2], [3]], [0, 1], r"same number of values"),
        (3, KINDS, r"X is of type int; dross takes a DataFrame"),
        ({"a": 1}, KINDS, r"X is of type dict"),
        (NUMBERS.astype(complex), KINDS, r"complex"),
        (np.zeros((N, 2, 2, 2)), KINDS, r"1, 3 or 4 channels"),
        (np.zeros((N, 2, 2, 2, 3)), KINDS, r"treated as images"),
        (np.full((N, 4, 4), np.nan), KINDS, r"pixels that are not finite"),
        (sparse.csr_matrix((100_000, 1_000)), [0] * 100_000, r"TruncatedSVD"),
    ],
)
def test_what_cannot_be_used_is_said(x, y, said, tmp_path):
    with pytest.raises(InvalidInput, match=said):
        dross.clean(x, y, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run").exists()


def test_files_and_data_are_not_mixed(tmp_path):
    FRAME.assign(kind=KINDS).to_csv(tmp_path / "t.csv")
    with pytest.raises(InvalidInput, match="label is a ndarray, but the data was passed as a path"):
        dross.clean(tmp_path / "t.csv", KINDS, out=tmp_path / "run")
    with pytest.raises(InvalidInput, match="test is a DataFrame"):
        dross.clean(tmp_path / "t.csv", "kind", test=FRAME, out=tmp_path / "run")


def test_simple_objects_become_columns_of_one_type(tmp_path):
    mixed = np.array([[1, "a"], [None, datetime.date(2024, 1, 2)]] * (N // 2), dtype=object)
    prepared, (back, _) = take(mixed, KINDS, tmp_path)
    kinds = {column.name: column.kind for column in prepared.columns}
    assert kinds["x1"] == "category" and back[1, 1] == "2024-01-02"


def test_masked_cells_are_missing(tmp_path):
    x = np.ma.masked_array(np.arange(12.0).reshape(6, 2), mask=np.eye(6, 2))
    x[:, 1] = np.ma.masked_array(x[:, 1], mask=[0, 1, 0, 0, 0, 0])
    y = np.ma.masked_array([0, 1, 0, 1, 0, 1], mask=[0, 0, 0, 0, 0, 1])
    with pytest.raises(InvalidInput, match=r"1 missing label .* at position 5"):
        store_data(x, y, {}, tmp_path)
    store_data(x, y.data, {}, tmp_path)
    frame = pandas.read_parquet(tmp_path / file_name("train"))
    assert frame.iloc[:, :2].isna().to_numpy().tolist() == np.ma.getmaskarray(x).tolist()
