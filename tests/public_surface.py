"""The names each package offers, as text: `python -m tests.public_surface` prints the golden file
tests/golden/public_surface.txt anew after a change that is meant."""

import importlib
import pkgutil

import moonpool


def packages() -> list[str]:
    """Every package of Moonpool, itself first."""
    found = pkgutil.walk_packages(moonpool.__path__, "moonpool.")
    return ["moonpool", *sorted(info.name for info in found if info.ispkg)]


def names_of(package: str) -> list[str]:
    """What its __init__ offers, in the order written there."""
    return list(getattr(importlib.import_module(package), "__all__", []))


def surface() -> str:
    """One line per package that offers anything: its name, a colon, its names."""
    offered = {package: names_of(package) for package in packages()}
    return "".join(f"{package}: {' '.join(names)}\n" for package, names in offered.items() if names)


if __name__ == "__main__":
    print(surface(), end="")
