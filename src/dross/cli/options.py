"""Options that several commands share, and the long ones of `dross clean`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

ProjectFolder = Annotated[Path, Argument(help="A folder created by dross clean.")]

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
COMPARE_EXAMPLES = (
    "dross compare before.csv after.csv --label income",
    "dross compare before.csv after.csv --label income --test test.csv --key customer",
    "dross compare before.csv after.csv --label income --fail-if-worse --json",
)
# headings under which `dross clean --help` groups its options
_INPUT = "How to read the data"
_TRAINING = "What to train"
_OUTPUT = "Output"

Data = Annotated[
    str,
    Argument(
        metavar="DATA",
        help="A table (CSV, TSV, Excel, JSON Lines, Parquet, Feather; a file or a URL), a folder of "
        "images with one folder per class, or module:function.",
    ),
]
Label = Annotated[
    str | None, Option(metavar="COLUMN", help="The column to predict.", rich_help_panel=_INPUT)
]
TextColumn = Annotated[
    str | None,
    Option(
        "--text",
        metavar="COLUMN",
        help="The column with the text to learn from.",
        rich_help_panel=_INPUT,
    ),
]
ImageColumn = Annotated[
    str | None,
    Option(
        "--images",
        metavar="COLUMN",
        help="The column with the paths of the images.",
        rich_help_panel=_INPUT,
    ),
]
Validation = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="Your own validation set. It is left unchanged, and plans are evaluated on it.",
        rich_help_panel=_INPUT,
    ),
]
Test = Annotated[
    str | None,
    Option(
        metavar="FILE",
        help="A test set for dross judge. dross clean only looks for duplicates in it.",
        rich_help_panel=_INPUT,
    ),
]
Task = Annotated[
    str | None,
    Option(
        metavar="TASK",
        help="classification or regression. Default: inferred from the label.",
        rich_help_panel=_INPUT,
    ),
]
Column = Annotated[
    list[str] | None,
    Option(
        metavar="NAME=KIND",
        help="The kind of a column: number, category, date, text or ignore. Columns of the last "
        "two kinds are not used for training. May be repeated.",
        rich_help_panel=_INPUT,
    ),
]
Group = Annotated[
    str | None,
    Option(
        metavar="COLUMN",
        help="Rows with the same value belong together, such as all rows of one customer: they are "
        "held out together. The column is not used for training.",
        rich_help_panel=_INPUT,
    ),
]
Time = Annotated[
    str | None,
    Option(
        metavar="COLUMN",
        help="A column with dates or numbers: the newest fifth of the rows becomes the test set.",
        rich_help_panel=_INPUT,
    ),
]
Separator = Annotated[
    str | None,
    Option(
        metavar="CHARACTER",
        help="The separator of a CSV file: one character, or tab. Default: detected.",
        rich_help_panel=_INPUT,
    ),
]
Missing = Annotated[
    list[str] | None,
    Option(
        "--na",
        metavar="TEXT",
        help="A cell value to treat as missing, instead of ?, NA, N/A, nan, null, None and -. Empty "
        "cells are always missing. May be repeated.",
        rich_help_panel=_INPUT,
    ),
]
Sheet = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="The sheet of an Excel workbook. Default: the first.",
        rich_help_panel=_INPUT,
    ),
]
Features = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Your own features to learn from: a .npy or Parquet file with one row per instance, in "
        "the order of the input (images: sorted by path), then the rows for --validation and those "
        "for --test.",
        rich_help_panel=_TRAINING,
    ),
]
Backbone = Annotated[
    str | None,
    Option(
        metavar="NAME",
        help="A pretrained model for images (efficientnet-lite0, timm:NAME, torchvision:NAME, "
        "transformers:NAME) or texts (wordllama, sentence-transformers:NAME), or none. Default: "
        "one that is installed, if it lowers the held-out loss.",
        rich_help_panel=_TRAINING,
    ),
]
Model = Annotated[
    str | None,
    Option(
        metavar="MODEL",
        help="linear, mlp, cnn, or a module:function that builds a torch model. Default: the one "
        "with the lowest held-out loss.",
        rich_help_panel=_TRAINING,
    ),
]
Labels = Annotated[
    str | None,
    Option(
        metavar="KIND",
        help="annotated: annotators assigned the labels, and careful annotators would nearly "
        "always agree. observed: labels record what happened, and identical instances can have different labels. "
        "Default: annotated for images and texts, observed otherwise.",
        rich_help_panel=_INPUT,
    ),
]
Repeats = Annotated[
    int,
    Option(
        min=1,
        metavar="N",
        help="The number of recorded runs to average the scores over.",
        rich_help_panel=_TRAINING,
    ),
]
Rate = Annotated[
    float | None,
    Option(
        "--lr",
        metavar="RATE",
        help="The learning rate. Default: found by a search.",
        rich_help_panel=_TRAINING,
    ),
]
Epochs = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="The number of epochs. Default: found by a search.",
        rich_help_panel=_TRAINING,
    ),
]
BatchSize = Annotated[
    int | None,
    Option(
        min=1,
        metavar="N",
        help="The number of instances per training step. Default: depends on the size of the data.",
        rich_help_panel=_TRAINING,
    ),
]
Check = Annotated[
    int,
    Option(
        min=1,
        metavar="N",
        help="Check the scores of the N most harmful and of N other instances by retraining.",
        rich_help_panel=_TRAINING,
    ),
]
ValidationIsClean = Annotated[
    bool,
    Option(
        "--validation-is-clean",
        help="Trust every label of --validation.",
        rich_help_panel=_INPUT,
    ),
]
Seed = Annotated[
    int, Option(min=0, metavar="N", help="The random seed.", rich_help_panel=_TRAINING)
]
Device = Annotated[
    str | None,
    Option(
        metavar="DEVICE",
        help="Where to compute features and train models: cpu, cuda or mps. Default: a CUDA GPU if "
        "there is one, otherwise the CPU.",
        rich_help_panel=_TRAINING,
    ),
]
Out = Annotated[
    Path | None,
    Option(
        metavar="FOLDER",
        help="The folder for the results. Default: runs/NAME.",
        rich_help_panel=_OUTPUT,
    ),
]
Overwrite = Annotated[
    bool,
    Option(
        "--overwrite",
        help="Replace the files that dross wrote to the folder; other files are kept.",
        rich_help_panel=_OUTPUT,
    ),
]
Quiet = Annotated[
    bool,
    Option(
        "--quiet",
        "-q",
        help="Print only errors, and the result if --json is set.",
        rich_help_panel=_OUTPUT,
    ),
]
Json = Annotated[
    bool,
    Option(
        "--json",
        help="Print the result as one JSON object to stdout, and everything else to stderr.",
        rich_help_panel=_OUTPUT,
    ),
]
PlanName = Annotated[
    str | None,
    Option(
        "--plan",
        metavar="NAME",
        help="A plan from the table in the report, such as wrong-50, instead of the recommended "
        "one.",
    ),
]
TrustCode = Annotated[
    list[str] | None,
    Option(
        metavar="MODULE:FUNCTION",
        help="Code that the project was made with and that dross may run. May be repeated.",
    ),
]
Estimator = Annotated[
    str | None,
    Option(
        "--estimator",
        metavar="MODEL",
        help="Your own model to judge with: sklearn:NAME for a scikit-learn class, or a "
        "module:function that returns an estimator.",
    ),
]
Seeds = Annotated[int | None, Option(metavar="N", help="The number of fresh seeds. Default: 10.")]
Quick = Annotated[bool, Option("--quick", help="Use fewer seeds, for a first impression.")]
Jobs = Annotated[int, Option(min=1, metavar="N", help="The number of processes to train in.")]
