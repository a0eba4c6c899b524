"""Recipes: what the images for benchmarks are made of.

An image is made as people make theirs: a distribution, its packages, Python packages, and a last layer that changes
what is below. Versions are those of the day; results name the image's digest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

SUITE = "bookworm"

PIP_FOLDER = "/mnt"
"""Where the host's settings for pip are while packages are installed."""

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

# deletions, a directory that is replaced, copies, changed modes, hard and symbolic links, a file capability
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
class Recipe:
    """How an image is made: a base of `SUITE`, then a layer for each script.

    Attributes:
        name: on the command line.
        apt: packages of the distribution.
        pip: packages for Python.
    """

    name: str
    apt: tuple[str, ...]
    pip: tuple[str, ...]

    @property
    def scripts(self) -> tuple[str, ...]:
        """What is run inside, one layer each."""
        return (_APT.format(packages=" ".join(self.apt)), _PIP.format(packages=" ".join(self.pip)), _TOP)

    @property
    def version(self) -> str:
        """Changes whenever the recipe does."""
        return hashlib.sha256("\0".join((SUITE, *self.scripts)).encode()).hexdigest()[:12]


_APT_OF_ALL = ("ca-certificates", "git", "libcap2-bin", "perl", "python3-venv")

RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe("small", _APT_OF_ALL, ("django", "pygments")),
        Recipe(
            "full",
            (*_APT_OF_ALL, "build-essential", "cmake", "gfortran", "python3-dev"),
            ("matplotlib", "numpy", "pandas", "pyarrow", "scikit-learn", "scipy", "sympy", "transformers"),
        ),
    )
}
"""By name: one for every day and for continuous integration, and one of more than a gigabyte."""
