"""A plan of a retrace: how it will be computed, and the time, memory and disk that it takes."""

from dataclasses import dataclass

from ..support.counts import say_count


@dataclass(frozen=True)
class RetracePlan:
    """What a retrace takes, known from one measured step. Made by `Run.plan`.

        print(run.plan(query))
        run.plan(query).seconds

    Times and the bytes of passes are measured at the first step of the window. Everything else is
    counted: which steps are taken again, how many states are held, what is read.
    """

    device: str
    queries: int  # that are asked
    steps: int  # that are retraced
    taken_again: int  # gradients that are computed for it, a step as often as it is taken
    repetitions: int  # how often one step is taken again at most
    kept_states: int  # that the tape has of these steps
    states_at_once: int  # that are held at a time, with the gradients that go with them
    state_bytes: int  # one of them
    gradient_bytes_kept: int  # with each state, where the optimizer's derivative needs it
    adjoint_bytes: int  # of all queries
    score_bytes: int  # 8 per query, epoch and instance
    batch: int  # instances of the measured micro-batch
    rows_at_once: int  # of them in one reverse pass
    queries_at_once: int  # in one reverse pass
    step_seconds: float  # taking the measured step again
    reverse_seconds: float  # its reverse step, for all queries
    work: float  # that of an average step, in measured steps
    pass_bytes: int  # the most that one of the two passes holds
    counted: bool  # pass_bytes were counted from its tensors, not measured by an allocator
    disk_bytes: int  # that are read
    read_seconds: float

    @property
    def seconds(self) -> float:
        """How long the retrace takes."""
        passes = self.taken_again * self.step_seconds + self.steps * self.reverse_seconds
        return self.work * passes + self.read_seconds

    @property
    def training_steps(self) -> float:
        """The same, as a multiple of the time in which a replay would take these steps once."""
        training = self.work * self.steps * self.step_seconds
        return self.seconds / training if training > 0 else 0.0

    @property
    def limits(self) -> tuple[int, int | None]:
        """How many queries, and how many instances of a batch, a pull takes at once."""
        return self.queries_at_once, None if self.rows_at_once == self.batch else self.rows_at_once

    @property
    def states_bytes(self) -> int:
        """All states that are held at a time, and the gradients with them."""
        return self.states_at_once * (self.state_bytes + self.gradient_bytes_kept)

    @property
    def peak_bytes(self) -> int:
        """The most that is held at a time, besides the model and the training data."""
        return self.states_bytes + self.adjoint_bytes + self.score_bytes + self.pass_bytes

    def __str__(self) -> str:
        again = f"{self.taken_again:,} taken again"
        if self.repetitions > 1:
            again += f", each up to {self.repetitions} times"
        how = "counted" if self.counted else "measured"
        cut = f"{self.rows_at_once} of {self.batch} instances"
        queries = say_count(self.queries, "query", "queries")
        together = f"{self.queries_at_once} of {queries}"
        state = say_count(self.states_at_once, "state")
        return "\n".join(
            [
                f"A retrace of {say_count(self.steps, 'step')} for {queries} on {self.device}",
                f"  time    about {_time(self.seconds)}, {self.training_steps:.1f} times as long "
                "as training",
                f"          reverse step {_time(self.reverse_seconds)}, "
                f"step {_time(self.step_seconds)}; {again}",
                f"  memory  about {_size(self.peak_bytes)} besides the model and the data",
                f"          {state} {_size(self.states_bytes)}, adjoints "
                f"{_size(self.adjoint_bytes)}, passes {_size(self.pass_bytes)} ({how}),",
                f"          scores {_size(self.score_bytes)}",
                f"  passes  {cut} and {together} at once",
                f"  disk    {_size(self.disk_bytes)} to read; the tape has "
                f"{say_count(self.kept_states, 'state')} of {_size(self.state_bytes)}",
            ]
        )

    def __repr__(self) -> str:
        return (
            f"<RetracePlan: {say_count(self.steps, 'step')}, "
            f"{say_count(self.queries, 'query', 'queries')}, about {_time(self.seconds)}, "
            f"{_size(self.peak_bytes)}>"
        )


def _size(count: int) -> str:
    """Bytes as a person reads them, in powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def _time(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"
