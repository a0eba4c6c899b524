"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import sys
from typing import Any

import fastpull
from fastpull.errors import InvalidSetting

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
    parser.add_argument(
        "--site-connections", metavar="N", help="at most so many for blobs by all who share the cache (no limit)"
    )
    parser.add_argument("--memory", metavar="SIZE", help="for all buffers together, such as 300M (192M)")
    parser.add_argument("--workers", metavar="N", help="layers unpacked side by side (one per available core)")
    add_access_arguments(parser)


def add_access_arguments(parser: argparse.ArgumentParser) -> None:
    """How registries are reached, and who asks them."""
    access = parser.add_argument_group("registries", "by default with the logins of podman, skopeo, docker and enroot")
    access.add_argument("--authfile", metavar="FILE", help="read logins from this file alone; REGISTRY_AUTH_FILE")
    access.add_argument(
        "--creds",
        metavar="USER[:PASSWORD]",
        help="for the registry of SOURCE; other users of the machine can see a password that is given here",
    )
    access.add_argument("--password-stdin", action="store_true", help="read the password from standard input")
    access.add_argument("--netrc", action="store_true", default=None, help="look into ~/.netrc, too")
    access.add_argument(
        "--credential-commands",
        action="store_true",
        default=None,
        help="let a shell expand passwords of enroot's .credentials that begin with $, as enroot does",
    )
    access.add_argument("--cert-dir", metavar="DIR", help="certificates for the registry of SOURCE, as in certs.d")
    access.add_argument(
        "--insecure-registry",
        metavar="HOST[:PORT]",
        action="append",
        dest="insecure_registries",
        help="as --insecure, for one host; may be repeated",
    )
    access.add_argument(
        "--private-host",
        metavar="HOST",
        action="append",
        dest="private_hosts",
        help="a public registry may send fastpull to this host of a private network; may be repeated",
    )


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


_PLAIN = (
    *("cache", "workers", "memory", "connections", "site_connections", "insecure", "sync"),
    *("registries_conf", "policy"),
)
_ACCESS = ("authfile", "netrc", "credential_commands", "cert_dir")
_MAX_PASSWORD = 64 << 10


def settings_of(options: argparse.Namespace) -> fastpull.Settings:
    """The settings that command line and environment make together."""
    given: dict[str, Any] = {name: getattr(options, name, None) for name in (*_PLAIN, *_ACCESS, *_LIMITS)}
    for name in ("insecure_registries", "private_hosts"):
        values = getattr(options, name, None)
        given[name] = None if values is None else tuple(values)
    username, colon, password = (getattr(options, "creds", None) or "").partition(":")
    given["username"] = username or None
    given["password"] = fastpull.Secret(password) if colon else None
    if getattr(options, "password_stdin", False):
        if colon:
            raise InvalidSetting("--password-stdin", "--creds has a password already")
        given["password"] = fastpull.Secret(_password())
    return fastpull.Settings.load(**given)


def _password() -> str:
    text = sys.stdin.read(_MAX_PASSWORD).removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidSetting("--password-stdin", "there is no password on standard input")
    return text
