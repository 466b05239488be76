"""Options that several commands share, and the long ones of `dross clean`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

ProjectFolder = Annotated[Path, Argument(help="A folder that dross clean made.")]

CLEAN_EXAMPLES = (
    "dross clean people.csv --label income",
    "dross clean reviews.tsv --text review --label stars",
    "dross clean images/ --backbone timm:resnet50",
    "dross clean images/ --features embeddings.npy",
    "dross clean mydata:load --model mydata:network",
)
CHATS_EXAMPLES = (
    "dross clean-chats chats.jsonl --model HuggingFaceTB/SmolLM2-135M-Instruct --lora 16",
)
JUDGE_EXAMPLES = (
    "dross judge runs/people",
    "dross judge runs/people --remove 50 --estimator sklearn:HistGradientBoostingClassifier",
    "dross judge runs/people --estimator mymodels:pipeline",
)
Data = Annotated[
    str,
    Argument(
        help="A CSV, TSV or Parquet file, a folder of images with one folder per class, "
        "or module:function."
    ),
]
Validation = Annotated[
    str | None,
    Option(
        help="Validation data of your own; they stay as they are. Plans are measured on them, too."
    ),
]
Test = Annotated[
    str | None,
    Option(help="Test data of your own, for dross judge; dross clean looks for copies in them."),
]
Task = Annotated[
    str | None, Option(help="classification or regression; otherwise inferred from the label.")
]
Column = Annotated[
    list[str] | None,
    Option(
        help="What a column holds: NAME=number, category, date, text or ignore. The last two are "
        "not learned. May be repeated."
    ),
]
Separator = Annotated[
    str | None, Option(help="Between the cells of a CSV file: one character, or tab.")
]
Missing = Annotated[
    list[str] | None,
    Option(
        "--na",
        help="A cell that counts as missing, instead of ?, NA, N/A, nan, null, None and -. May be "
        "repeated. Empty cells always count.",
    ),
]
Features = Annotated[
    Path | None,
    Option(
        help="Your own features to learn from, .npy or Parquet with a row per instance, in the "
        "order of the input (images: sorted by path), then of --validation and --test."
    ),
]
Backbone = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="The pretrained model that looks at images (efficientnet-lite0, timm:NAME, "
        "torchvision:NAME, transformers:NAME) or texts (wordllama, sentence-transformers:NAME), "
        "or none. Default: what is installed, if it helps.",
    ),
]
Model = Annotated[
    str | None,
    Option(
        help="linear, mlp, cnn, or module:function that builds a torch model. Default: what "
        "does better on held-out instances."
    ),
]
Labels = Annotated[
    str | None,
    Option(
        metavar="KIND",
        help="annotated: somebody judged each instance, and careful people would nearly always "
        "agree. observed: labels are what happened, and equal instances can differ. Default: "
        "annotated for images and texts, observed otherwise.",
    ),
]
Check = Annotated[
    int,
    Option(
        min=1,
        help="How many of the most harmful instances, and how many others, to check by retraining.",
    ),
]
Seed = Annotated[int, Option(min=0, help="The seed of everything random.")]
Device = Annotated[
    str | None,
    Option(
        help="Where to compute features and train models: cpu, cuda or mps. Default: a CUDA "
        "GPU if there is one, otherwise the CPU."
    ),
]
Out = Annotated[Path | None, Option(help="The folder for what is found. Default: runs/NAME.")]
Overwrite = Annotated[
    bool,
    Option("--overwrite", help="Replace what dross wrote into the folder; other files stay."),
]
Quiet = Annotated[
    bool, Option("--quiet", "-q", help="Print nothing but errors, and what --json asks for.")
]
Json = Annotated[
    bool,
    Option("--json", help="Print the result as one JSON object; everything else goes to stderr."),
]
PlanName = Annotated[
    str | None,
    Option(
        "--plan",
        help="A plan from the report's table instead of the recommended one, such as wrong-50.",
    ),
]
TrustCode = Annotated[
    list[str] | None,
    Option(
        metavar="MODULE:FUNCTION",
        help="Code that the project was made with and that may be run. May be repeated.",
    ),
]
Estimator = Annotated[
    str | None,
    Option(
        "--estimator",
        metavar="MODEL",
        help="The model that judges: sklearn:NAME, a class of scikit-learn, or module:function "
        "that returns an estimator.",
    ),
]
