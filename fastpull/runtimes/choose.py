"""From names to profiles."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastpull.errors import InvalidSetting
from fastpull.runtimes.base import OutputShape, RuntimeProfile
from fastpull.runtimes.bundle import Bundle
from fastpull.runtimes.charliecloud import Charliecloud
from fastpull.runtimes.enroot import Enroot
from fastpull.runtimes.plain import Plain
from fastpull.runtimes.shifter import Shifter

_MAKERS: dict[str, Callable[[], RuntimeProfile]] = {
    "bundle": Bundle,
    "charliecloud": Charliecloud,
    "enroot": Enroot,
    "plain": Plain,
    "shifter": Shifter,
}

RUNTIMES = tuple(_MAKERS)
"""The names of the profiles that there are."""


def profiles_for(names: Iterable[str | RuntimeProfile]) -> tuple[RuntimeProfile, ...]:
    """Makes profiles of their names; each counts once.

    Raises:
        InvalidSetting: there is none of a name, or two that do not fit into one output.
    """
    profiles: dict[str, RuntimeProfile] = {}
    for name in names:
        if not isinstance(name, str):
            profiles[name.name] = name
        elif name in _MAKERS:
            profiles[name] = _MAKERS[name]()
        else:
            raise InvalidSetting(name, f"no such runtime, it is one of {', '.join(RUNTIMES)}")
    frames = [profile.name for profile in profiles.values() if profile.output_shape is not OutputShape.ROOTFS]
    if len(frames) > 1:
        raise InvalidSetting(", ".join(frames), "these want different kinds of output, make one for each")
    return tuple(profiles.values())


def shape_of(profiles: Iterable[RuntimeProfile]) -> OutputShape:
    """Where the root filesystem is in an output for these."""
    return next(
        (profile.output_shape for profile in profiles if profile.output_shape is not OutputShape.ROOTFS),
        OutputShape.ROOTFS,
    )
