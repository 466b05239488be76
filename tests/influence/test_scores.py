"""Scores: what they rank, and that files keep every digit of them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

import dross
from dross.errors import DrossError, InvalidInput
from dross.influence.query import query_of_file
from dross.influence.verify import choose

SHAPES = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 7))


def scores(by_epoch: np.ndarray, **about) -> dross.Scores:
    return dross.Scores(by_epoch.sum(-2), by_epoch, query_of_file("mean_loss"), **about)


@settings(max_examples=25, deadline=None)
@given(by_epoch=arrays(np.float64, SHAPES, elements=st.floats(-1e9, 1e9)), scalar=st.booleans())
def test_saved_and_loaded_to_the_last_digit(tmp_path_factory, by_epoch, scalar):
    by_epoch = by_epoch[0] if scalar else by_epoch
    original = scores(by_epoch, first_epoch=2, step=17, hessian=False)
    path = original.save(tmp_path_factory.mktemp("scores") / "s.safetensors")
    loaded = dross.Scores.load(path)
    np.testing.assert_array_equal(loaded.values, original.values)
    np.testing.assert_array_equal(loaded.by_epoch, original.by_epoch)
    about = (loaded.query.name, loaded.first_epoch, loaded.step, loaded.hessian)
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
        lambda: dross.Scores(np.zeros(3), np.zeros(3), query_of_file("q")),
    ):
        with pytest.raises(InvalidInput):
            bad()


def test_scores_are_an_array():
    s = scores(np.array([[0.0, -2.0, 1.0, 0.5]]))
    for same in (np.asarray(s), list(s), torch.as_tensor(s), s[:], s[[0, 1, 2, 3]]):
        np.testing.assert_array_equal(same, s.values)
    assert s[1] == -2.0 and isinstance(s[1], float)
    np.testing.assert_array_equal(s[np.asarray(s) < 0], [-2.0])
    np.testing.assert_array_equal(np.argsort(s), s.most_harmful(4))
    several = scores(np.stack([s.by_epoch, -s.by_epoch]))
    np.testing.assert_array_equal(np.asarray(several), several.values)
    np.testing.assert_array_equal(several[1], [-2.0, 2.0])
    assert len(list(several)) == len(several) == 4
    for wrong in ("a", (0, 1), None, ...):
        with pytest.raises(InvalidInput, match=r"such as scores\[3\]"):
            s[wrong]
    with pytest.raises(IndexError):
        s[4]


def test_instances_that_were_never_used_come_last():
    nan = np.nan
    s = scores(np.array([[nan, -2.0, nan, 0.5, 0.0], [1.0, -1.0, nan, nan, 0.0]]))
    s = s.last_epochs(2)
    np.testing.assert_array_equal(s.values, [1.0, -3.0, nan, 0.5, 0.0])
    np.testing.assert_array_equal(s.most_harmful(9), [1, 4, 3, 0, 2])
    np.testing.assert_array_equal(s.most_helpful(9), [0, 3, 4, 1, 2])
    assert s.summary() == {"lowest": -3.0, "mean": -0.375, "highest": 1.0, "harmful": 0.25}
    np.testing.assert_array_equal(s.last_epochs(1).values, [1.0, -1.0, nan, nan, 0.0])
    assert set(choose(s, 3)[0]) < {0, 1, 3, 4}
    np.testing.assert_array_equal(choose(s, 9)[0], [0, 1, 3, 4])
    several = scores(np.stack([s.by_epoch, -s.by_epoch])).last_epochs(2)
    np.testing.assert_array_equal(several.most_helpful(9, query=1), [1, 4, 3, 0, 2])
    nothing = scores(np.full((1, 2), nan)).last_epochs(1)
    assert nothing.summary() == {} and "nan" not in repr(nothing)


def test_a_frame_has_one_row_per_instance():
    frame = scores(np.array([[0.0, -2.0], [1.0, 0.5]]), first_epoch=3).to_frame()
    assert list(frame) == ["id", "score", "epoch_3", "epoch_4"]
    assert frame["score"].tolist() == [1.0, -1.5]


def test_files_that_are_not_scores(tmp_path):
    path = tmp_path / "s.safetensors"
    with pytest.raises(InvalidInput, match="no scores"):
        dross.Scores.load(path)
    for content in (b"", b"nonsense", b"# {}\nid,score\n0,x\n"):
        path.write_bytes(content)
        with pytest.raises(DrossError):
            dross.Scores.load(path)


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
        assert (loaded.query.name, loaded.step, loaded.hessian) == ("mean_loss", 0, True)


def test_one_format_and_folders(tmp_path):
    s = scores(np.zeros((1, 2)))
    with pytest.raises(InvalidInput, match=r"must end in \.safetensors.*to_csv"):
        s.save(tmp_path / "s.csv")
    (tmp_path / "file").write_text("")
    with pytest.raises(DrossError):
        s.save(tmp_path / "file" / "s.safetensors")
