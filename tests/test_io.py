from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import pytest

from dross._io import decode
from dross.errors import CorruptFile


@dataclass(frozen=True)
class Inner:
    size: int
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    inner: Inner
    rate: float
    rows: list[Inner]
    shapes: dict[str, tuple[list[int], str]]
    pair: tuple[int, int] | None = None
    rest: Any = None
    flag: bool = False
    texts: tuple[str, ...] = ()
    either: int | str | list[int] = field(default=0)


GOOD = {
    "kind": "a",
    "inner": {"size": 3},
    "rate": 1,
    "rows": [{"size": 1, "name": "x"}],
    "shapes": {"w": [[2, 3], "float32"]},
    "pair": [1, 2],
    "texts": ["x"],
    "either": [1],
}


def test_decode_builds_nested_dataclasses_and_asdict_is_its_inverse():
    made = decode(Outer, GOOD, "file.json")
    assert made.inner == Inner(3) and made.rows == [Inner(1, "x")] and made.rate == 1.0
    assert made.shapes == {"w": ([2, 3], "float32")} and made.pair == (1, 2)
    assert decode(Outer, asdict(made), "file.json") == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "c"}, "'kind' is \"c\""),
        ({"inner": {"size": True}}, "'inner.size' is true"),
        ({"inner": {}}, "it lacks 'inner.size'"),
        ({"inner": 3}, "'inner' is 3"),
        ({"rate": "1"}, "'rate'"),
        ({"rate": None}, "'rate'"),
        ({"rows": [{"size": 1}, {"size": 1.5}]}, r"'rows\[1\].size' is 1.5"),
        ({"shapes": {"w": [[2, "3"], "float32"]}}, r"'shapes.w\[0\]\[1\]'"),
        ({"shapes": {"w": [[2, 3]]}}, "'shapes.w'"),
        ({"pair": [1]}, "'pair'"),
        ({"flag": 1}, "'flag' is 1"),
        ({"either": [None]}, "'either"),
        ({"more": 1}, "the unknown entry 'more'"),
    ],
)
def test_decode_names_the_entry_that_is_wrong(change, message):
    with pytest.raises(CorruptFile, match=message):
        decode(Outer, GOOD | change, "file.json")


def test_decode_refuses_another_type_at_the_top():
    with pytest.raises(CorruptFile, match=r"file.json is damaged"):
        decode(Outer, [], "file.json")
