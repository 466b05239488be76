"""Input that cannot be used, or is not what it should be, as a person meets it: by commands."""

import sys
from dataclasses import replace

import numpy as np
import pandas
import pytest

import dross
from dross._figures import encode_png
from dross.cleaning.findings import describe_recommendation
from dross.cleaning.plans import Edits, PlanResult, Recommendation, class_effects
from dross.cleaning.project import Project
from tests.cleaning.made_inputs import QUICK, small_table

FEW = QUICK | {"repeats": 1, "epochs": 4, "check": 2, "model": "linear"}


@pytest.fixture
def images(tmp_path):
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
    ("library", "said"),
    [
        (
            OFFLINE,
            "weights of the backbone timm:resnet18 cannot be downloaded",
        ),
        (
            BROKEN,
            "is installed but cannot be imported (RuntimeError: operator",
        ),
    ],
)
def test_a_backbone_that_cannot_be_loaded(
    run, images, tmp_path, monkeypatch, caplog, library, said
):
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "timm.py").write_text(library)
    monkeypatch.syspath_prepend(tmp_path / "lib")
    monkeypatch.delitem(sys.modules, "timm", raising=False)
    before = sorted(images.rglob("*"))
    words = ("clean", images, "--out", tmp_path / "run", "--epochs", "2")
    code, printed = run(*words, "--backbone", "timm:resnet18")
    assert code == 1 and said in printed and "see the manual" not in printed
    assert "--backbone" in printed and not caplog.records  # nothing but the sentence
    assert sorted(images.rglob("*")) == before and not (tmp_path / "run/project.json").exists()


def test_features_of_the_wrong_length(run, tmp_path):
    small_table(tmp_path / "t.csv", 60)
    np.save(tmp_path / "own.npy", np.zeros((59, 3)))
    code, printed = run(
        *("clean", tmp_path / "t.csv", "--label", "kind", "--out", tmp_path / "run"),
        *("--features", tmp_path / "own.npy"),
    )
    assert code == 1 and "features for 59 instances, but the input has 60" in printed
    assert not (tmp_path / "run").exists()


def test_an_estimator_without_probabilities(run, little):
    words = ("judge", little, "--remove", 8, "--seeds", 3, "--quick")
    code, printed = run(*words, "--estimator", "sklearn:LinearSVC")
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


def test_a_removal_by_which_a_class_vanishes_is_judged_and_named(run, with_a_rare_class):
    project = Project.open(with_a_rare_class)
    instances, classes = project.table, project.classes
    yew = instances[instances["label"] == "yew"]
    assert len(yew) == 3 and classes == ["ash", "birch", "yew"]
    for plan in project.plans:  # no rule takes the last of a class
        assert all(effect.left for effect in class_effects(instances["label"].tolist(), plan))
    last = int(yew["harm_rank"].max()) + 1
    code, printed = run("judge", with_a_rare_class, "--remove", last, "--seeds", 3, "--quick")
    assert code == 0 and "no training instance of 'yew' is left: no model can predict it" in printed


def test_a_plan_by_which_a_class_vanishes_says_so(with_a_rare_class):
    project = Project.open(with_a_rare_class)
    label = project.table["label"]
    yew, ash = (label.index[label == name].tolist() for name in ("yew", "ash"))

    def words(removed, relabeled):
        plan = PlanResult(
            np.array(removed),
            dict.fromkeys(relabeled, "yew"),
            name="p",
            what="remove 3",
            figures={},
        )
        said = Recommendation([plan], "p", "recommended", "")
        info = replace(project.info, recommendation=said)
        return describe_recommendation(info, project.table)[1]

    assert "would leave no training instances of 'yew', so no model could predict it" in words(
        yew, []
    )
    assert "leave no training instances of 'ash', so" in words([], ash)
    assert "leave" not in words(yew[1:], [])


def test_a_class_vanishes_only_if_nothing_else_becomes_it():
    def vanished(removed, relabeled):
        effects = class_effects(["ash", "ash", "yew", "birch"], Edits(removed, relabeled))
        return sorted(effect.name for effect in effects if not effect.left)

    assert vanished([2, 3], {}) == ["birch", "yew"]
    assert vanished([2], {0: "yew"}) == []
    assert vanished([2], {3: "yew"}) == ["birch"]


# --- labels that say little ---


def two_classes(count, seed, apart=3.0, shift=0.0):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 2, count)
    x = rng.normal(size=(count, 4)) + shift
    x[:, 0] += apart * truth
    return x, np.array(["no", "yes"])[truth]


def swap(labels):
    return np.where(labels == "no", "yes", "no")


ODD = {
    "all training labels wrong": (swap, lambda x, y: (x, y)),
    "all validation labels wrong": (lambda y: y, lambda x, y: (x, swap(y))),
    "validation from another distribution": (lambda y: y, lambda x, y: (7 * x + 50, y[::-1])),
    "one class in the validation file": (lambda y: y, lambda x, y: (x, np.full(len(y), "no"))),
    "one of a class": (lambda y: np.where(np.arange(len(y)) == 3, "once", y), lambda x, y: (x, y)),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("labels", ["observed", "annotated"])
def test_odd_labels_end_in_a_finished_project_that_loses_nothing(tmp_path, case, labels):
    of_training, of_validation = ODD[case]
    x, y = two_classes(140, 0)
    y = of_training(y)
    validation = of_validation(*two_classes(50, 1))
    options = FEW | {"validation": validation, "labels": labels, "out": tmp_path / "run"}
    project = dross.clean(x, y, **options)
    recommendation = project.info.recommendation
    assert recommendation.reason.endswith(".") and len(recommendation.reason) > 20
    assert len(project.table) == 140 and len(project.label_table) == 50
    assert (project.folder / "report.html").exists()
    left = project.cleaned()[1] if project.recommended else y
    assert set(left) == set(y)  # no class is lost
    if case == "all training labels wrong" and project.recommended is not None:
        assert (left == swap(y)).mean() > 0.9


def test_very_many_classes(tmp_path):
    """More than the noise model keeps pairs of."""
    rng = np.random.default_rng(0)
    y = np.arange(240) % 60
    x = 4 * rng.normal(size=(60, 8))[y] + rng.normal(size=(240, 8))
    names = np.array([f"c{k:02d}" for k in range(60)], dtype=object)
    project = dross.clean(x, names[y], task="classification", out=tmp_path / "run", **FEW)
    assert len(project.classes) == 60 and np.isfinite(project.table["wrong"]).all()
    assert project.info.recommendation.state != ""


@pytest.mark.parametrize("count", [1, 3, 7])
def test_a_handful_of_validation_rows_is_refused(tmp_path, count):
    x, y = two_classes(80, 0)
    with pytest.raises(
        dross.InvalidInput, match=f"validation set has only {count} instances. Provide"
    ):
        dross.clean(x, y, validation=(x[:count], y[:count]), out=tmp_path / "run", **FEW)
    assert not (tmp_path / "run").exists()


def test_one_class_left_is_refused(tmp_path):
    """As after a filter that somebody forgot, though the other parts have more."""
    x, y = two_classes(120, 0)
    with pytest.raises(
        dross.InvalidInput, match="is 'no' in every row, so there is nothing to predict"
    ):
        dross.clean(x[y == "no"], y[y == "no"], test=(x, y), out=tmp_path / "run", **FEW)
    assert not (tmp_path / "run").exists()
