"""Experiment trackers, for `dross.track`. What they need is imported when one is made.

    with SummaryWriter("runs/board") as writer, dross.track(TensorBoard(writer)):
        scores = run.influence(query)

Anything else that has a method `log(values, step)` is a tracker as well.
"""

from typing import Any

from ..errors import InvalidInput


class TensorBoard:
    """Writes numbers with a SummaryWriter of torch.utils.tensorboard.

    Arguments:
        writer: the caller's own, to be closed by the caller.

    Raises:
        InvalidInput: it is not such a writer.
    """

    def __init__(self, writer: Any):
        if not callable(getattr(writer, "add_scalar", None)):
            raise InvalidInput(
                f"TensorBoard takes a SummaryWriter, not {type(writer).__name__}: from "
                'torch.utils.tensorboard import SummaryWriter (pip install "dross[tensorboard]").'
            )
        self.writer = writer

    def log(self, values: dict[str, float], step: int) -> None:
        """Write each as a scalar."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)


class MLflow:
    """Logs numbers as metrics of MLflow's active run; where there is none, MLflow starts one.

    Raises:
        InvalidInput: MLflow is not installed.
    """

    def __init__(self):
        try:
            import mlflow  # type: ignore[import-not-found]
        except ImportError:
            raise InvalidInput('MLflow is not installed: pip install "dross[mlflow]".') from None
        self._log_metrics = mlflow.log_metrics

    def log(self, values: dict[str, float], step: int) -> None:
        """Log them all at once."""
        self._log_metrics(values, step=step)
