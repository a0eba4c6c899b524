"""Reading the ``registries.conf`` of this machine, in the places where podman and skopeo look for it."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fastpull.config import paths
from fastpull.registry.conf.model import RegistriesConf


def load_registries_conf(path: str | None = None, environment: Mapping[str, str] = os.environ) -> RegistriesConf:
    """Reads all files that count.

    A file that is given, or that ``CONTAINERS_REGISTRIES_CONF`` names, counts alone. Otherwise the user's
    ``registries.conf`` with the user's ``registries.conf.d``; or, where the user has no such file, the system's with
    the drop-ins of both.

    Raises:
        InvalidSetting: one cannot be read or understood.

    Spec: containers-registries.conf.d(5).
    """
    found = RegistriesConf()
    for one in _paths(path or environment.get("CONTAINERS_REGISTRIES_CONF"), environment):
        found = found.merged(RegistriesConf.parse(paths.read_file(one), one))
    return found


def _paths(given: str | None, environment: Mapping[str, str]) -> list[str]:
    if given:
        return [given]
    main = paths.find_file("registries.conf", environment)
    user, system = paths.folders("containers", environment)
    is_user_s = main is not None and os.path.dirname(main) == user
    folders = [user] if is_user_s else [system, user]
    found = [] if main is None else [main]
    for folder in folders:
        found += paths.drop_ins(os.path.join(folder, "registries.conf.d"), ".conf")
    return found
