"""What a sharded retrace of a large model would cost: time, memory, network and disk.

    PYTHONPATH=src python benchmarks/shard_cost.py

The formulas of docs/scale.md, for AdamW in float32. GATHERED, SCATTERED and H are measured (by
benchmarks/shards.py and benchmarks/cost_model.py, on small models and a CPU); the test of this file
counts the first two again. Everything about GPUs and networks is taken from their makers' figures,
with the share of it that is reached assumed. No GPU was used.

    memory   b p / R ((1 + slots) (states + 2 Q) + 3)  +  4 b u  +  51 b L d t
    network  n (3 r + 3 + 4 Q) b p (R - 1) / R                     received by a GPU in a step
    time     6 (r + h) p T / (R F)  +  network / link
    disk     (1 + slots) b p                                       for each kept state, by all ranks

b bytes per number, p parameters, R GPUs, u numbers of the largest module, L layers of width d, t
tokens per pass, T tokens per step, n = T / (R t) passes of a rank, F operations per second, r = 1
replay of each step, h its reverse pass in training steps.
"""

from dataclasses import dataclass

from tables import make_parser, print_head, print_row

BYTES, SLOTS, STATES, REPLAYS = 4, 2, 3, 1
#: thetas that a pass receives, for one query: benchmarks/shards.py
GATHERED = {"gradient": 2, "reverse": 5}
SCATTERED = {"gradient": 1, "reverse": 2}
H = 3.4  # a reverse pass in training steps, of a Transformer: benchmarks/cost_model.py
SAVED = 51  # assumed: numbers per layer, width and token that reverse over reverse saves
GPU_MEMORY = 141e9
NODE = 8  # GPUs that share a fast link
LINKS = {"in a node": 450e9, "between nodes": 50e9}  # bytes per second and GPU
FLOPS = 40e12  # of float32, assumed to be reached


@dataclass(frozen=True)
class Model:
    """A Transformer by its size."""

    name: str
    parameters: float
    layers: int
    width: int
    words: int  # of its vocabulary: the embedding is the largest module


MODELS = (
    Model("1.7 B", 1.7e9, 28, 2048, 151_936),
    Model("8 B", 8.0e9, 32, 4096, 128_256),
    Model("70 B", 70.6e9, 80, 8192, 128_256),
)


@dataclass(frozen=True)
class Cost:
    """Of one step of a retrace, for one query."""

    tokens_per_pass: int
    memory: float  # bytes on each GPU
    received: float  # bytes by each GPU
    sending: float  # seconds
    computing: float  # seconds
    disk: float  # bytes of a kept state, of all ranks together


def messages(replays: int = REPLAYS) -> int:
    """How many thetas a rank receives in a pass over a step: replays, and the reverse pass."""
    replay = GATHERED["gradient"] + SCATTERED["gradient"]
    return replays * replay + GATHERED["reverse"] + SCATTERED["reverse"]


def cost_that_fits(model: Model, gpus: int) -> Cost:
    """The cost with the longest passes that fit into memory, of 128 to 8,192 tokens."""
    costs = [cost(model, gpus, tokens_per_pass=2**k) for k in range(13, 6, -1)]
    return next((found for found in costs if found.memory <= GPU_MEMORY), costs[-1])


def cost(model: Model, gpus: int, tokens: int = 2**19, tokens_per_pass: int = 4096) -> Cost:
    """The cost of a step.

    Arguments:
        model: its size.
        gpus: R.
        tokens: of a step, T.
        tokens_per_pass: of one pass on one GPU, t.
    """
    p, share = model.parameters, (gpus - 1) / gpus
    vectors = (1 + SLOTS) * (STATES + 2) + 3
    gathered = 4 * BYTES * model.words * model.width if gpus > 1 else BYTES * p
    activations = SAVED * BYTES * model.layers * model.width * tokens_per_pass
    passes = -(-tokens // (gpus * tokens_per_pass))
    received = passes * messages() * BYTES * p * share
    link = LINKS["in a node" if gpus <= NODE else "between nodes"]
    operations = 6 * (REPLAYS + H) * p * tokens / gpus
    return Cost(
        tokens_per_pass,
        memory=BYTES * p / gpus * vectors + gathered + activations,
        received=received,
        sending=received / link,
        computing=operations / FLOPS,
        disk=(1 + SLOTS) * BYTES * p,
    )


def main() -> None:
    """Print the table of docs/scale.md."""
    make_parser(__doc__).parse_args()
    print_head(
        "model",
        "GPUs",
        "tokens a pass",
        "memory of each, GB",
        "received by each, GB a step",
        "sending, s a step",
        "computing, s a step",
        "1,000 steps, hours",
        "a state on disk, GB",
    )
    for model in MODELS:
        for gpus in (1, 8, 64):
            found = cost_that_fits(model, gpus)
            fits = found.memory <= GPU_MEMORY
            memory = f"{found.memory / 1e9:,.0f}" + ("" if fits else " (does not fit)")
            hours = (found.sending + found.computing) * 1000 / 3600
            print_row(
                model.name,
                gpus,
                f"{found.tokens_per_pass:,}",
                memory,
                f"{found.received / 1e9:,.0f}" if fits else "-",
                f"{found.sending:,.1f}" if fits else "-",
                f"{found.computing:,.1f}" if fits else "-",
                f"{hours:,.1f}" if fits else "-",
                f"{found.disk / 1e9:,.0f}",
            )


if __name__ == "__main__":
    main()
