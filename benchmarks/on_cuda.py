"""Run the whole engine on a GPU and compare it with the CPU.

    PYTHONPATH=src:tests python benchmarks/on_cuda.py

Scores, truth and tangents are compared for every optimizer and every kind of model. It prints one
line per case with the largest relative difference between the two devices in float64, and fails if
one is large.
"""

import tempfile
import time
from pathlib import Path

import numpy as np
from tests.zoo import MODELS, OPTIMIZERS, problem

import dross

TOLERANCE = 1e-7  # 20-odd steps of float64 with sums in another order, through Adam's 1/eps


def compute(p, device: str, folder: Path) -> dict[str, np.ndarray]:
    """Everything that the engine computes for a problem on a device."""
    model, optimizer = p.start()
    run = dross.train(
        model,
        (p.X, p.Y),
        p.loss,
        optimizer,
        path=folder,
        batches=p.batches,
        epochs=p.epochs,
        device=device,
        progress=False,
        keep=dross.tape.Checkpoints(every=3),
        overwrite=True,
    )
    query = dross.mean_loss((p.X_val, p.Y_val))
    return {
        "theta": run.recording.state_at(run.steps).theta.cpu().numpy(),
        "scores": run.influence(query).values,
        "many": run.influence(dross.losses((p.X_val, p.Y_val))).values,
        "no hessian": dross.estimators.without_hessian(run, query).values,
        "truth": run.leave_one_out(query, [0, 3]),
        "tangent": run.parameter_influence([0, 3]).flat.cpu().numpy(),
        "cleansed": run.counterfactual([[0, 3]], absent="batch").evaluate(query),
    }


def largest_difference(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> float:
    """The largest difference of two results, each relative to its largest number."""
    relative = lambda a, b: float(np.abs(a - b).max() / (np.abs(a).max() + 1e-300))
    return max(relative(one[name], other[name]) for name in one)


def main() -> None:
    """Print one line per case."""
    cases = [(model, "momentum") for model in MODELS]
    cases += [("mlp", optimizer) for optimizer in OPTIMIZERS]
    # Other devices draw other random numbers, so models with dropout cannot agree. The run itself
    # checks that they agree with themselves.
    drawn = {"dropout", "attention"}
    worst = 0.0
    with tempfile.TemporaryDirectory() as folder:
        for model, optimizer in cases:
            start = time.perf_counter()
            found = [
                compute(problem(model, optimizer), device, Path(folder) / device)
                for device in ("cpu", "cuda")
            ]
            difference, seconds = largest_difference(*found), time.perf_counter() - start
            note = "" if model not in drawn else "(other random numbers)"
            case = f"{model:14} {optimizer:15}"
            print(f"{case} {difference:.1e} {seconds:5.1f} s {note}", flush=True)
            if model not in drawn:
                worst = max(worst, difference)
    print(f"worst {worst:.1e}")
    if not worst < TOLERANCE:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
