"""Numbers of things: `1 row`, `2 rows`."""


def say_count(number: int, one: str, many: str = "") -> str:
    """How many there are, with the words that follow a 1 or any other number.

    say_count(2, "row")                                `2 rows`
    say_count(1, "row is empty", "rows are empty")     `1 row is empty`

    Arguments:
        number: Of them.
        one: What follows a 1.
        many: What follows any other number; by default `one` and an s.
    """
    return f"{number:,} {one if number == 1 else many or f'{one}s'}"
