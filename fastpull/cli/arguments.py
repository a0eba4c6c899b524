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
    "archive: one that begins with /, ./ or ../, or ends with / or like a tar"
)
_MAX_PASSWORD = 64 << 10


def add_client_arguments(parser: argparse.ArgumentParser) -> None:
    """What every verb takes that talks to sources."""
    add_settings(parser, "cache", "locks")
    parser.add_argument("--platform", metavar="OS/ARCH[/VARIANT]", help="of the image; by default this machine's")
    add_settings(parser, "pull", "job", "insecure", "registries_conf", "policy")
    add_settings(parser, "connections", "site_connections", "memory", "workers")
    access = parser.add_argument_group("registries", "by default with the logins of podman, skopeo, docker and enroot")
    add_login_arguments(access)
    add_settings(access, *fastpull.config.ACCESS)


def add_settings(parser: argparse._ActionsContainer, *names: str) -> None:
    """Settings as flags, with what the table of settings says of them; those without a flag are passed over."""
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
    """User name and password."""
    parser.add_argument(
        "--creds",
        metavar="USER[:PASSWORD]",
        help="for the registry of SOURCE; other users of the machine can see a password that is given here",
    )
    parser.add_argument("--password-stdin", action="store_true", help="read the password from standard input")


def add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    """How much an image may take."""
    limits = parser.add_argument_group("limits", "an image that takes more is refused")
    add_settings(limits, *fastpull.config.LIMITS)


def add_output_arguments(parser: argparse.ArgumentParser) -> None:
    """How to tell what happens."""
    how = parser.add_mutually_exclusive_group()
    how.add_argument("-q", "--quiet", action="store_true", help="only errors, and the result on stdout")
    how.add_argument("--json", action="store_true", help="one event a line on stdout, the result as the last")
    parser.add_argument("-v", "--verbose", action="store_true", help="tell of retries and of each layer, too")


def read_environment(name: str, console: Console, *, verbose: bool) -> fastpull.runtimes.EnvironmentFile:
    """Reads an environment definition file, and tells what in it means nothing here.

    Raises:
        InvalidSetting: it cannot be read, or the file that it names as its image is not there.
    """
    found = fastpull.runtimes.EnvironmentFile.load(name)
    image = found.image_file
    if image is not None and not os.path.isfile(image):
        raise InvalidSetting(image, f"there is no such image, which {found.path} names")
    if found.unknown:
        console.on_event(Warned(found.path, f"unknown to the container engine: {', '.join(found.unknown)}"))
    known = sorted(found.others.keys() - set(found.unknown))
    if known and verbose:
        console.on_event(Warned(found.path, f"left to the container engine: {', '.join(known)}"))
    return found


def given_settings(options: argparse.Namespace) -> dict[str, object]:
    """What the command line says of settings; None for what it does not say."""
    given: dict[str, object] = {name: getattr(options, name, None) for name in fastpull.config.SETTINGS}
    username, colon, password = (getattr(options, "creds", None) or "").partition(":")
    if username:
        given["username"] = username
    if colon:
        given["password"] = fastpull.config.Secret(password)
    if getattr(options, "password_stdin", False):
        if colon:
            raise InvalidSetting("--password-stdin", "--creds has a password already")
        given["password"] = fastpull.config.Secret(_password())
    return given


def _password() -> str:
    text = sys.stdin.read(_MAX_PASSWORD).removesuffix("\n").removesuffix("\r")
    if not text:
        raise InvalidSetting("--password-stdin", "there is no password on standard input")
    return text


def settings_of(options: argparse.Namespace) -> fastpull.Settings:
    """The settings that command line, environment and configuration files make together."""
    return fastpull.Settings.load(**given_settings(options))
