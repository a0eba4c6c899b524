"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING

import fastpull
from fastpull.errors import InvalidSetting
from fastpull.progress import Warned

if TYPE_CHECKING:
    from fastpull.cli.console import Console

SOURCE_HELP = "REF or docker://REF (also enroot's REGISTRY#IMAGE), or oci:DIR[:TAG|@DIGEST]"


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """What every verb takes that talks to sources."""
    add_cache_argument(parser)
    parser.add_argument("--platform", metavar="OS/ARCH[/VARIANT]", help="of the image; by default this machine's")
    parser.add_argument(
        "--insecure",
        action="store_true",
        default=None,
        help="accept unverified certificates and plain http; loopback addresses may always speak http",
    )
    parser.add_argument("--registries-conf", metavar="FILE", help="of mirrors and blocked names (containers' own)")
    parser.add_argument("--policy", metavar="FILE", help="of what may be pulled, a policy.json (containers' own)")
    parser.add_argument("--connections", metavar="N", help="at most so many to one host (16)")
    parser.add_argument("--memory", metavar="SIZE", help="for all buffers together, such as 300M (192M)")
    parser.add_argument("--workers", metavar="N", help="layers unpacked side by side (one per available core)")


def add_cache_argument(parser: argparse.ArgumentParser) -> None:
    """Where the cache is."""
    parser.add_argument("--cache", metavar="DIR", help="FASTPULL_CACHE, or ~/.cache/fastpull")


_LIMITS = {
    "max_layer_size": ("SIZE", "of a layer, uncompressed (256G)"),
    "max_image_size": ("SIZE", "of all layers together, uncompressed (512G)"),
    "max_entries": ("N", "of all layers together (4000000)"),
    "max_ratio": ("N", "uncompressed bytes for a byte of a blob, in a layer of more than 1G (200)"),
    "max_zstd_window": ("SIZE", "of memory that a zstd layer may ask for (128M)"),
}


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """How much an image may take."""
    limits = parser.add_argument_group("limits", "an image that takes more is refused")
    for name, (metavar, text) in _LIMITS.items():
        limits.add_argument(f"--{name.replace('_', '-')}", metavar=metavar, help=text)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """How to tell what happens."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-q", "--quiet", action="store_true", help="only errors, and the result on stdout")
    how.add_argument("--json", action="store_true", help="one event a line on stdout, the result as the last")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell of retries and of each layer, too")


def read_environment(name: str, console: Console, *, verbose: bool) -> fastpull.EnvironmentFile:
    """Reads an environment definition file, and tells what in it means nothing here.

    Raises:
        InvalidSetting: it cannot be read, or the file that it names as its image is not there.
    """
    found = fastpull.EnvironmentFile.load(name)
    image = found.image_file
    if image is not None and not os.path.isfile(image):
        raise InvalidSetting(image, f"there is no such image, which {found.path} names")
    if found.unknown:
        console.on_event(Warned(found.path, f"unknown to the container engine: {', '.join(found.unknown)}"))
    known = sorted(found.others.keys() - set(found.unknown))
    if known and verbose:
        console.on_event(Warned(found.path, f"left to the container engine: {', '.join(known)}"))
    return found


def settings_of(options: argparse.Namespace) -> fastpull.Settings:
    """The settings that command line and environment make together."""
    names = ("cache", "workers", "memory", "connections", "insecure", "sync", "registries_conf", "policy", *_LIMITS)
    return fastpull.Settings.load(**{name: getattr(options, name, None) for name in names})
