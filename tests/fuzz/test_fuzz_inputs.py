"""Whatever a file holds, it is read, or refused with a sentence; the same for a copy of it.

With DROSS_FUZZ_SECONDS each test goes on for that long.
"""

import faulthandler
import io
import random
import warnings
from pathlib import Path

import numpy as np
import pandas
import pytest
import torch
from PIL import Image

from dross.cleaning.csv_text import decode_text, guess_separator
from dross.cleaning.formats import FORMATS, Reading, copy_table, find_format, open_table
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.modality import PreparedData, RowEdits, data_digest
from dross.errors import DrossError, InvalidInput
from tests.fuzz.effort import rounds
from tests.fuzz.mutate import damage

HANG = 60  # seconds for one example, which takes a fraction of one
CELLS = [
    "",
    "?",
    "1",
    "-2.5",
    "1e308",
    "inf",
    "nan",
    "NA",
    "x",
    "x ",
    " x",
    "x\0",
    "é",
    "1_000",
    "0x1F",
    "2020-01-01",
    "31.12.1999",
    "9999-99-99",
    "True",
    "a,b",
    "a;b",
    'say "hi"',
    "two\nlines",
    "[/s]",
    "=1+1",
    "\x1b[0m",
    "\u202e",
    "💩",
    "99999999999999999999",
    "1e-400",
    "\xa0",
]
NAMES = ["y", "x", "x", "y ", "", " ", "0", "weight [kg]", "é", "day", "x.1", "Unnamed: 2", "\x1b"]


@pytest.fixture(autouse=True)
def _watch():
    """An example that hangs ends the tests with a traceback of where it was."""
    yield
    faulthandler.cancel_dump_traceback_later()


def prepare_or_refuse(request: Request, seed: object) -> PreparedData | None:
    """What was read, once its promises are checked; None if it was refused with a sentence."""
    faulthandler.dump_traceback_later(HANG, exit=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepared = prepare(request)
    except DrossError as error:
        assert len(str(error)) > 10, seed
        return None
    everyone = np.concatenate(list(prepared.parts.values()))
    assert len(np.unique(everyone)) == len(everyone) == len(prepared.source), seed
    assert len(set(prepared.source.names)) == len(prepared.source), seed
    for x, y in map(prepared.pair, prepared.parts):
        assert torch.isfinite(x).all() and torch.isfinite(y).all() and len(x) == len(y), seed
    assert len(data_digest(prepared)) == 64
    return prepared


def copy_or_refuse(path, request: Request, prepared: PreparedData | None, random_) -> None:
    """A copy of a table without one row, relabeled: it has the rows it should."""
    rows = [2, 3] if prepared is None else prepared.source.rows.tolist()
    labels = ["1"] if prepared is None else [str(label) for label in prepared.source.labels]
    removed, changed = random_.choice(rows), random_.choice(rows)
    edits = RowEdits({removed}, {changed: random_.choice(labels)})
    for suffix in (".csv", ".tsv", ".parquet", ".feather", ".jsonl", ".xlsx"):
        try:
            raw, count = copy_table(
                path.read_bytes(), path, suffix, request.label or "", edits, request.reading
            )
        except DrossError as error:
            assert len(str(error)) > 10
            continue
        if suffix == ".csv" and count > 0:
            copy = path.with_name("copy.csv")
            copy.write_bytes(raw)
            reading = Reading(separator_of(path, request.reading))
            again = copy_table(raw, copy, ".csv", request.label or "", RowEdits(), reading)
            assert again == (raw, count), "a copy of a copy differs"
            if find_format(path) is FORMATS[suffix]:
                check_rows(path, raw, edits, reading)


def separator_of(path, reading: Reading) -> str:
    """What separates cells in a copy of a file that is named .csv."""
    if find_format(path) is not FORMATS[".csv"]:
        return ","
    _, raw = open_table(path.read_bytes(), path)
    return reading.separator or guess_separator(decode_text(raw, path.name)[0])


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True


def check_rows(path, copy: bytes, edits: RowEdits, reading: Reading) -> None:
    """All rows but the removed one are in the copy, and one cell differs at most."""
    form, raw = open_table(path.read_bytes(), path)
    if _is_utf8(copy) and not _is_utf8(raw):
        return  # the row that was not UTF-8 is gone, and the same bytes are other letters now
    before, _ = form.read(raw, path, reading)
    after, _ = form.read(copy, path, reading)
    kept = before[~before.index.isin(list(edits.removed))].to_numpy()
    assert kept.shape == after.shape and (kept != after.to_numpy()).sum() <= 1, "other rows changed"


def random_request(path, random_: random.Random) -> Request:
    return Request(
        str(path),
        random_.choice(["y", "y", "y", "x", "", "Unnamed: 2", "x.1", "0"]),
        text=random_.choice([None, None, None, "x"]),
        task=random_.choice([None, None, "regression", "classification"]),
        columns={"x": random_.choice(["number", "date", "category", "ignore", "text"])}
        if random_.random() < 0.2
        else {},
        separator=random_.choice([None, None, None, None, ",", "tab", "x"]),
        na=random_.choice([None, None, None, [], ["x"]]),
        seed=random_.randrange(100),
    )


def usual_table(random_: random.Random) -> pandas.DataFrame:
    """A table as people have it, with a few odd cells."""
    rows = random_.choice([0, 1, 45, 60, 90])
    columns = random_.sample(NAMES, random_.randrange(1, 6))
    if random_.random() < 0.9 and "y" not in columns:
        columns.append("y")
    numbers = np.random.default_rng(random_.randrange(1 << 30))
    cells = {
        "number": lambda: [f"{value:.3f}" for value in numbers.normal(size=rows)],
        "kind": lambda: [random_.choice("ab") for _ in range(rows)],
        "odd": lambda: [random_.choice(CELLS) for _ in range(rows)],
        "word": lambda: [random_.choice(["red apple", "green pear", "x"]) for _ in range(rows)],
    }
    table = pandas.DataFrame(
        {k: cells[random_.choice(list(cells))]() for k in range(len(columns))}, dtype=object
    )
    for _ in range(random_.choice([0, 0, 1, 5]) if rows else 0):
        table.iloc[random_.randrange(rows), random_.randrange(len(columns))] = random_.choice(CELLS)
    table.columns = columns
    return table


def read_and_copy(path: Path, raw: bytes, random_: random.Random) -> bool:
    """Half of the time damage the bytes; whether they could be read all the same."""
    path.write_bytes(damage(raw, random_) if random_.random() < 0.5 else raw)
    request = random_request(path, random_)
    prepared = prepare_or_refuse(request, random_)
    copy_or_refuse(path, request, prepared, random_)
    return prepared is not None


def test_csv_files(tmp_path):
    read = 0
    for random_ in rounds("csv", quick=120):
        text = usual_table(random_).to_csv(index=False, sep=random_.choice(",,,;\t|"))
        raw = text.encode(random_.choice(["utf-8"] * 5 + ["utf-16", "utf-8-sig"]), "replace")
        path = tmp_path / random_.choice(["t.csv", "t.tsv", "t.csv.gz"])
        read += read_and_copy(path, raw, random_)
    assert read > 0


def odd_types(table: pandas.DataFrame, random_: random.Random) -> pandas.DataFrame:
    """The same table with types that only Parquet has."""
    typed = table.copy()
    kinds = ["float64", "Int64", "bool", "category", "bytes", "list", "datetime64[ns]", "object"]
    for place in range(typed.shape[1]):
        column, kind = typed.iloc[:, place], random_.choice(kinds)
        if kind == "bytes":
            typed.isetitem(place, [str(cell).encode() for cell in column])
        elif kind == "list":
            typed.isetitem(place, [[1, 2]] * len(column))
        elif kind in ("category", "object"):
            typed.isetitem(place, column.astype(kind))
        else:
            numbers = pandas.to_numeric(column, errors="coerce").fillna(0).clip(-1e6, 1e6).round()
            typed.isetitem(place, numbers.astype("int64").astype(kind))
    names = list(typed.columns)
    typed.columns = [f"{name}{k}" if name in names[:k] else name for k, name in enumerate(names)]
    if random_.random() < 0.3:
        typed = typed.set_index(random_.choice(list(typed.columns)))
    return typed


def test_parquet_files(tmp_path):
    read = 0
    for random_ in rounds("parquet", quick=80):
        raw = odd_types(usual_table(random_), random_).to_parquet()
        path = tmp_path / "t.parquet"
        read += read_and_copy(path, raw, random_)
    assert read > 0


@pytest.mark.parametrize("suffix", [".xlsx", ".jsonl", ".feather"])
def test_files_of_other_formats(tmp_path, suffix):
    read = 0
    for random_ in rounds(suffix, quick=80):
        table = odd_types(usual_table(random_), random_).reset_index()
        try:
            raw = FORMATS[suffix].write(table)
        except InvalidInput:  # a sheet cannot contain every type
            continue
        read += read_and_copy(tmp_path / f"t{suffix}", raw, random_)
    assert read > 0


def image(random_: random.Random) -> tuple[bytes, str]:
    """One image of any kind, and the suffix of its file."""
    numbers = np.random.default_rng(random_.randrange(1 << 30))
    height, width = random_.choice([(8, 8), (8, 8), (1, 1), (9, 7), (64, 2)])
    shapes = {"L": (), "RGB": (3,), "RGBA": (4,), "I;16": (), "F": (), "1": (), "P": (), "I": ()}
    mode = random_.choice(list(shapes))
    pixels = numbers.integers(0, 256, (height, width, *shapes[mode]), dtype=np.uint8)
    if mode in ("F", "I", "I;16"):
        types = {"F": np.float32, "I": np.int32, "I;16": np.uint16}
        image = Image.fromarray(pixels.astype(types[mode]) * random_.choice([1, 256]))
    elif mode in ("1", "P"):
        image = Image.fromarray(pixels).convert(mode)
    else:
        image = Image.fromarray(pixels)
    format_ = random_.choice(["PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "AVIF", "PPM"])
    stream = io.BytesIO()
    try:
        image.save(stream, format_)
    except (OSError, ValueError, KeyError):  # not every format has every mode
        image.convert("L").convert("RGB").save(stream, "PNG")
    return stream.getvalue(), random_.choice([".png", ".jpg", ".tif", ".webp"])


def test_images(tmp_path):
    read = 0
    for number, random_ in enumerate(rounds("images", quick=40)):
        folder = tmp_path / str(number)
        share, one_kind = random_.choice([0, 0.05, 0.05, 1]), random_.random() < 0.7
        kind = image(random_)
        for label in ("a", "b"):
            (folder / label).mkdir(parents=True)
            for k in range(25):
                raw, suffix = kind if one_kind and k else image(random_)
                if random_.random() < share:
                    raw = damage(raw, random_)
                (folder / label / f"{k}{suffix}").write_bytes(raw)
        read += prepare_or_refuse(Request(str(folder)), random_) is not None
    assert read > 0
