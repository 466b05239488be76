"""No bit of any result changes by accident: digests.json says what was computed before."""

import json

import pytest

from tests.regression import digests

LISTED = json.loads(digests.LIST.read_text())
CASES = digests.cases()


def test_every_case_is_listed():
    assert set(CASES) == set(LISTED["cases"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", list(LISTED["cases"]))
def test_the_same_bits_as_before(name):
    same_machine = LISTED["machine"] == digests.machine()
    found = digests.compute(name, CASES[name])
    assert not list(digests.differences(name, found, LISTED["cases"][name], same_machine))
