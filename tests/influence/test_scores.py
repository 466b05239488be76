"""Scores: what they rank, and that files keep every digit of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.numpy import save

import dross
from dross.errors import DrossError, InvalidInput

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 7))


def scores(by_epoch: np.ndarray, **about) -> dross.Scores:
    return dross.Scores(by_epoch.sum(-2), by_epoch, **about)


@pytest.mark.parametrize("suffix", [".parquet", ".csv", ".safetensors"])
@settings(max_examples=25, deadline=None)
@given(by_epoch=arrays(np.float64, SHAPES, elements=st.floats(-1e9, 1e9)), scalar=st.booleans())
def test_saved_and_loaded_to_the_last_digit(tmp_path_factory, suffix, by_epoch, scalar):
    original = scores(
        by_epoch[0] if scalar else by_epoch, query="mean_loss", first_epoch=2, at=17, hessian=False
    )
    loaded = dross.Scores.load(original.save(tmp_path_factory.mktemp("scores") / f"s{suffix}"))
    np.testing.assert_array_equal(loaded.values, original.values)
    np.testing.assert_array_equal(loaded.by_epoch, original.by_epoch)
    about = (loaded.query, loaded.first_epoch, loaded.at, loaded.hessian)
    assert about == ("mean_loss", 2, 17, False)


def test_ranking():
    s = scores(np.array([[0.0, -2.0, 1.0, 0.5]]))
    np.testing.assert_array_equal(s.most_harmful(2), [1, 0])
    np.testing.assert_array_equal(s.most_helpful(2), [2, 3])
    assert len(s.most_harmful(99)) == 4 and len(s) == 4
    assert "most harmful 1 (-2.00e+00)" in repr(s)
    several = scores(np.stack([s.by_epoch, -s.by_epoch]))
    np.testing.assert_array_equal(several.most_harmful(1, query=1), [2])
    for bad in (
        lambda: several.most_harmful(1),
        lambda: several.most_harmful(1, query=2),
        lambda: s.most_harmful(-1),
        lambda: s.last_epochs(2),
        lambda: dross.Scores(np.zeros(3), np.zeros(3)),
    ):
        with pytest.raises(InvalidInput):
            bad()


def test_a_frame_has_one_row_per_instance():
    frame = scores(np.array([[0.0, -2.0], [1.0, 0.5]]), first_epoch=3).to_frame()
    assert list(frame) == ["id", "score", "epoch_3", "epoch_4"]
    assert frame["score"].tolist() == [1.0, -1.5]


@pytest.mark.parametrize("name", ["s.parquet", "s.csv", "s.safetensors"])
def test_files_that_are_not_scores(tmp_path, name):
    with pytest.raises(InvalidInput, match="no scores"):
        dross.Scores.load(tmp_path / name)
    for content in (b"", b"nonsense", b"# {}\nid,score\n0,x\n"):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(DrossError):
            dross.Scores.load(tmp_path / name)


def test_no_flipped_bit_of_saved_scores_goes_unnoticed(tmp_path):
    original = scores(np.random.default_rng(0).normal(size=(3, 40)))
    path = original.save(tmp_path / "s.safetensors")
    raw = path.read_bytes()
    for place in range(len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        try:
            loaded = dross.Scores.load(path)
        except DrossError:
            continue
        np.testing.assert_array_equal(loaded.values, original.values)
        np.testing.assert_array_equal(loaded.by_epoch, original.by_epoch)
        assert (loaded.query, loaded.at, loaded.hessian) == (original.query, 0, True)


def test_scores_that_an_earlier_version_saved_without_a_digest(tmp_path):
    about = '{"query": "q", "first_epoch": 0, "at": 3, "hessian": true, "details": {}}'
    arrays = {"values": np.arange(4.0), "by_epoch": np.arange(4.0)[None]}
    (tmp_path / "s.safetensors").write_bytes(save(arrays, {"dross": about}))
    assert dross.Scores.load(tmp_path / "s.safetensors").values.tolist() == [0, 1, 2, 3]


def test_formats_and_folders(tmp_path):
    s = scores(np.zeros((1, 2)))
    with pytest.raises(InvalidInput, match=r"\.parquet, \.csv, \.safetensors"):
        s.save(tmp_path / "s.pickle")
    (tmp_path / "file").write_text("")
    with pytest.raises(DrossError):
        s.save(tmp_path / "file" / "s.csv")
