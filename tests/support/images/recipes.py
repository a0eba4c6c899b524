"""Recipes of the images for benchmarks and tests.

A *recipe* is built as publishers build their images: a distribution, its packages, Python packages, and a last layer
that changes lower ones. Package versions are those of the day; results name the image's digest. A *recoding* is another
image with its layers recompressed. A *shape* is generated (`tests.support.images.generated`) and always the same.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from tests.support.images.generated import SHAPES, Shape

SUITE = "bookworm"

PIP_FOLDER = "/mnt"
"""Folder in the container with the host's pip settings, during the build."""

_APT = """\
set -e
export DEBIAN_FRONTEND=noninteractive
apt-get update
apt-get install -y --no-install-recommends {packages}
apt-get clean
rm -rf /var/lib/apt/lists/*
"""

_PIP = """\
set -e
python3 -m venv /opt/venv
/opt/venv/bin/pip install --no-cache-dir {packages}
"""

# without its GPU libraries, which are as large again and never run here
_TORCH = """\
set -e
/opt/venv/bin/pip install --no-cache-dir --no-deps torch
"""

_MORE_PIP = """\
set -e
/opt/venv/bin/pip install --no-cache-dir {packages}
"""

# deletions, a replaced directory, copies, changed modes, hard and symbolic links, a file capability
_TOP = """\
set -e
rm -rf /usr/share/doc /usr/share/man /usr/share/perl
mkdir -p /usr/share/perl
echo replaced > /usr/share/perl/README
find /opt/venv -type d '(' -name tests -o -name locale ')' | sort | head -n 20 | xargs rm -rf
cp -a /opt/venv/bin /opt/tools
chmod -R go-w /opt/tools
chmod -R o-rwx /usr/share/python3
chmod 2755 /usr/local/bin
cp -a /usr/bin/git /opt/tools/git
ln /opt/tools/git /opt/tools/git-too
ln -s ../venv/bin/python3 /opt/tools/py
cp /usr/bin/git /opt/tools/capable
chown 1000:1000 /opt/tools/capable
setcap cap_net_raw+ep /opt/tools/capable
"""


@dataclass(frozen=True, slots=True)
class ImageRecipe:
    """A build of an image from a base, with one layer for each script.

    Attributes:
        name: name on the command line.
        base: name of the recipe whose layers come first; empty for `SUITE`.
        scripts: shell scripts run in the container, one for each layer.
    """

    name: str
    base: str
    scripts: tuple[str, ...]

    @property
    def version(self) -> str:
        """Return a key that changes with the recipe or its base."""
        base = version_of(self.base) if self.base else SUITE
        return _version("\0".join((base, *self.scripts)))


@dataclass(frozen=True, slots=True)
class Recoding:
    """Another image with its layers recompressed.

    Attributes:
        name: name on the command line.
        base: name of the other image.
        compression: skopeo's name of the layers' compression.
    """

    name: str
    base: str
    compression: str

    @property
    def version(self) -> str:
        """Return a key that changes with the other image."""
        return _version(f"{version_of(self.base)}\0{self.compression}")


Image = ImageRecipe | Recoding | Shape


def version_of(name: str) -> str:
    """Return the version of an image by its name."""
    return IMAGES[name].version


def _version(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _python_image(name: str, apt: tuple[str, ...], pip: tuple[str, ...]) -> ImageRecipe:
    return ImageRecipe(name, "", (_APT.format(packages=" ".join(apt)), _PIP.format(packages=" ".join(pip)), _TOP))


_APT_OF_ALL = ("ca-certificates", "git", "libcap2-bin", "perl", "python3-venv")
_MORE = ("bokeh", "jupyterlab", "nltk", "opencv-python-headless", "plotly", "scikit-image", "statsmodels")

_IMAGES: tuple[Image, ...] = (
    _python_image("small", _APT_OF_ALL, ("django", "pygments")),
    _python_image(
        "full",
        (*_APT_OF_ALL, "build-essential", "cmake", "gfortran", "python3-dev"),
        ("matplotlib", "numpy", "pandas", "pyarrow", "scikit-learn", "scipy", "sympy", "transformers"),
    ),
    ImageRecipe("ml", "full", (_TORCH, _MORE_PIP.format(packages=" ".join(_MORE)))),
    Recoding("ml-zstd", "ml", "zstd"),
    *SHAPES,
)

IMAGES = {image.name: image for image in _IMAGES}
"""The images by name: small for daily use and continuous integration, full and ml of realistic size, and extremes."""
