"""Load the names of a package when they are first used.

A package's face lists its public names. Importing the face imports none of the package's modules, so that a program
pays only for what it uses.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_face(
    package: str, homes: Mapping[str, tuple[str, ...]], former: Mapping[str, str] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a package whose names are loaded on first use.

    Args:
        package: the package's ``__name__``.
        homes: module, and the public names that it defines. A module directly in the package is a name as well.
        former: names of earlier versions, each with its ``module:name`` of today. They work, and `dir` omits them.

    Spec: PEP 562.
    """
    places = {name: (module, name) for module, names in homes.items() for name in names}
    modules = {module.removeprefix(f"{package}."): (module, "") for module in homes}
    old = {name: tuple(place.split(":")) for name, place in (former or {}).items()}

    def load(name: str) -> Any:
        place = places.get(name) or modules.get(name) or old.get(name)
        if place is None:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = place
        value = getattr(import_module(module), attribute) if attribute else import_module(module)
        setattr(sys.modules[package], name, value)
        return value

    def listed() -> list[str]:
        return sorted(sys.modules[package].__all__)

    return load, listed
