"""What `dross clean` announces is about what it takes."""

import re

import numpy as np
import pandas
import pytest

import dross

_BYTES = {"KB": 1e3, "MB": 1e6}


def _table(rows, columns):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(rows, columns))
    frame = pandas.DataFrame(x, columns=[f"c{k}" for k in range(columns)])
    return frame.assign(kind=np.where(x[:, 0] + rng.normal(size=rows) / 3 > 0, "a", "b"))


@pytest.mark.parametrize(
    "options", [{"model": "mlp", "epochs": 12}, {"model": "linear", "epochs": 8, "lr": 0.1}]
)
def test_the_announced_disk_is_within_a_factor_of_1_5(tmp_path, options):
    said = []
    out = tmp_path / "run"
    table = _table(900, 8)
    dross.clean(table, "kind", out=out, say=said.append, progress=False, check=2, **options)
    [amount, unit] = re.findall(
        r"Remaining: about .*, and ([\d.]+) (KB|MB) on disk", "\n".join(said)
    )[0]
    announced = float(amount) * _BYTES[unit]
    taken = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    assert taken / 1.5 <= announced <= taken * 1.5
