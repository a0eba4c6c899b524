"""Arguments that several verbs share."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

import fastpull
from fastpull.errors import InvalidSetting
from fastpull.progress import Warned

if TYPE_CHECKING:
    from fastpull.cli.console import Console

SOURCE_HELP = (
    "REF or docker://REF (also enroot's REGISTRY#IMAGE), oci:DIR[:TAG|@DIGEST], oci-archive:FILE[:TAG|@DIGEST], "
    "docker-archive:FILE[:REF|:@NUMBER], docker-daemon:REF or containers-storage:REF; or the path of a layout or "
    "archive, if it begins with /, ./ or ../, or ends with / or an archive's suffix"
)
_MAX_PASSWORD = 64 << 10


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of every verb that uses a `fastpull.Client`."""
    add_settings(parser, "cache", "locks")
    parser.add_argument("--platform", metavar="OS/ARCH[/VARIANT]", help="platform of the image (this machine's)")
    add_settings(parser, "pull", "job", "insecure", "registries_conf", "policy")
    add_settings(parser, "connections", "site_connections", "memory", "workers")
    access = parser.add_argument_group("registries", "logins of podman, skopeo, docker and enroot are the default")
    add_login_arguments(access)
    add_settings(access, *fastpull.config.ACCESS)


def add_settings(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add settings as flags, with the help text of the table of settings. Settings without a flag are skipped."""
    for name in names:
        setting = fastpull.config.SETTINGS[name]
        text = f"{setting.text} ({setting.shown_default})".replace("%", "%%")
        if not setting.flag:
            continue
        if setting.kind.is_list:
            text += "; may be repeated"
            parser.add_argument(setting.flag, dest=name, metavar=setting.kind.metavar, action="append", help=text)
        elif setting.kind.metavar:
            parser.add_argument(setting.flag, dest=name, metavar=setting.kind.metavar, help=text)
        else:
            parser.add_argument(setting.flag, dest=name, action=argparse.BooleanOptionalAction, help=text)


def add_login_arguments(parser: argparse._ActionsContainer) -> None:
    """Add user name and password."""
    parser.add_argument(
        "--creds",
        metavar="USER[:PASSWORD]",
        help="login for the registry of SOURCE; other users of the machine can see a password given here",
    )
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the limits of an image."""
    limits = parser.add_argument_group("limits", "an image that exceeds one is refused")
    add_settings(limits, *fastpull.config.LIMITS)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the choice of what the command prints."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-q", "--quiet", action="store_true", help="print only errors, and the result on stdout")
    how.add_argument("--json", action="store_true", help="print one JSON event a line on stdout, the result last")
    add_verbose_argument(parser, "show retries and each layer; -vv: the debug log as well")


def add_verbose_argument(parser: argparse.ArgumentParser, text: str) -> None:
    """Add ``-v``, which may be repeated."""
    parser.add_argument("-v", "--verbose", action="count", default=0, help=text)


def read_environment(name: str, console: Console, *, verbose: bool) -> fastpull.runtimes.EnvironmentFile:
    """Read an environment definition file, and warn of keys that fastpull does not use.

    Raises:
        InvalidSetting: the file cannot be read, or the image file that it names does not exist.
    """
    found = fastpull.runtimes.EnvironmentFile.load(name)
    image = found.image_file
    if image is not None and not os.path.isfile(image):
        raise InvalidSetting(image, f"the image file that {found.path} names does not exist")
    if found.unknown:
        console.on_event(Warned(found.path, f"unknown to the container engine: {', '.join(found.unknown)}"))
    known = sorted(found.others.keys() - set(found.unknown))
    if known and verbose:
        console.on_event(Warned(found.path, f"left to the container engine: {', '.join(known)}"))
    return found


def given_settings(options: argparse.Namespace) -> dict[str, object]:
    """Return the settings of the command line; None for each that it does not give."""
    given: dict[str, object] = {name: getattr(options, name, None) for name in fastpull.config.SETTINGS}
    username, colon, password = (getattr(options, "creds", None) or "").partition(":")
    if username:
        given["username"] = username
    if colon:
        given["password"] = fastpull.config.Secret(password)
    if getattr(options, "password_stdin", False):
        if colon:
            raise InvalidSetting("--password-stdin", "--creds already holds a password")
        given["password"] = fastpull.config.Secret(_password())
    return given


def _password() -> str:
    text = sys.stdin.read(_MAX_PASSWORD).removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidSetting("--password-stdin", "standard input holds no password")
    return text


def settings_of(options: argparse.Namespace) -> fastpull.Settings:
    """Return the settings of command line, environment and configuration files together."""
    return fastpull.Settings.load(**given_settings(options))
