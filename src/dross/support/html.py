"""HTML pages from the templates beside this file; every value is escaped unless marked safe."""

from functools import cache
from typing import Any

from ..errors import InvalidInput
from .printable import printable


@cache
def _environment() -> Any:
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError:
        raise InvalidInput(
            "Pages need Jinja2: pip install jinja2. The results themselves are kept."
        ) from None
    return Environment(
        loader=PackageLoader("dross.support"),
        autoescape=True,
        finalize=_show,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _show(value: Any) -> Any:
    """Control characters in data are shown, not sent; what dross made itself stays as it is."""
    return printable(value) if type(value) is str else value


def render(template: str, **values: Any) -> str:
    """Fill in a template of templates/; a value that the template needs and lacks is an error."""
    return _environment().get_template(template).render(**values)


def safe(markup: str) -> Any:
    """Mark HTML or SVG that dross itself made, so that `render` does not escape it."""
    from markupsafe import Markup

    return Markup(markup)
