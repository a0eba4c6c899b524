"""A builder of real images with debootstrap and buildah, as root."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from typing import IO

from tests.support.images.recipes import PIP_FOLDER, SUITE
from tests.support.programs import run

_NETWORK_SETTINGS = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_PROXY", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
_CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


class ImageBuilder:
    """A builder with its own container storage.

    It removes nothing before the end; see `tests.support.folders.spread`.
    """

    def __init__(self, folder: str, log: IO[str]) -> None:
        self._folder = folder
        self._log = log
        self._storage = os.path.join(folder, "storage")
        self._run = os.path.join(folder, "run")

    def build(self, base: str, scripts: Iterable[str], destination: str) -> None:
        """Build an image and push it.

        Args:
            base: skopeo's name of the image whose layers come first; empty for `SUITE`.
            scripts: shell scripts run in the container, one for each layer.
            destination: skopeo's name of the target.
        """
        image = self._copy_base(base) if base else self._debootstrap()
        settings = self._pip_options()
        for script in scripts:
            container = self._buildah("from", "--pull-never", image)
            self._buildah("run", *settings, container, "sh", "-c", script)
            image = self._buildah("commit", "-q", container)
        self._buildah("push", "-q", image, destination)

    def _copy_base(self, image: str) -> str:
        """Copy an image into the storage, and return its name there."""
        name = "localhost/base:bench"
        copy = ["skopeo", "--insecure-policy", "copy", "-q"]
        run([*copy, image, f"containers-storage:[vfs@{self._storage}+{self._run}]{name}"], self._log)
        return name

    def _debootstrap(self) -> str:
        base = os.path.join(self._folder, "base")
        # in a mount namespace, so that its mounts below base always end with it
        run(["unshare", "--mount", "debootstrap", "--variant=minbase", SUITE, base], self._log)
        container = self._buildah("from", "scratch")
        self._buildah("copy", "-q", container, base, "/")
        return self._buildah("commit", "-q", container)

    def _pip_options(self) -> list[str]:
        """Return options of ``buildah run`` with this machine's network settings, which leave nothing in the image."""
        shared = os.path.join(self._folder, "shared")
        os.mkdir(shared)
        options = ["--volume", f"{shared}:{PIP_FOLDER}:ro"]
        for name in _NETWORK_SETTINGS:
            if name in os.environ:
                options += ["--env", name]  # buildah takes the value from this process
        certificates = next((os.environ[name] for name in _CERTIFICATES if os.environ.get(name)), None)
        if certificates is not None and os.path.isfile(certificates):
            shutil.copyfile(certificates, os.path.join(shared, "certificates.pem"))
            options += ["--env", f"PIP_CERT={PIP_FOLDER}/certificates.pem"]
        return options

    def _buildah(self, *arguments: str) -> str:
        environment = {"BUILDAH_ISOLATION": "chroot", "TMPDIR": self._folder}
        storage = ("--root", self._storage, "--runroot", self._run, "--storage-driver", "vfs")
        return run(["buildah", *storage, *arguments], self._log, environment).strip()
