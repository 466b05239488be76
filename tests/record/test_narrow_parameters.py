"""Parameters of 16 bits: allowed, replayed, and advised against where updates are lost.

They are replayed to a unit in the last place: torch's update of a bfloat16 tensor rounds its last
few numbers otherwise than the others, so it depends on where a tensor ends. theta is one vector.
"""

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.errors import DrossWarning
from tests.record.test_mixed_precision import recorded
from tests.record.user_loops import query, relative
from tests.zoo import MODELS, problem


def narrow_problem(name, dtype, optimizer="sgd", **changes):
    """One in which every update is much larger than a unit in the last place."""
    p = problem(name, optimizer, epochs=2, **changes)
    p.model = lambda: MODELS[name]().to(dtype)
    p.X, p.X_val = (x.to(dtype) if x.is_floating_point() else x for x in (p.X, p.X_val))
    return p


@pytest.mark.filterwarnings("ignore:At step 0:dross.errors.DrossWarning")
@pytest.mark.parametrize(
    ("optimizer", "dtype"),
    # AdamW's eps of 1e-8 is 0 in float16, and such a run diverges
    [("sgd", torch.bfloat16), ("adamw", torch.bfloat16), ("momentum", torch.float16)],
)
@pytest.mark.parametrize("name", ["mlp", "cnn", "embedding", "batchnorm"])
def test_runs_are_replayed_and_scored(tmp_path, name, dtype, optimizer):
    p = narrow_problem(name, dtype, optimizer)
    run, _ = recorded(p, tmp_path / "t", keep=dross.tape.EveryStep())  # no rounding adds up
    scores = run.influence(query(p)).values
    wide = problem(name, optimizer, epochs=2)
    expected = recorded(wide, tmp_path / "wide")[0].influence(query(wide)).values
    assert np.isfinite(scores).all()
    # rounded states lead elsewhere; the derivative along them is about the same
    assert np.corrcoef(scores, expected)[0, 1] > 0.9
    assert run.leave_one_out(query(p), [0]).shape == (1,)


def test_one_step_against_float64(tmp_path):
    """The derivative itself: one step from the same state, so that nothing leads elsewhere."""
    p = narrow_problem("mlp", torch.bfloat16)
    p.batches = p.batches[:1]
    p.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=0.5)
    run, _ = recorded(p, tmp_path / "narrow")
    wide = narrow_problem("mlp", torch.bfloat16)
    wide.batches, wide.optimizer = p.batches, p.optimizer
    make = wide.model
    wide.model = lambda: make().double()
    wide.X, wide.X_val = p.X.double(), p.X_val.double()
    expected = recorded(wide, tmp_path / "wide")[0].influence(query(wide)).values
    assert relative(run.influence(query(p)).values, expected) < 0.03


def test_lost_updates_are_told(tmp_path):
    p = narrow_problem("mlp", torch.bfloat16)
    p.optimizer = lambda parameters: torch.optim.SGD(parameters, lr=1e-4)
    match = r"of the parameters with a gradient did not move.*autocast=torch.bfloat16"
    with pytest.warns(DrossWarning, match=match):
        recorded(p, tmp_path / "loop")
    model, optimizer = p.start()
    given = (model, (p.X, p.Y), "cross_entropy", optimizer)
    with pytest.warns(DrossWarning, match=match):
        dross.train(*given, path=tmp_path / "t", batches=p.batches, progress=False)
    assert isinstance(model, nn.Module)
