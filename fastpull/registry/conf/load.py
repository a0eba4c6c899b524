"""The ``registries.conf`` of this machine, read from the same paths as podman and skopeo."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fastpull.config import paths
from fastpull.registry.conf.model import RegistriesConf


def load_registries_conf(path: str | None = None, environment: Mapping[str, str] = os.environ) -> RegistriesConf:
    """Read and merge all files that apply.

    A given file, or the one named by ``CONTAINERS_REGISTRIES_CONF``, applies alone. Otherwise the user's
    ``registries.conf`` applies with the user's ``registries.conf.d``. Without such a file, the system's
    ``registries.conf`` applies with the drop-ins of system and user.

    Raises:
        InvalidSetting: a file is unreadable or invalid.

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
    user, system = paths.config_directories("containers", environment)
    belongs_to_user = main is not None and os.path.dirname(main) == user
    folders = [user] if belongs_to_user else [system, user]
    found = [] if main is None else [main]
    for folder in folders:
        found += paths.drop_ins(os.path.join(folder, "registries.conf.d"), ".conf")
    return found
