"""Input that cannot be used, or is not what it should be, as a person meets it: by commands."""

import sys

import numpy as np
import pandas
import pytest

import dross
from cleanse.made_inputs import QUICK, small_table
from dross.cleanse.findings import describe_recommendation
from dross.cleanse.plans.known import find_vanished
from dross.cleanse.project import Project
from dross.cli.app import main
from dross.support.png import encode_png

FEW = QUICK | {"runs": 1, "epochs": 4, "verified": 2, "model": "linear"}


@pytest.fixture
def run(monkeypatch, capsys):
    """Gives a command; the exit code, and what was printed as one line."""

    def give(*words):
        monkeypatch.setattr(sys, "argv", ["dross", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, " ".join((printed.out + printed.err).split())

    return give


@pytest.fixture
def pictures(tmp_path):
    rng = np.random.default_rng(0)
    for kind in ("cat", "dog"):
        (tmp_path / "pics" / kind).mkdir(parents=True)
        for k in range(20):
            pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            (tmp_path / "pics" / kind / f"{k}.png").write_bytes(encode_png(pixels))
    return tmp_path / "pics"


OFFLINE = """
import logging
def create_model(name, **options):
    logging.getLogger("huggingface_hub").warning("Retrying in 1s [Retry 1/5].")
    raise OSError("the hub cannot be reached\\nsee the manual")
"""
BROKEN = "raise RuntimeError('operator torchvision::nms does not exist')"


@pytest.mark.parametrize(
    ("library", "error", "said"),
    [
        (
            OFFLINE,
            "DataUnavailable",
            "weights of the backbone timm:resnet18 cannot be fetched",
        ),
        (BROKEN, "BadInput", "is installed, but cannot be imported here (RuntimeError: operator"),
    ],
)
def test_a_backbone_that_cannot_be_loaded(
    run, pictures, tmp_path, monkeypatch, caplog, library, error, said
):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "timm.py").write_text(library)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    before = sorted(pictures.rglob("*"))
    words = ("clean", pictures, "--out", tmp_path / "run", "--epochs", "2")
    code, printed = run(*words, "--backbone", "timm:resnet18")
    assert code == 1 and error in printed and said in printed and "see the manual" not in printed
    assert "--backbone" in printed and not caplog.records  # nothing but the sentence
    assert sorted(pictures.rglob("*")) == before and not (tmp_path / "run/project.json").exists()


def test_features_of_the_wrong_length(run, tmp_path):
    small_table(tmp_path / "t.csv", 60)
    np.save(tmp_path / "own.npy", np.zeros((59, 3)))
    code, printed = run(
        *("clean", tmp_path / "t.csv", "--label", "kind", "--out", tmp_path / "run"),
        *("--features", tmp_path / "own.npy"),
    )
    assert code == 1 and "features of 59 instances, but the input has 60" in printed
    assert not (tmp_path / "run").exists()


def test_an_estimator_without_probabilities(run, little):
    words = ("judge", little, "--remove", 8, "--seeds", 3, "--quick")
    code, printed = run(*words, "--with", "sklearn:LinearSVC")
    assert code == 0 and "LinearSVC has no predict_proba: only its errors are compared" in printed
    assert len(Project.open(little).verdicts()) == 1


@pytest.fixture(scope="module")
def with_a_rare_class(tmp_path_factory):
    """Three instances of 'yew' among others of 'ash' and 'birch', a tenth of which are wrong."""
    folder, rng = tmp_path_factory.mktemp("rare"), np.random.default_rng(1)
    truth = np.arange(140) % 2
    x = rng.normal(0, 1, (140, 3)) + 4 * np.eye(2, 3)[truth]
    label = np.array(["ash", "birch"])[np.where(rng.random(140) < 0.1, 1 - truth, truth)]
    frame = pandas.DataFrame(x, columns=list("pqr")).assign(tree=label)
    frame.loc[:2, "tree"] = "yew"
    frame.to_csv(folder / "t.csv", index=False)
    dross.clean(folder / "t.csv", "tree", out=folder / "run", **FEW)
    return folder / "run"


def test_plans_by_which_a_class_vanishes_compete_and_are_judged(run, with_a_rare_class):
    project = Project.open(with_a_rare_class)
    instances, classes = project.instances, project.classes
    yew = instances[instances["label"] == "yew"]
    assert len(yew) == 3 and classes == ["ash", "birch", "yew"]
    largest = max(plan["size"] for plan in project.about["plans"]["tried"])
    last = int(yew["harm_rank"].max()) + 1
    assert last <= largest, "no plan that was tried takes them all"
    code, printed = run("judge", with_a_rare_class, "--remove", last, "--seeds", 3, "--quick")
    assert code == 0 and "no training instance of 'yew' is left: no model can predict it" in printed
    assert "the test part has none of it, so no figure here shows it" in printed
    instances["action"] = np.where(instances["label"] == "yew", "remove", "keep")
    said = {"m": 3, "what": "remove 3", "reason": "they are wrong"}
    _, why = describe_recommendation(project.about | {"suggested": said}, instances)
    assert "it leaves no training instance of 'yew', and no model can predict it then" in why
    instances.loc[instances["label"] == "ash", "action"] = "relabel"
    instances["prediction"] = "yew"
    _, why = describe_recommendation(project.about | {"suggested": said}, instances)
    assert "leaves no training instance of 'ash', and" in why


def test_a_class_vanishes_only_if_nothing_else_becomes_it():
    labels = pandas.Series(["ash", "ash", "yew", "birch"])
    classes = ["ash", "birch", "fir", "yew"]  # no fir was there before
    assert find_vanished(labels, np.array([2, 3]), {}, classes) == ["birch", "yew"]
    assert find_vanished(labels, np.array([2]), {0: "yew"}, classes) == []
    assert find_vanished(labels, np.array([2]), {3: "yew"}, classes) == ["birch"]
    assert find_vanished(pandas.Series(["1.5", "2"]), np.array([0]), {}, []) == []
