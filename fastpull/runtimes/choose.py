"""The choice of runtime profiles by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fastpull.errors import InvalidSetting
from fastpull.runtimes.base import OutputShape, RuntimeProfile
from fastpull.runtimes.bundle import Bundle
from fastpull.runtimes.charliecloud import Charliecloud
from fastpull.runtimes.enroot import Enroot
from fastpull.runtimes.plain import Plain
from fastpull.runtimes.shifter import Shifter

_PROFILES: dict[str, Callable[[], RuntimeProfile]] = {
    "bundle": Bundle,
    "charliecloud": Charliecloud,
    "enroot": Enroot,
    "plain": Plain,
    "shifter": Shifter,
}

RUNTIMES = tuple(_PROFILES)
"""The names of all runtime profiles."""


def profiles_for(names: Iterable[str | RuntimeProfile]) -> tuple[RuntimeProfile, ...]:
    """Return the profiles for names, without duplicates; profiles of the caller are returned as they are.

    Raises:
        InvalidSetting: a name is unknown, or two profiles need different shapes of output.
    """
    profiles: dict[str, RuntimeProfile] = {}
    for name in names:
        if not isinstance(name, str):
            profiles[name.name] = name
        elif name in _PROFILES:
            profiles[name] = _PROFILES[name]()
        else:
            raise InvalidSetting(name, f"no such runtime, it is one of {', '.join(RUNTIMES)}")
    shaped = [profile.name for profile in profiles.values() if profile.output_shape is not OutputShape.ROOTFS]
    if len(shaped) > 1:
        raise InvalidSetting(", ".join(shaped), "these need different kinds of output, make one for each")
    return tuple(profiles.values())


def shape_of(profiles: Iterable[RuntimeProfile]) -> OutputShape:
    """Return the shape of the output that profiles need."""
    return next(
        (profile.output_shape for profile in profiles if profile.output_shape is not OutputShape.ROOTFS),
        OutputShape.ROOTFS,
    )
