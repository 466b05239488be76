"""Ways to score training instances, with one protocol: `estimator.score(run, query) -> Scores`.

The sign is that of `dross.Scores` everywhere: **the lowest scores are the ones to remove first**.
Only the first four estimate a change of the query; the others order the instances by a suspicion of
their own, which says nothing about the size of a change.

    Retrace()                the paper's: the run retraced (epochs=1: its last epoch only)
    WithoutHessian()         the same without the Hessian term: TracIn over every step
    TracIn()                 gradients at checkpoints, one per epoch
    InfluenceFunction()      Koh and Liang: H^-1 u at the final model, by conjugate gradients,
                             LiSSA or momentum SGD
    Autoencoder()            reconstruction error of an autoencoder trained on the query's data
                             (the paper's baseline)
    IsolationForest()        on the model's last features, fitted on the query's data
                             (the paper's baseline)
    LocalOutlierFactor(), OneClassSVM()    likewise
    TrainingLoss()           the loss of the instance at the final model
    Random()                 the control
"""

from typing import Protocol

from .._checks import check_name
from ..influence.query import Query
from ..influence.run import Run
from ..influence.scores import Scores
from .inverse_hessian import ConjugateGradients, InfluenceFunction, LiSSA, MomentumSGD
from .outliers import (
    Autoencoder,
    IsolationForest,
    LocalOutlierFactor,
    OneClassSVM,
    Random,
    TrainingLoss,
)
from .traced import Retrace, TracIn, WithoutHessian, without_hessian


class Estimator(Protocol):
    """What every estimator offers. Each class describes what is special about it."""

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance of a run.

        Arguments:
            run: the recorded run.
            query: what is asked, such as `dross.mean_loss(validation)`.

        Returns:
            Scores with `values` float64 [N], or [Q, N] for a query with Q numbers; the lowest are
            the ones to remove first.

        Raises:
            InvalidInput: for a query without data, where the estimator compares with the query's data.
            NotSupported: for a model or an optimizer that the estimator cannot use.
            DrossError: as `Run.influence` does.
        """
        ...


#: the names under which the command line knows them
NAMED: dict[str, Estimator] = {
    "retrace": Retrace(),
    "last-epoch": Retrace(epochs=1),
    "no-hessian": WithoutHessian(),
    "no-hessian-last-epoch": WithoutHessian(epochs=1),
    "tracin": TracIn(),
    "influence-function": InfluenceFunction(),
    "autoencoder": Autoencoder(),
    "isolation-forest": IsolationForest(),
    "local-outlier-factor": LocalOutlierFactor(),
    "one-class-svm": OneClassSVM(),
    "loss": TrainingLoss(),
    "random": Random(),
}


def named(name: str) -> Estimator:
    """The estimator that the command line knows under this name.

    Arguments:
        name: one of `dross.estimators.NAMED`.

    Returns:
        The estimator with its default settings.

    Raises:
        InvalidInput: there is no such name; the message suggests the nearest one.
    """
    return NAMED[check_name("method", name, NAMED)]


__all__ = [
    "NAMED",
    "Autoencoder",
    "ConjugateGradients",
    "Estimator",
    "InfluenceFunction",
    "IsolationForest",
    "LiSSA",
    "LocalOutlierFactor",
    "MomentumSGD",
    "OneClassSVM",
    "Random",
    "Retrace",
    "TracIn",
    "TrainingLoss",
    "WithoutHessian",
    "named",
    "without_hessian",
]
