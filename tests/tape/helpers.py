"""What several tests of the tape need: recording a problem, and opening its tape again."""

import dross

KEEP_SMALL = (  # one strategy of each kind, for the short runs of the problems
    dross.tape.EveryStep(),
    dross.tape.Checkpoints(every=4),
    dross.tape.LastEpochs(2),
    dross.tape.Budget(60_000),
)


def train(p, folder, **options):
    """Record a problem without the options that the `record` fixture adds."""
    model, optimizer = p.start()
    options = {"batches": p.batches, "progress": False} | options
    return dross.train(model, (p.X, p.Y), p.loss, optimizer, path=folder, **options)


def reopen(p, tape, **changes):
    """Open a problem's tape as another process would, with some settings changed."""
    model, _ = p.start()
    options = {
        "model": model,
        "data": (p.X, p.Y),
        "loss": p.loss,
        "penalty": p.penalty,
        "progress": False,
    }
    return dross.load(tape, **(options | changes))
