"""A run is opened only with the data that it was trained on, to the last instance."""

import numpy as np
import pytest
import torch

import dross
from dross.data.dataset import EVERYTHING, SAMPLE, Instances
from dross.errors import InputChanged

COUNT = 1000
X = torch.randn(COUNT, 4, generator=torch.Generator().manual_seed(0))
Y = torch.arange(COUNT) % 3


class MapStyle(torch.utils.data.Dataset):
    """Instances that are given one by one."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


def _changed():
    """Labels of which one is another: it is not among the 64 that a sample looks at."""
    y = Y.clone()
    y[1] = (y[1] + 1) % 3
    return y


def _train(folder, data, **options):
    model = torch.nn.Linear(4, 3)
    torch.nn.init.zeros_(model.weight), torch.nn.init.zeros_(model.bias)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    given = {"batches": [[0, 5], [1, 7]], "progress": False} | options
    return dross.train(model, data, "cross_entropy", optimizer, path=folder, **given)


def _open(folder, data):
    model = torch.nn.Linear(4, 3)
    return dross.load(folder, model, data, "cross_entropy", progress=False)


def test_one_changed_label_of_a_map_style_set_is_noticed(tmp_path):
    run = _train(tmp_path / "t", MapStyle(X, Y))
    assert run.recording.tape.manifest.data_digest == EVERYTHING
    with pytest.raises(InputChanged, match="a different dataset"):
        _open(tmp_path / "t", MapStyle(X, _changed()))
    for same in (MapStyle(X, Y), (X, Y)):  # however the same instances are given
        assert _open(tmp_path / "t", same).steps == 2


def _read(source, memory=None):
    return Instances(source, torch.device("cpu"), torch.float32, memory)


def test_what_is_not_held_is_sampled_and_says_so():
    held, read = _read(MapStyle(X, Y)), _read(MapStyle(X, Y), memory=100)
    assert (held.digest_kind, read.digest_kind) == (EVERYTHING, SAMPLE)
    for kind in (EVERYTHING, SAMPLE):  # the same digest, however the instances are read
        assert held.fingerprint(kind) == read.fingerprint(kind)
    changed = _read(MapStyle(X, _changed()))
    assert changed.fingerprint(SAMPLE) == held.fingerprint(SAMPLE)
    assert changed.fingerprint(EVERYTHING) != held.fingerprint(EVERYTHING)
    pair = _read((X.numpy(), Y.numpy().astype(np.int64)))
    assert pair.fingerprint(EVERYTHING) == held.fingerprint(EVERYTHING)
