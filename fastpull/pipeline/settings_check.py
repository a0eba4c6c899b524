"""The checks of settings that need no pull."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from fastpull.config.policy import load_policy
from fastpull.errors import InvalidSetting
from fastpull.registry.conf.load import load_registries_conf
from fastpull.sinks.squashfs.recipe import Recipe

if TYPE_CHECKING:
    from fastpull.config.settings import Settings


def check_settings(settings: Settings) -> None:
    """Read the files that the settings name, and refuse values that no pull could use.

    Raises:
        InvalidSetting: a setting or one of these files is invalid.
    """
    Recipe.of(settings.compression, settings.block_size)
    load_registries_conf(settings.registries_conf)
    load_policy(settings.policy)
    access = settings.access
    if access.authfile is not None and not os.path.exists(access.authfile):
        raise InvalidSetting(access.authfile, "authfile: there is no such file")
    if access.cert_dir is not None and not os.path.isdir(access.cert_dir):
        raise InvalidSetting(access.cert_dir, "cert_dir: there is no such directory")
