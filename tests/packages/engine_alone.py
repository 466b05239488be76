"""The engine with torch, numpy, safetensors, msgspec and filelock alone: record and retrace.

`make package` runs it where nothing else is installed. With --block everything else that dross
could import is hidden, so that the tests can run it in an environment that has more.
"""

import sys
import tempfile
from pathlib import Path

OTHERS = {"PIL", "cloudpickle", "joblib", "matplotlib", "pandas", "pyarrow"}
OTHERS |= {"rich", "tqdm", "scipy", "sklearn", "starlette", "typer", "uvicorn"}


def main() -> None:
    blocked = "--block" in sys.argv
    if blocked:
        for name in OTHERS:
            sys.modules[name] = None  # type: ignore[assignment]  # importing it fails
    import numpy as np
    import torch

    import dross

    torch.manual_seed(0)
    x = torch.randn(60, 4)
    y = (x[:, 0] > 0).long()
    y[:3] = 1 - y[:3]  # three wrong labels
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    query = dross.mean_loss((x[40:], y[40:]))
    with tempfile.TemporaryDirectory() as folder:
        run = dross.train(
            model,
            (x, y),
            loss="cross_entropy",
            optimizer=optimizer,
            epochs=5,
            batch_size=10,
            path=Path(folder) / "tape",
            progress=False,
        )
        scores = run.influence(query)
        assert set(scores.most_harmful(3)) == {0, 1, 2}, scores.most_harmful(3)
        true = run.leave_one_out(query)
        assert np.corrcoef(scores.values, true)[0, 1] > 0.95, np.corrcoef(scores.values, true)
        kept = dross.Scores.load(scores.save(Path(folder) / "scores.safetensors"))
        assert np.array_equal(kept.values, scores.values)
        again = dross.load(run.path, model, (x, y), loss="cross_entropy")
        assert np.array_equal(again.influence(query).values, scores.values)
        for package, ask in {
            "scipy": lambda: run.verify(scores, n=4),
            "pandas": scores.to_frame,
            "joblib": lambda: run.counterfactual([[0]], n_jobs=2),
            "matplotlib": scores.plot,
        }.items():
            try:
                ask()
            except ModuleNotFoundError as error:
                assert (error.name or "").split(".")[0] == package, error
            else:
                raise AssertionError(f"{package} is there")
    loaded = {name.split(".")[0] for name, module in sys.modules.items() if module is not None}
    assert not loaded & OTHERS, loaded & OTHERS
    print(f"The engine alone: {scores!r}")


main()
