"""HTML from the templates beside this file. Everything that comes from data is escaped."""

from functools import cache
from typing import Any

from ..errors import BadInput


@cache
def _environment() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise BadInput(
            "Pages need Jinja2: pip install jinja2. The results themselves are kept."
        ) from None
    return Environment(
        loader=PackageLoader("dross.support"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, **values: Any) -> str:
    return _environment().get_template(template).render(**values)


def safe(markup: str) -> Any:
    """Markup of our own making, not to be escaped."""
    from markupsafe import Markup

    return Markup(markup)
