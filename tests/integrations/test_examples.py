"""The examples run as they stand and print what their docstrings say."""

import importlib.util
import re
import warnings
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
NEEDS = {
    "transformers_trainer": "transformers",
    "lightning_images": "lightning",
    "accelerate_loop": "accelerate",
}


@pytest.mark.parametrize("name", NEEDS)
def test_an_example(name, capsys, monkeypatch):
    pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    import torch

    threads = torch.get_num_threads()
    spec.loader.exec_module(module)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what the libraries say of small loaders
            module.main()
    finally:
        torch.set_num_threads(threads)
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("{")]
    assert lines[0].strip() in module.__doc__
    hits, asked = map(int, re.match(r"(\d+) of the (\d+) most harmful", lines[-1]).groups())
    assert asked == 30 and hits >= 20  # another machine rounds otherwise
    assert re.search(r"\d+ of the 30 most harmful", module.__doc__)
