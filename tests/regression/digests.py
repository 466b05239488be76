"""Digests of scores, counterfactual runs and cleaned sets: a change of the code changes no bit.

    python tests/regression/digests.py            compare with digests.json
    python tests/regression/digests.py --write    replace digests.json by what this code computes

The same bits can be asked for only where the same kernels run: same processor, same versions. The
list names the machine that it was written on. Elsewhere the sizes of the float64 results are
compared, up to rounding.
"""

import argparse
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[2]))

import dross
from tests import zoo
from tests.quick_cleaning import quick_cleaning

LIST = Path(__file__).with_name("digests.json")
KEEP = {
    "every": dross.tape.EveryStep(),
    "checkpoints": dross.tape.Checkpoints(every=5),
    "last": dross.tape.LastEpochs(2),
    "budget": dross.tape.Budget(60_000, in_memory=4_000),
}
Case = Callable[[Path], dict[str, np.ndarray]]


def machine() -> dict[str, str]:
    """What the bits of a result depend on beside the code."""
    return {
        "processor": _processor(),
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "pandas": pandas.__version__,
    }


def _processor() -> str:
    """Its name, with the numbers that tell apart generations which virtual machines name alike."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        found = dict(map(str.strip, line.split(":", 1)) for line in reversed(lines) if ":" in line)
        return f"{found['model name']}, family {found['cpu family']}, model {found['model']}"
    except (OSError, KeyError):
        return platform.processor()


# --- the cases ------------------------------------------------------------------------------------


def _train(problem: Any, folder: Path, keep: Any, **options: Any) -> dross.Run:
    model, optimizer = problem.start()
    options = {
        "batches": problem.batches,
        "epochs": problem.epochs,
        "penalty": problem.penalty,
        "lr": problem.rate,
        "path": folder / "tape",
        "keep": keep,
        "progress": False,
    } | options
    return dross.train(model, (problem.X, problem.Y), problem.loss, optimizer, **options)


def _everything(run: dross.Run, problem: Any, forward: bool = True) -> dict[str, np.ndarray]:
    """All that can be asked of a run."""
    mean, each = (make((problem.X_val, problem.Y_val)) for make in (dross.mean_loss, dross.losses))
    scores, rows = run.influence(mean), run.influence(each)
    found = {"scores": scores.by_epoch, "scores of many queries": rows.by_epoch}
    found["counterfactual"] = run.counterfactual([[0], [1, 2]]).evaluate(mean)
    found["leave one out"] = run.leave_one_out(mean, [0, 1, 2])
    if forward:
        found["parameter influence"] = run.parameter_influence([0, 1]).flat.cpu().numpy()
    return found


def zoo_case(model: str, optimizer: str, keep: str, *, eager: bool = False) -> Case:
    """A small problem, in float64."""

    def compute(folder: Path) -> dict[str, np.ndarray]:
        problem = zoo.problem(model, optimizer, epochs=6)
        clip = 0.8 if optimizer == "adam" else None
        with _use_eager_executor() if eager else nullcontext():
            run = _train(problem, folder, KEEP[keep], clip_norm=clip)
            return _everything(run, problem, forward=keep != "last")

    return compute


def wide_case(norm: Callable[[], nn.Module], queries: int) -> Case:
    """A model large enough for forward mode, in float32."""

    def compute(folder: Path) -> dict[str, np.ndarray]:
        torch.manual_seed(0)
        first = [nn.Conv2d(1, 16, 3, padding=1), norm(), nn.ReLU(), nn.MaxPool2d(2)]
        second = [nn.Conv2d(16, 16, 3), nn.ReLU()]
        model = nn.Sequential(*first, *second, nn.Flatten(), nn.Linear(16 * 25, 10))
        train_set = (torch.randn(64, 1, 14, 14), torch.randint(0, 10, (64,)))
        data = (torch.randn(24, 1, 14, 14), torch.randint(0, 10, (24,)))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
        options = {"epochs": 3, "batch_size": 16, "keep": dross.tape.Checkpoints(every=4)}
        options |= {"path": folder / "tape", "progress": False}
        run = dross.train(model, train_set, "cross_entropy", optimizer, **options)
        query = dross.mean_loss(data) if queries == 1 else dross.losses(data)
        groups = [[0], [1, 2, 3]]
        without = run.counterfactual(groups, removal="data").evaluate(dross.mean_loss(data))
        return {"scores": run.influence(query).by_epoch, "counterfactual": without}

    return compute


def recorder_case(optimizer_name: str, dropout: bool) -> Case:
    """Somebody else's loop: accumulation, clipping, a schedule, weights of their own."""

    def compute(folder: Path) -> dict[str, np.ndarray]:
        problem = zoo.problem("dropout" if dropout else "batchnorm", optimizer_name, epochs=4)
        model, optimizer = problem.start()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
        recorder = dross.Recorder(model, "cross_entropy", optimizer, path=folder / "tape")
        weights = torch.tensor([0.5, 0.2, 0.3])
        for epoch in range(4):
            for first in range(0, 12, 3):
                ids = torch.arange(first, first + 3)
                with recorder.step(ids, problem.X[ids], problem.Y[ids], epoch=epoch) as losses:
                    (losses * weights).sum().backward()
                    if first % 6 == 3:  # every second batch ends a step
                        recorder.clip_grad_norm_(0.7)
                        optimizer.step()
                        optimizer.zero_grad()
            schedule.step()
        return _everything(recorder.run((problem.X, problem.Y)), problem)

    return compute


QUICK = {"repeats": 2, "epochs": 6, "lr": 0.05, "check": 3, "progress": False}


def clean_case(write: Callable[[Path], dict[str, Any]], **options: Any) -> Case:
    """`dross.clean`. write: puts the data into a folder and gives the arguments that name them."""

    def compute(folder: Path) -> dict[str, np.ndarray]:
        given = write(folder)
        with quick_cleaning():
            dross.clean(out=folder / "run", **given, **(QUICK | options))
        raw = (folder / "run" / "scores.csv").read_bytes()
        return {"scores.csv": np.frombuffer(raw, dtype=np.uint8)}

    return compute


def _cancer(folder: Path) -> dict[str, Any]:
    data = load_breast_cancer(as_frame=True)
    frame = data.data.assign(diagnosis=np.array(["malignant", "benign"])[data.target]).iloc[:200]
    frame.to_csv(folder / "cancer.csv", index=False)
    return {"data": folder / "cancer.csv", "label": "diagnosis"}


def _wrong_cancer(folder: Path) -> dict[str, Any]:
    given = _cancer(folder)
    frame = pandas.read_csv(given["data"])
    wrong = np.random.default_rng(0).random(len(frame)) < 0.15
    other = frame["diagnosis"].map({"malignant": "benign", "benign": "malignant"})
    frame.assign(diagnosis=frame["diagnosis"].mask(wrong, other)).to_csv(given["data"], index=False)
    return given


def _diabetes(folder: Path) -> dict[str, Any]:
    load_diabetes(as_frame=True).frame.iloc[:200].to_csv(folder / "diabetes.csv", index=False)
    return {"data": folder / "diabetes.csv", "label": "target"}


def _pictures(folder: Path) -> dict[str, Any]:
    from PIL import Image

    data = load_digits()
    for k in range(200):
        if data.target[k] < 3:
            path = folder / "pictures" / str(data.target[k]) / f"{k:03d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((data.images[k] * 15).astype(np.uint8)).save(path)
    return {"data": folder / "pictures"}


def cases() -> dict[str, Case]:
    """Every case by its name."""
    every: dict[str, Case] = {}
    for model in (*zoo.MODELS, *zoo.BUFFER_MODELS):
        every[f"{model}, sgd, checkpoints"] = zoo_case(model, "sgd", "checkpoints")
    # transformers is an extra, and tests let Muon compute in another type
    listed = [name for name in zoo.OPTIMIZERS if not name.startswith(("transformers", "muon"))]
    for optimizer in listed:
        every[f"mlp, {optimizer}, every"] = zoo_case("mlp", optimizer, "every")
    for model, optimizer in (("mlp", "momentum"), ("batchnorm", "adamw"), ("attention", "adam")):
        for keep in KEEP:
            every[f"{model}, {optimizer}, {keep}"] = zoo_case(model, optimizer, keep)
            eager = zoo_case(model, optimizer, keep, eager=True)
            every[f"{model}, {optimizer}, {keep}, eager"] = eager
    every["forward mode, batch norm"] = wide_case(lambda: nn.BatchNorm2d(16), 1)
    every["forward mode, group norm, many queries"] = wide_case(lambda: nn.GroupNorm(4, 16), 24)
    every["recorder, adamw"] = recorder_case("adamw", dropout=False)
    every["recorder, momentum, dropout"] = recorder_case("momentum", dropout=True)
    every["clean a table"] = clean_case(_cancer)
    every["clean a table with wrong labels"] = clean_case(_wrong_cancer, labels="annotated")
    every["clean a regression"] = clean_case(_diabetes)
    every["clean pictures"] = clean_case(_pictures, epochs=3)
    return every


@contextmanager
def _use_eager_executor() -> Iterator[None]:
    """Inside, runs are computed as the mathematics stand."""
    before = os.environ.get("DROSS_EXECUTOR")
    os.environ["DROSS_EXECUTOR"] = "eager"
    try:
        yield
    finally:
        if before is None:
            del os.environ["DROSS_EXECUTOR"]
        else:
            os.environ["DROSS_EXECUTOR"] = before


# --- their digests --------------------------------------------------------------------------------


def digest(arrays: dict[str, np.ndarray]) -> dict[str, dict[str, Any]]:
    """For each array: a digest of its bits, and its size, which survives rounding."""
    return {name: _digest_one(array) for name, array in arrays.items()}


def _digest_one(array: np.ndarray) -> dict[str, Any]:
    if array.dtype.kind == "f":
        array = np.where(np.isnan(array), 0, array)  # of instances that were never used
    kind = f"{array.shape} {array.dtype}".encode()
    raw = np.ascontiguousarray(array).tobytes()
    norm = float(np.linalg.norm(array.astype(np.float64)))
    return {"sha256": hashlib.sha256(kind + raw).hexdigest(), "norm": norm}


def compute(name: str, case: Case) -> dict[str, dict[str, Any]]:
    """The digests of one case, on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return digest(case(Path(folder)))
    finally:
        torch.set_num_threads(threads)


def differences(name: str, found: dict, listed: dict, same_machine: bool) -> Iterator[str]:
    """What is not as the list has it."""
    tolerance = 1e-3 if "forward" in name else 1e-6
    for what, entry in listed.items():
        own = found.get(what)
        if own is None:
            yield f"{name}: there is no {what}"
            continue
        norms = f"{own['norm']:.17g}, listed {entry['norm']:.17g}"
        if same_machine and own["sha256"] != entry["sha256"]:
            yield f"{name}: {what} has other bits (size {norms})"
        elif what != "scores.csv" and not np.isclose(own["norm"], entry["norm"], rtol=tolerance):
            yield f"{name}: {what} has another size ({norms})"


def main() -> None:
    """Compare with the list, or replace it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--write", action="store_true", help="replace the list")
    if parser.parse_args().write:
        found = {name: compute(name, case) for name, case in cases().items()}
        LIST.write_text(json.dumps({"machine": machine(), "cases": found}, indent=1) + "\n")
        print(f"{len(found)} cases written to {LIST.name}")
        return
    listed = json.loads(LIST.read_text())
    same = listed["machine"] == machine()
    every = cases()
    wrong = [
        line
        for name, entry in listed["cases"].items()
        for line in differences(name, compute(name, every[name]), entry, same)
    ]
    print(*wrong, sep="\n")
    how = "bit for bit" if same else "up to rounding"
    print(f"{len(listed['cases'])} cases compared {how}, {len(wrong)} differences")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
