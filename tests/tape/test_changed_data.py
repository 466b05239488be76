"""A run is not retraced on other data than it was trained on, wherever they come from."""

import numpy as np
import pytest
import torch

import dross
from dross.errors import InputChanged

COUNT = 1000
X = torch.randn(COUNT, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(COUNT) % 3
CHANGED = [101, 203, 404, 605, 806]  # none of the 64 that a sample looks at
QUERY = dross.mean_loss((X[:50], Y[:50]))
LITTLE_MEMORY = {
    "keep": dross.tape.Budget(64 << 20, in_memory=10_000, steps=100)
}  # the data do not fit in it
REFUSED = "different inputs or labels|leads to a different"


class MapStyle(torch.utils.data.Dataset):
    """Instances that are given one by one."""

    def __init__(self, x=X, y=Y):
        self.x = x
        self.y = y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


def changed_labels(ids=CHANGED):
    y = Y.clone()
    y[ids] = (y[ids] + 1) % 3
    return y


def start():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(folder, data=None, **options):
    model, optimizer = start()
    given = {"epochs": 2, "batch_size": 50, "progress": False} | LITTLE_MEMORY | options
    data = MapStyle() if data is None else data
    return dross.train(model, data, "cross_entropy", optimizer, path=folder, **given)


def own_loop(folder, **options):
    """The user's own loop, whose recorder does not know the dataset."""
    model, optimizer = start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=folder, **options)
    generator = torch.Generator().manual_seed(1)
    for epoch in range(2):
        for ids in torch.randperm(COUNT, generator=generator).split(50):
            with recorder.step(ids, X[ids], Y[ids], epoch=epoch) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
    recorder.close()
    return recorder


def reopen(folder, data, **options):
    return dross.load(folder, start()[0], data, "cross_entropy", progress=False, **options)


def test_changed_labels_that_no_sample_saw_are_refused_when_they_are_replayed(tmp_path):
    run = train(tmp_path / "t")
    expected = run.influence(QUERY).values
    run = reopen(tmp_path / "t", MapStyle(y=changed_labels()))
    for ask in (
        lambda: run.influence(QUERY),
        lambda: run.influence(QUERY, epochs=1),
        lambda: run.parameter_influence([0]),
    ):
        with pytest.raises(InputChanged, match=REFUSED):
            ask()
    opening = run.recording.tape.read(0).steps[0].ids
    unseen = np.setdiff1d(opening, np.linspace(0, COUNT - 1, 64).astype(int))
    run = reopen(tmp_path / "t", MapStyle(y=changed_labels(unseen)))
    for ask in (lambda: run.leave_one_out(QUERY, [0]), lambda: run.counterfactual([[0]])):
        with pytest.raises(InputChanged, match=REFUSED):  # by the first batch of a segment
            ask()
    restored = reopen(tmp_path / "t", MapStyle())  # nothing is lost
    np.testing.assert_array_equal(restored.influence(QUERY).values, expected)


def test_what_is_changed_under_a_live_run_is_refused(tmp_path):
    data = MapStyle(X.clone(), Y)
    run = train(tmp_path / "t", data)
    data.x[77, 3] += 1
    with pytest.raises(InputChanged, match=REFUSED):
        run.influence(QUERY)
    data.x[77] = X[77]
    assert len(run.influence(QUERY)) == COUNT


@pytest.mark.parametrize("keep", [None, dross.tape.Checkpoints(every=20), LITTLE_MEMORY["keep"]])
def test_changed_labels_are_refused_where_the_recorder_knew_no_data_set(tmp_path, keep):
    own_loop(tmp_path / "t", keep=keep)
    for data in ((X, changed_labels()), MapStyle(y=changed_labels())):
        with pytest.raises(InputChanged, match=REFUSED):
            reopen(tmp_path / "t", data).influence(QUERY)
    for same in (MapStyle(), (X, Y), (X.double().numpy(), Y.numpy())):
        assert len(reopen(tmp_path / "t", same).influence(QUERY)) == COUNT


def test_tensors_that_are_changed_in_place_after_a_loop_are_refused(tmp_path):
    y = Y.clone()
    run = own_loop(tmp_path / "t").run((X, y))
    assert len(run.influence(QUERY)) == COUNT
    y[432] = (y[432] + 1) % 3
    with pytest.raises(InputChanged, match=REFUSED):
        run.influence(QUERY)


def test_changed_data_under_an_augmentation_are_refused(tmp_path):
    jitter = lambda x, generator: x + torch.randn(x.shape, generator=generator)
    run = train(tmp_path / "t", augment=jitter)
    assert len(run.influence(QUERY)) == COUNT
    run = reopen(tmp_path / "t", MapStyle(y=changed_labels([806])), augment=jitter)
    with pytest.raises(InputChanged, match=REFUSED):
        run.influence(QUERY)
