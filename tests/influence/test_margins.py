"""Margins along a run: against a loop that writes them down, and whose labels they are."""

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.errors import NotSupported
from tests.oracles import literal_margins
from tests.zoo import BUFFER_MODELS, MODELS, problem

KEEPS = {
    "every": dross.tape.EveryStep(),
    "checkpoints": dross.tape.Checkpoints(every=3),
    "budget": dross.tape.Budget(30_000, in_memory=4_000),
}


@pytest.mark.filterwarnings("ignore:The forward pass updates")
@pytest.mark.parametrize("model", [*MODELS, *BUFFER_MODELS])
def test_margins_are_those_of_the_training_passes(record, model):
    """Of every model in train mode: batch statistics, the dropout as it was drawn."""
    p = problem(model, "momentum", epochs=3)
    seen = literal_margins(p)
    assert not seen[-1]  # never used
    found = record(p, keep=KEEPS["checkpoints"]).margins()
    np.testing.assert_allclose(found[:-1], [np.mean(each) for each in seen[:-1]], rtol=1e-10)
    assert np.isnan(found[-1]) and found.dtype == np.float64


@pytest.mark.parametrize("keep", KEEPS)
def test_every_storage_policy_gives_the_same_bits(record, keep):
    p = problem("dropout", "adamw", epochs=3)
    run = record(p, keep=KEEPS[keep])
    np.testing.assert_array_equal(run.margins(), record(p).margins())


def test_part_of_a_run(record):
    p = problem("mlp", "sgd", epochs=3)
    run = record(p)
    shorter = record(problem("mlp", "sgd", epochs=3, batches=p.batches[:5]))
    np.testing.assert_array_equal(run.margins(step=5), shorter.margins())
    last = record(p, keep=dross.tape.LastEpochs(1)).margins()
    np.testing.assert_array_equal(run.margins(epochs=1), last)
    assert np.isnan(run.margins(step=0)).all()


@pytest.mark.filterwarnings("ignore:The forward pass updates")
def test_a_loop_of_ones_own_with_accumulation_and_augmentation(tmp_path):
    """Each micro-batch has its own pass, and its own buffers before it."""
    p = problem("centered", "sgd")
    model, optimizer = p.start()
    model.train()

    def augment(x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)

    options = {"path": tmp_path / "t", "augment": augment}
    recorder = dross.Recorder(model, "cross_entropy", optimizer, **options)
    expected = np.zeros(len(p.X))
    hook = model.register_forward_hook(lambda module, args, outputs: seen.append(outputs))
    seen: list[torch.Tensor] = []
    for start in range(0, 12, 3):
        ids = torch.arange(start, start + 3)
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            for i, logits in zip(ids, seen[-1].tolist()):
                given = logits.pop(int(p.Y[i]))
                expected[i] = given - max(logits)
            losses.mean().backward()
            if start % 6 == 3:
                optimizer.step()
                optimizer.zero_grad()
    hook.remove()
    run = recorder.run((p.X, p.Y))
    np.testing.assert_allclose(run.margins()[:12], expected[:12], rtol=1e-12)
    assert np.isnan(run.margins()[12:]).all()


@pytest.mark.parametrize("outputs", [(), (1,)])
def test_one_logit_for_two_classes(tmp_path, outputs):
    """It is that of class 1; the other class has 0."""
    p = problem("mlp", "sgd")
    labels = (p.Y > 0).double().reshape(-1, *outputs)
    torch.manual_seed(0)
    layers = [nn.Linear(6, 1), *([] if outputs else [nn.Flatten(0)])]
    model = nn.Sequential(*layers).double()
    start = {name: value.clone() for name, value in model.state_dict().items()}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    options = {"path": tmp_path / "t", "batches": p.batches, "progress": False}
    run = dross.train(model, (p.X, labels), "binary_cross_entropy", optimizer, **options)
    model.load_state_dict(start)
    logit = model(p.X).detach().reshape(-1)
    expected = torch.where(labels.reshape(-1) == 1, logit, -logit).numpy()
    np.testing.assert_allclose(run.margins()[:-1], expected[:-1], rtol=1e-12)


def test_flipped_labels_have_the_lowest_margins(tmp_path):
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (300,), generator=generator)
    inputs = 3 * torch.eye(3)[labels] + torch.randn(300, 3, generator=generator)
    flipped = torch.randperm(300, generator=generator)[:30]
    given = labels.clone()
    given[flipped] = (given[flipped] + 1) % 3
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"path": tmp_path / "t", "epochs": 10, "batch_size": 20, "progress": False}
    run = dross.train(model, (inputs, given), "cross_entropy", optimizer, **options)
    suspects = np.argsort(run.margins())[:30]
    assert len(np.intersect1d(suspects, flipped.numpy())) >= 25


def test_what_is_no_classifier_is_refused(tmp_path):
    p = problem("mlp", "sgd")
    count = iter(range(9))

    def run_of(labels, loss, outputs=1, wrap=nn.Identity):
        model = nn.Sequential(nn.Linear(6, outputs), wrap()).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"path": tmp_path / f"{next(count)}", "batches": p.batches, "progress": False}
        return dross.train(model, (p.X, labels), loss, optimizer, **options)

    class Named(nn.Module):
        def forward(self, z):
            return {"out": z}

    squares = lambda outputs, y: ((outputs - y) ** 2).flatten(1).mean(1)
    for labels in (p.X[:, :1], (p.Y > 0).double()[:, None]):
        with pytest.raises(NotSupported, match="it is a regression model"):
            run_of(labels, "squared_error").margins()
    with pytest.raises(NotSupported, match="it is a regression model"):
        run_of(p.X[:, :1], squares).margins()
    with pytest.raises(NotSupported, match=r"shape \(\d, 3\), the labels \(\d, 3\)"):
        run_of(p.X[:, :3], squares, outputs=3).margins()
    of_dict = lambda outputs, y: nn.functional.cross_entropy(outputs["out"], y, reduction="none")
    with pytest.raises(NotSupported, match='in a dict as "logits"'):
        run_of(p.Y, of_dict, outputs=3, wrap=Named).margins()
    shifted = lambda z, y: nn.functional.cross_entropy(z, y - 5, reduction="none")
    with pytest.raises(NotSupported, match=r"indices, 0\.\.2"):
        run_of(p.Y + 5, shifted, outputs=3).margins()
