"""A misspelt name gets a hint."""

import pytest

from dross._checks import check_name
from dross.errors import InvalidInput


def test_a_known_name_is_returned():
    assert check_name("model", "mlp", ["linear", "mlp"]) == "mlp"


@pytest.mark.parametrize(
    ("name", "hint"), [("linaer", " Did you mean 'linear'?"), ("transformer", "")]
)
def test_an_unknown_name_is_refused_with_the_closest_and_all_names(name, hint):
    expected = f"There is no model named '{name}'.{hint} The names are: linear, mlp."
    with pytest.raises(InvalidInput) as caught:
        check_name("model", name, iter(["linear", "mlp"]))
    assert str(caught.value) == expected
