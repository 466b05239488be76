"""What to install where a package is missing: the engine runs with torch, numpy and safetensors."""

from importlib.util import find_spec

from ..errors import InvalidInput

TABLES = ("pandas", "pyarrow", "sklearn", "scipy", "joblib")  # what cleaning needs
_PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow"}  # where a module has another name


def check_installed(what: str, *modules: str) -> None:
    """Refuse to begin what needs packages that are not installed.

    Arguments:
        what: what needs them, as the beginning of a sentence.
        modules: their names as modules.

    Raises:
        InvalidInput: with their names as packages, and the command that installs them.
    """
    missing = [name for name in modules if find_spec(name) is None]
    if missing:
        raise InvalidInput(explain_uninstalled(what, *missing))


def explain_uninstalled(what: str, *modules: str) -> str:
    """Say that modules are not installed, and how to install their packages.

    Arguments:
        what: what needs them, as the beginning of a sentence.
        modules: their names as modules.
    """
    packages = [_PACKAGES.get(name, name) for name in modules]
    return (
        f"{what} needs {', '.join(packages)}, which {'is' if len(packages) == 1 else 'are'} not "
        f"installed. Install what is missing: pip install {' '.join(packages)}. `pip install "
        "dross` installs it, except with --no-deps."
    )
