"""The retrace without its Hessian term: the sum over all steps of eta_t/|S_t| <u, g(z_j; theta_t)> with u never updated.

This is TracIn taken over every step. It costs less and ignores how later steps react to the instance's absence.
"""

from ..queries import Query, as_query
from ..retrace import retrace
from ..run import Run
from ..scores import Scores


def without_hessian(run: Run, query: Query, *, epochs: int | None = None) -> Scores:
    """Scores with the same sign and scale as `run.influence`."""
    return retrace(run.recording, as_query(query), epochs=epochs, hessian=False, progress=run.progress)
