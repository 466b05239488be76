"""How to install what an extra of dross brings."""

import re
from importlib.metadata import PackageNotFoundError, requires

_REQUIREMENT = re.compile(r"""(?P<package>[^;]+);\s*extra\s*==\s*["'](?P<extra>[\w-]+)["']""")
_OWN = re.compile(r"dross\[(?P<extras>[\w,-]+)\]")


def install_command(extra: str) -> str:
    """The pip command for the packages of an extra, read from the installed metadata.

    It names the packages and not `dross[extra]`, so it works wherever dross came from: a checkout,
    a wheel, or a package index.
    """
    packages = _packages(extra)
    if not packages:  # dross is on the path, but not installed
        return f"pip install '.[{extra}]' in your dross checkout"
    return "pip install " + " ".join(f"'{package}'" for package in packages)


def _packages(extra: str) -> list[str]:
    """The requirements of an extra, and of the extras of dross that it consists of."""
    try:
        requirements = requires("dross") or []
    except PackageNotFoundError:
        return []
    packages = []
    for requirement in requirements:
        match = _REQUIREMENT.fullmatch(requirement)
        if match is None or match["extra"] != extra:
            continue
        package = match["package"].strip()
        own = _OWN.fullmatch(package)
        if own is None:
            packages.append(package)
            continue
        for part in own["extras"].split(","):
            packages += _packages(part)
    return list(dict.fromkeys(packages))
