"""One thing and many."""

from dross._text import say_count


def test_one_and_many():
    assert [say_count(n, "row") for n in (0, 1, 2000)] == ["0 rows", "1 row", "2,000 rows"]
    assert say_count(1, "query", "queries") == "1 query"
    assert say_count(2, "query", "queries") == "2 queries"
