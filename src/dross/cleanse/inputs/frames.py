"""pandas, imported when it is needed and typed as Any: its own types say less than they cost to satisfy."""

from typing import Any

Frame = Any  # a pandas.DataFrame
Series = Any  # a pandas.Series


def library() -> Any:
    import pandas

    return pandas
