"""Real images, built once and kept: ``python -m bench.images small full`` builds what is not there yet.

They are made with debootstrap and buildah, as root, below `bench_folder`, and kept as OCI layouts with gzip layers.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import dataclass
from typing import IO, Any

from bench.errors import BenchError
from bench.folders import make_folder, spread, temporary_folder
from bench.programs import require, require_root, run
from bench.recipes import PIP_FOLDER, RECIPES, SUITE, Recipe

TAG = "bench"

_NETWORK_SETTINGS = (
    *("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_TRUSTED_HOST", "PIP_PROXY", "PIP_DEFAULT_TIMEOUT", "PIP_RETRIES"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
_CERTIFICATES = ("PIP_CERT", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE")


@dataclass(frozen=True, slots=True)
class Layout:
    """An image in an OCI layout.

    Attributes:
        name: for people.
        path: of the layout.
        tag: in its index.
    """

    name: str
    path: str
    tag: str

    def __str__(self) -> str:
        return f"oci:{self.path}:{self.tag}"

    def facts(self) -> dict[str, Any]:
        """What there is to say of the image, for a report.

        Raises:
            BenchError: there is no such image.
        """
        try:
            manifests = self._read("index.json")["manifests"]
            digest = next(
                entry["digest"]
                for entry in manifests
                if entry.get("annotations", {}).get("org.opencontainers.image.ref.name") == self.tag
            )
            layers = self._read("blobs", *digest.split(":"))["layers"]
        except (OSError, ValueError, KeyError, StopIteration) as error:
            raise BenchError(f"no image at {self} ({type(error).__name__}: {error})") from error
        return {
            "name": self.name,
            "manifest": digest,
            "compressed_bytes": sum(layer["size"] for layer in layers),
            "layers": [{key: layer[key] for key in ("mediaType", "digest", "size")} for layer in layers],
        }

    def _read(self, *parts: str) -> Any:
        with open(os.path.join(self.path, *parts), encoding="utf-8") as file:
            return json.load(file)


def bench_folder() -> str:
    """Where images and runs on disk are: ``FASTPULL_BENCH_DIR``, or ``~/.cache/fastpull-bench``."""
    default = os.path.join(os.path.expanduser("~"), ".cache", "fastpull-bench")
    return os.path.abspath(os.environ.get("FASTPULL_BENCH_DIR") or default)


def find_image(text: str) -> Layout:
    """The image that a command line names: a recipe, built if it has to be, or ``oci:PATH:TAG``.

    Raises:
        BenchError: it names nothing, or the image cannot be built.
    """
    if text in RECIPES:
        return build(RECIPES[text])
    scheme, _, rest = text.partition(":")
    path, _, tag = rest.rpartition(":")
    if scheme != "oci" or not path or not tag:
        raise BenchError(f"no image {text!r}: it is one of {', '.join(RECIPES)}, or oci:PATH:TAG")
    return Layout(text, os.path.abspath(path), tag)


def build(recipe: Recipe) -> Layout:
    """Makes the image of a recipe, unless that was done already.

    Raises:
        BenchError: not root, a program is missing, or it failed; nothing is kept then but the log.
    """
    folder = os.path.join(bench_folder(), "images")
    layout = Layout(recipe.name, os.path.join(folder, f"{recipe.name}-{recipe.version}"), TAG)
    if os.path.isdir(layout.path):
        return layout
    require_root()
    require(("debootstrap", "buildah", "unshare"))
    spread(make_folder(folder))
    with (
        open(layout.path + ".log", "w", encoding="utf-8") as log,
        temporary_folder(folder, "building-") as scratch,
    ):
        print(f"building the {recipe.name} image once, log in {log.name}", file=sys.stderr)
        built = os.path.join(scratch, "layout")
        _Kitchen(scratch, log).cook(recipe, f"oci:{built}:{TAG}")
        os.rename(built, layout.path)
    return layout


class _Kitchen:
    """A place where images are made, with storage of its own. Nothing is removed before the end, see `spread`."""

    def __init__(self, folder: str, log: IO[str]) -> None:
        self._folder = folder
        self._log = log
        storage = ("--root", os.path.join(folder, "storage"), "--runroot", os.path.join(folder, "run"))
        self._buildah_command = ("buildah", *storage, "--storage-driver", "vfs")

    def cook(self, recipe: Recipe, destination: str) -> None:
        """Makes the image, and pushes it to where skopeo's name for a place says."""
        base = os.path.join(self._folder, "base")
        # what it mounts below base is gone when it ends, however it ends
        run(["unshare", "--mount", "debootstrap", "--variant=minbase", SUITE, base], self._log)
        container = self._buildah("from", "scratch")
        self._buildah("copy", "-q", container, base, "/")
        image = self._buildah("commit", "-q", container)
        settings = self._settings_of_pip()
        for script in recipe.scripts:
            container = self._buildah("from", "--pull-never", image)
            self._buildah("run", *settings, container, "sh", "-c", script)
            image = self._buildah("commit", "-q", container)
        self._buildah("push", "-q", image, destination)

    def _settings_of_pip(self) -> list[str]:
        """How this machine reaches the network, for `buildah run`; leaves nothing in the image."""
        shared = os.path.join(self._folder, "shared")
        os.mkdir(shared)
        options = ["--volume", f"{shared}:{PIP_FOLDER}:ro"]
        for name in _NETWORK_SETTINGS:
            if name in os.environ:
                options += ["--env", name]  # its value is taken from here
        certificates = next((os.environ[name] for name in _CERTIFICATES if os.environ.get(name)), None)
        if certificates is not None and os.path.isfile(certificates):
            shutil.copyfile(certificates, os.path.join(shared, "certificates.pem"))
            options += ["--env", f"PIP_CERT={PIP_FOLDER}/certificates.pem"]
        return options

    def _buildah(self, *arguments: str) -> str:
        environment = {"BUILDAH_ISOLATION": "chroot", "TMPDIR": self._folder}
        return run([*self._buildah_command, *arguments], self._log, environment).strip()


def main() -> int:
    """Builds the images that the command line names."""
    try:
        for name in sys.argv[1:]:
            print(find_image(name))
    except BenchError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
