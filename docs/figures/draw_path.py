"""What a score is, as a picture: the run as a path, and the retrace as its mirror.

    PYTHONPATH=src python docs/figures/draw_path.py      # a few seconds

A real run of a model with two weights, small enough to be drawn. On the left it goes from its start
to its end, with one instance and without it. On the right the same steps backwards: at each step
that used the instance its share of the score is added. Writes path.svg beside this file.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import dross
from dross import _figures as charts

RATE, EPOCHS, BATCH, INSTANCE = 0.5, 6, 8, 3


def make_data(count: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points in a plane, of two classes."""
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 2, generator=g, dtype=torch.float64)
    return x, (x @ torch.tensor([1.5, -1.0], dtype=torch.float64) > 0).long()


class Plane(nn.Module):
    """Logistic regression with two weights and nothing else."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.tensor([-1.2, -0.9], dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Logits of both classes."""
        z = x @ self.w
        return torch.stack([-z, z], dim=1)


def weights(state: dict[str, torch.Tensor]) -> np.ndarray:
    """The two weights as numbers."""
    return state["w"].detach().numpy().copy()


def retrace_by_hand(run, data, validation, path, batches) -> list[float]:
    """The paper's Algorithm 2 for one instance, as short as it can be: its shares, last first."""
    loss = lambda w, x, y: nn.functional.cross_entropy(torch.stack([-(x @ w), x @ w], 1), y)
    u = torch.func.grad(loss)(torch.tensor(path[-1]), *validation)
    shares = []
    for t in reversed(range(len(batches))):
        w, ids = torch.tensor(path[t]), batches[t]
        g = torch.func.grad(loss)(w, data[0][[INSTANCE]], data[1][[INSTANCE]])
        shares.append(float(RATE / len(ids) * (u @ g)) if INSTANCE in ids else 0.0)
        batch = (data[0][ids], data[1][ids])
        u = u - RATE * torch.func.hessian(loss)(w, *batch) @ u
    return shares


def draw_paths(panel, validation, path: np.ndarray, without: np.ndarray) -> None:
    """The run and the run without the instance, over the validation loss."""
    points = np.vstack([path, without])
    (left, bottom), (right, top) = points.min(0) - 0.5, points.max(0) + 0.5
    a, b = np.meshgrid(np.linspace(left, right, 60), np.linspace(bottom, top, 60))
    x, y = validation[0].numpy(), 2 * validation[1].numpy() - 1
    z = y * (a[..., None] * x[:, 0] + b[..., None] * x[:, 1]) * 2
    panel.contour(a, b, np.log1p(np.exp(-z)).mean(-1), 9, colors="0.85", linewidths=0.7)
    styles = {"with it": (path, charts.BLUE), "without it": (without, charts.RED)}
    for label, (points, colour) in styles.items():
        panel.plot(*points.T, color=colour, marker="o", markersize=2.2, linewidth=1, label=label)
    panel.annotate("start", path[0], textcoords="offset points", xytext=(6, -4), fontsize=7)
    panel.annotate("end", path[-1], textcoords="offset points", xytext=(6, -2), fontsize=7)
    panel.set_title("the run is a path: every step is kept on the tape")
    panel.set_xlabel("first weight")
    panel.set_ylabel("second weight")
    panel.legend(loc="lower right")


def draw_mirror(panel, shares: list[float], true: float, score: float) -> None:
    """The score as it grows while the run is gone through backwards."""
    steps = np.arange(len(shares), 0, -1)
    panel.bar(steps, np.array(shares), color=charts.GREY, width=0.8, label="its share of a step")
    panel.step(steps, np.cumsum(shares), color=charts.BLUE, where="mid", label="score so far")
    panel.axhline(true, color=charts.RED, linewidth=0.9, linestyle="--", label="true change")
    panel.invert_xaxis()
    panel.set_title(f"the retrace is its mirror: score {score:.4f}, truth {true:.4f}")
    panel.set_xlabel("step, the last one first")
    panel.set_ylabel("change in the validation loss")
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.legend(loc="center right")


def main() -> None:
    """Train, retrace, and draw both."""
    data, validation, model = make_data(24, 0), make_data(80, 1), Plane()
    y = data[1].clone()
    y[INSTANCE] = 1 - y[INSTANCE]  # its label is wrong
    data = (data[0], y)
    order = [torch.randperm(24, generator=torch.Generator().manual_seed(e)) for e in range(EPOCHS)]
    batches = [part.tolist() for epoch in order for part in epoch.split(BATCH)]
    with tempfile.TemporaryDirectory() as folder:
        run = dross.train(
            model,
            data,
            "cross_entropy",
            torch.optim.SGD(model.parameters(), lr=RATE),
            epochs=EPOCHS,
            batches=batches,
            path=f"{folder}/tape",
            progress=False,
        )
        query = dross.mean_loss(validation)
        score = float(run.influence(query).values[INSTANCE])
        true = float(run.leave_one_out(query, [INSTANCE])[0])
        path = np.array([weights(run.parameters(step=t)) for t in range(run.steps + 1)])
    without = [path[0]]
    for ids in batches:  # the same steps with the instance's weight at 0
        w = torch.tensor(without[-1], requires_grad=True)
        z = data[0][ids] @ w
        losses = nn.functional.cross_entropy(
            torch.stack([-z, z], 1), data[1][ids], reduction="none"
        )
        kept = torch.tensor([float(i != INSTANCE) for i in ids], dtype=torch.float64)
        (losses * kept).sum().div(len(ids)).backward()
        without.append((w - RATE * w.grad).detach().numpy())
    shares = retrace_by_hand(run, data, validation, path, batches)
    assert abs(sum(shares) - score) < 1e-12, (sum(shares), score)
    figure, (left, right) = charts.panels(2, 2, height=3.1)
    draw_paths(left, validation, path, np.array(without))
    draw_mirror(right, shares, true, score)
    charts.save_svg(charts.as_svg(figure), Path(__file__).with_name("path.svg"))
    print(f"score {score:.6f}, true change {true:.6f}, by hand {sum(shares):.6f}")


if __name__ == "__main__":
    main()
