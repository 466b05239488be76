"""What to install where a package is missing: the engine runs with torch, numpy and safetensors."""

from importlib.util import find_spec

from ...errors import BadInput

TABLES = ("pandas", "pyarrow", "sklearn", "scipy", "joblib")  # what cleaning needs
_PACKAGES = {"sklearn": "scikit-learn", "PIL": "pillow"}  # where a module has another name


def check_installed(what: str, *modules: str) -> None:
    """Refuse to begin what needs packages that are not installed.

    Arguments:
        what: what needs them, as the beginning of a sentence.
        modules: their names as modules.

    Raises:
        BadInput: with their names as packages, and the command that installs them.
    """
    missing = [_PACKAGES.get(name, name) for name in modules if find_spec(name) is None]
    if missing:
        names = ", ".join(missing)
        raise BadInput(
            f"{what} needs {names}, not installed here. Install what is missing: "
            f"pip install {' '.join(missing)}. `pip install dross` installs it, except "
            "with --no-deps."
        )
