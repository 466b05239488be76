"""Images with many shades, broken ones, folders that are links, and what is left out."""

import io
import os
import random
import tracemalloc

import numpy as np
import pandas
import pytest
import torch
from PIL import ExifTags, Image, features
from PIL.PngImagePlugin import PngInfo

from dross.cleaning import images
from dross.cleaning.duplicates import find_copies
from dross.cleaning.images import ImageEncoder
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.modality import RowEdits
from dross.errors import InvalidInput
from tests.fuzz.mutate import damage


def write_set(folder, make, suffix=".png", count=30, classes=("cat", "dog")):
    """A folder per class; make(rng, class number) gives the pixels of an image."""
    rng = np.random.default_rng(0)
    for number, kind in enumerate(classes):
        (folder / kind).mkdir(parents=True)
        for k in range(count):
            Image.fromarray(make(rng, number)).save(folder / kind / f"{k}{suffix}")
    return folder


def plain(rng, number):
    return rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)


def deep(rng, number):
    return rng.integers(0, 1 << 16, (8, 8), dtype=np.uint16)


@pytest.mark.parametrize("suffix", [".png", ".tif"])
def test_sixteen_bits_are_scaled_not_cut_off(tmp_path, suffix):
    write_set(tmp_path / "p", deep, suffix)
    prepared = prepare(Request(str(tmp_path / "p")))
    assert prepared.shape == (1, 8, 8)
    pixels = np.stack(
        [np.asarray(Image.open(tmp_path / "p" / n)) for n in prepared.part("train").names]
    )
    expected = (pixels - pixels.mean()) / pixels.std(ddof=1)
    np.testing.assert_allclose(prepared.x["train"][:, 0].numpy(), expected, atol=1e-4)


def test_large_images_of_sixteen_bits_are_resized_without_rounding(tmp_path):
    faint = lambda rng, number: np.full((64, 48), 1000 + number, dtype=np.uint16)
    write_set(tmp_path / "p", faint)
    x = prepare(Request(str(tmp_path / "p"))).x["train"]
    assert x.shape[1:] == (1, 32, 32) and len(x.unique()) == 2  # one shade of 65536 apart


def test_floating_shades_between_0_and_1_are_scaled_and_others_refused(tmp_path):
    write_set(tmp_path / "p", lambda rng, _: rng.random((8, 8), dtype=np.float32), ".tif")
    x = prepare(Request(str(tmp_path / "p"))).x["train"]
    assert 0.9 < float(x.std()) < 1.1 and len(x.unique()) > 1000
    write_set(tmp_path / "q", lambda rng, _: 90 * rng.random((8, 8), dtype=np.float32), ".tif")
    with pytest.raises(
        InvalidInput, match=r"0\.tif has pixel values from .* to (8|9).*from 0 .black. to 1 "
    ):
        prepare(Request(str(tmp_path / "q")))


def test_thumbnails_show_what_is_learnt(tmp_path):
    shades = np.arange(64, dtype=np.uint16).reshape(8, 8) * 1040
    Image.fromarray(shades).save(tmp_path / "deep.png")
    shown = images.load_thumbnail(tmp_path / "deep.png")
    assert shown.dtype == np.uint8 and shown.shape == (8, 8, 3)
    np.testing.assert_allclose(shown[..., 0], shades / 257, atol=0.51)


def turned_by(orientation):
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    return exif


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".tif", ".webp"])
def test_the_exif_orientation_is_applied(tmp_path, suffix):
    """The same bytes of pixels, once as they are and once with the mark of a turned camera."""
    stored = Image.fromarray(plain(np.random.default_rng(0), 0)).resize((24, 16))
    stored.save(tmp_path / f"plain{suffix}")
    pixels = np.asarray(images.load_image(tmp_path / f"plain{suffix}"))
    expected = {1: pixels, 2: pixels[:, ::-1], 3: np.rot90(pixels, 2), 4: pixels[::-1]}
    expected |= {5: np.swapaxes(pixels, 0, 1), 6: np.rot90(pixels, -1), 8: np.rot90(pixels)}
    expected[7] = np.rot90(expected[5], 2)
    for orientation, upright in expected.items():
        path = tmp_path / f"{orientation}{suffix}"
        stored.save(path, exif=turned_by(orientation))
        np.testing.assert_array_equal(images.load_image(path), upright, f"{orientation}")


def test_a_turned_image_and_its_upright_twin_are_copies_that_keep_their_bytes(tmp_path):
    folder = write_set(tmp_path / "p", lambda rng, _: plain(rng, 0)[:, :6], count=24)
    upright = np.asarray(Image.open(folder / "cat" / "0.png"))
    turned = folder / "dog" / "turned.png"
    Image.fromarray(np.rot90(upright)).save(turned, exif=turned_by(6))
    stored = turned.read_bytes()
    prepared = prepare(Request(str(folder)))
    learned = ImageEncoder(prepared.source.content, folder)
    both = learned(pandas.DataFrame({"path": ["cat/0.png", "dog/turned.png"]}))
    assert torch.equal(both[0], both[1])
    shown = images.load_thumbnail(turned)
    np.testing.assert_array_equal(shown, images.load_thumbnail(folder / "cat" / "0.png"))
    copies, _ = find_copies(prepared, progress=False)
    assert set(copies.table["source"]) == {"cat/0.png", "dog/turned.png"}
    images.copy_images(folder, tmp_path / "copy", RowEdits(), confirm=lambda digest: None)
    assert (tmp_path / "copy" / "dog" / "turned.png").read_bytes() == stored


def test_damaged_exif_data_leave_the_image_as_it_is_stored(tmp_path):
    text = PngInfo()
    text.add_text("Raw profile type exif", "\nexif\n   4\nnot hexadecimal")
    Image.new("RGB", (16, 8)).save(tmp_path / "a.png", pnginfo=text)
    assert images.load_image(tmp_path / "a.png").size == (16, 8)


def test_images_that_are_all_the_same_are_noticed(tmp_path):
    write_set(tmp_path / "p", lambda rng, _: np.full((8, 8, 3), 255, dtype=np.uint8))
    with pytest.raises(InvalidInput, match="are identical, so there is nothing to learn"):
        prepare(Request(str(tmp_path / "p")))


def test_a_class_that_is_a_link_is_read(tmp_path):
    folder = write_set(tmp_path / "p", plain)
    (folder / "dog").rename(tmp_path / "elsewhere")
    (folder / "dog").symlink_to(tmp_path / "elsewhere")
    prepared = prepare(Request(str(folder)))
    assert prepared.source.classes == ["cat", "dog"] and len(prepared.source) == 60
    assert len(images.list_images(folder)) == 60  # what export copies


@pytest.mark.parametrize("target", [".", "cat"])
def test_a_folder_that_is_reached_twice_is_refused(tmp_path, target):
    folder = write_set(tmp_path / "p", plain)
    (folder / "again").symlink_to(folder / target)
    with pytest.raises(InvalidInput, match="are the same folder, reached through a link"):
        prepare(Request(str(folder)))


def test_what_is_left_out_is_said(tmp_path):
    folder = write_set(tmp_path / "p", plain)
    (folder / "bird").mkdir()
    (folder / "bird" / "1.heic").write_bytes(b"x")
    (folder / "fish").symlink_to(tmp_path / "nowhere")
    (folder / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    told = " ".join(prepare(Request(str(folder))).notes)
    assert "2 files are not images and are left out: bird/1.heic, fish." in told
    assert "These folders contain no images, so they are not classes: bird." in told
    assert "1 image cannot be opened and is left out: cat/gone.png." in told
    (folder / "fish").unlink()
    told = " ".join(prepare(Request(str(folder))).notes)
    assert "1 file is not an image and is left out: bird/1.heic." in told


def test_only_the_formats_of_the_suffixes_are_read(tmp_path):
    """Pillow knows others too, by their first bytes; for EPS it starts another program."""
    (tmp_path / "a.png").write_bytes(b"P6 2 2 255\n" + bytes(12))
    assert images._open(tmp_path / "a.png") is None


@pytest.mark.skipif("avif" not in features.get_supported(), reason="Pillow was built without AVIF")
def test_a_broken_avif_named_png_is_a_broken_image(tmp_path):
    stream, path = io.BytesIO(), tmp_path / "a.png"
    Image.fromarray(plain(np.random.default_rng(0), 0)).resize((16, 16)).save(stream, "AVIF")
    for seed in range(300):
        path.write_bytes(damage(stream.getvalue(), random.Random(seed)))
        assert images._open(path) is None


def test_a_pipe_among_the_images_does_not_hold_anybody_up(tmp_path):
    folder = write_set(tmp_path / "p", plain)
    os.mkfifo(folder / "cat" / "pipe.png")
    assert "cat/pipe.png" in " ".join(prepare(Request(str(folder))).notes)


def test_names_that_are_not_utf8_are_refused_with_the_name(tmp_path):
    folder = write_set(tmp_path / "p", plain)
    os.rename(folder / "cat" / "1.png", os.fsencode(folder / "cat") + b"/caf\xe9.png")
    with pytest.raises(InvalidInput, match=r"caf\\xe9\.png is not UTF-8"):
        prepare(Request(str(folder)))


def test_the_number_of_threads_changes_nothing(tmp_path):
    shades = np.random.default_rng(1).integers(0, 256, (300, 32, 32), dtype=np.uint8)
    np.save(tmp_path / "data.npy", shades)
    content = pandas.DataFrame({"path": [f"data.npy/{k}" for k in range(len(shades))]})
    encoded, used = [], torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            encoded.append(ImageEncoder(content, tmp_path)(content[:9]))
    finally:
        torch.set_num_threads(used)
    assert torch.equal(encoded[0], encoded[1]) and torch.equal(encoded[0], encoded[2])


def test_photographs_are_looked_at_one_by_one(tmp_path):
    """Two hundred photographs of 24 megapixels would take 14 GB."""
    for k in range(40):
        Image.new("RGB", (800, 800), (k, 0, 0)).save(tmp_path / f"{k}.png")
    content = pandas.DataFrame({"path": [f"{k}.png" for k in range(40)]})
    tracemalloc.start()
    encoder = ImageEncoder(content, tmp_path)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10 * 800 * 800 * 3 and encoder.shortest_side == 800
