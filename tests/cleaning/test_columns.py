"""What the columns of a table are taken for."""

import numpy as np
import pandas

from dross.cleaning.modality import Column
from dross.cleaning.tables import TableEncoder, describe_columns, infer_columns


def test_given_kinds_take_precedence_over_inferred_ones():
    content = pandas.DataFrame({"code": ["1", "2"] * 20, "size": ["0.5", "1.5"] * 20})
    columns = infer_columns(content, {"code": "category"})
    assert [column.kind for column in columns] == ["category", "number"]
    assert describe_columns(columns) == ["Numbers: size.", "Categories: code."]
    columns = infer_columns(content, {"code": "text", "size": "ignore"})
    because = ["'code' is ignored: it is set to text.", "'size' is ignored: it is set to ignore."]
    assert describe_columns(columns) == because


def test_highly_skewed_numbers_are_learnt_on_a_logarithmic_scale():
    rng = np.random.default_rng(0)
    wealth, size = np.exp(3 * rng.normal(size=400)), rng.normal(size=400)
    wealth[:3] = 1e9, -1e9, np.nan
    content = pandas.DataFrame({"wealth": wealth.astype(str), "size": size.astype(str)})
    columns = infer_columns(content, {})
    encoder = TableEncoder(content, columns)
    assert encoder.skewed == ["wealth"]
    now, usual = encoder(content).numpy(), slice(3, None)
    assert np.isfinite(now).all() and now[usual, 0].std() > 0.5  # it can be told apart
    order = np.argsort(wealth[usual])
    assert (np.diff(now[usual, 0][order]) >= 0).all()  # and nothing changes places


def test_a_column_that_is_nearly_always_zero_keeps_the_zeros_apart():
    gain = np.where(np.arange(300) % 20 == 0, 5000.0 + np.arange(300), 0)
    gain[40] = 1e6
    content = pandas.DataFrame({"gain": gain.astype(str)})
    encoder = TableEncoder(content, [Column("gain", "number")])
    inputs = encoder(content).numpy()[:, 0]
    assert encoder.skewed == ["gain"]
    assert inputs[gain > 0].min() > inputs[gain == 0].max() + 1
