"""Ways to score training instances, with one protocol: `estimator.score(run, query) -> Scores`.

The sign is that of `dross.Scores` everywhere: **the lowest scores are the ones to remove first**.
Only the first four estimate a change in the query; the others rank the instances by another
criterion, which has no relation to the size of a change.

    Retrace()                the paper's: the run retraced (epochs=1: its last epoch only)
    WithoutHessian()         the same without the Hessian term: TracIn over every step
    TracIn()                 gradients at checkpoints, one per epoch
    InfluenceFunction()      Koh and Liang: H^-1 u at the final model, by conjugate gradients,
                             LiSSA or momentum SGD
    TrainingLoss()           the loss of the instance at the final model
    Random()                 the control

`Run.scores` makes scores of numbers that were computed elsewhere. `Run.verify` and `Run.lds` compare
them with retraining.
"""

from typing import Protocol

from ..influence.query import Query
from ..influence.run import Run
from ..influence.scores import Scores
from .inverse_hessian import ConjugateGradients, InfluenceFunction, LiSSA, MomentumSGD
from .simple import Random, TrainingLoss
from .traced import Retrace, TracIn, WithoutHessian


class Estimator(Protocol):
    """The interface of every estimator."""

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance of a run.

        Arguments:
            run: the recorded run.
            query: the query whose change is estimated, such as `dross.mean_loss(validation)`.

        Returns:
            Scores with `values` float64 [N], or [Q, N] for a query with Q numbers; the lowest are
            the ones to remove first, and those of instances that were never used are nan.

        Raises:
            NotSupported: for a model or an optimizer that the estimator cannot use.
            DrossError: as `Run.influence` does.
        """
        ...


__all__ = [
    "ConjugateGradients",
    "Estimator",
    "InfluenceFunction",
    "LiSSA",
    "MomentumSGD",
    "Random",
    "Retrace",
    "TracIn",
    "TrainingLoss",
    "WithoutHessian",
]
