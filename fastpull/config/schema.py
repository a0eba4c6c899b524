"""The schema of settings: kinds of values, and the fields that carry them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Self

from fastpull.config.secret import Secret
from fastpull.config.units import (
    parse_count,
    parse_host,
    parse_hosts,
    parse_number,
    parse_path,
    parse_seconds,
    parse_size,
    parse_switch,
    show_seconds,
    show_size,
    show_switch,
)
from fastpull.errors import InvalidSetting


@dataclass(frozen=True, slots=True)
class SettingKind:
    """What values a setting may have.

    Attributes:
        metavar: in the help of its flag; empty for a switch.
        read: makes the value of a text.
        show: makes a text of the value, which `read` understands.
        types: that a value may have in TOML, beside text.
        is_list: of texts; its flag may be repeated.
        is_secret: it has no place in a file or among arguments, which others may see, and is never shown.
    """

    metavar: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    types: tuple[type, ...] = ()
    is_list: bool = False
    is_secret: bool = False

    @classmethod
    def choice(cls, *words: str) -> Self:
        """One of a few words."""

        def read(text: str) -> str:
            if text not in words:
                raise InvalidSetting(text, f"none of {', '.join(words)}")
            return text

        return cls(f"{{{','.join(words)}}}", read)


COUNT = SettingKind("N", parse_count, types=(int,))
NUMBER = SettingKind("N", parse_number, types=(int,))
SECONDS = SettingKind("SECONDS", parse_seconds, show_seconds, types=(int, float))
SIZE = SettingKind("SIZE", parse_size, show_size, types=(int,))
SWITCH = SettingKind("", parse_switch, show_switch, types=(bool,))
FOLDER = SettingKind("DIR", parse_path)
FILE = SettingKind("FILE", parse_path)
NAME = SettingKind("NAME", str)
HOST = SettingKind("HOST[:PORT]", parse_host)
HOSTS = SettingKind("HOST[:PORT]", parse_hosts, ",".join, types=(list,), is_list=True)
SECRET = SettingKind("", Secret, is_secret=True)
COMPRESSION = SettingKind("NAME[:LEVEL]", str)
LOCKS = SettingKind.choice("auto", "flock", "lease")
PULL_POLICY = SettingKind.choice("always", "newer", "missing", "never")


@dataclass(frozen=True, slots=True)
class Setting:
    """One line of the table of settings.

    Attributes:
        name: in TOML, in `Settings`, and with ``FASTPULL_`` before it in the environment.
        kind: of its values.
        text: what it is, in a few words that may follow its name.
        default: what it is where nobody says anything.
        shown_default: the same for people.
        flag: its name on the command line; empty where it has none of its own.
    """

    name: str
    kind: SettingKind
    text: str
    default: Callable[[Mapping[str, str]], Any]
    shown_default: str
    flag: str

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return f"FASTPULL_{self.name.upper()}"

    def read(self, value: Any) -> Any:
        """The value that a text, or a value of TOML, stands for.

        Raises:
            InvalidSetting: it stands for none.
        """
        is_known = isinstance(value, str) or type(value) in self.kind.types  # a bool would be an int, too
        if not is_known or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
            raise InvalidSetting(str(value), f"{self.name}: a value of the wrong type")
        if isinstance(value, list):
            value = ",".join(value)
        try:
            return self.kind.read(str(value))
        except InvalidSetting as error:
            raise InvalidSetting(error.given, f"{self.name}: {error.reason}") from None


def _setting(
    kind: SettingKind,
    text: str,
    *,
    default: Any = None,
    derive: Callable[[Mapping[str, str]], Any] | None = None,
    of: str = "",
    flag: str | None = None,
) -> Any:
    """A field that is a setting.

    Args:
        kind: of its values.
        text: see `Setting`.
        default: its value where nobody says anything.
        derive: makes that value of the environment, in place of ``default``, which counts where there is none.
        of: tells what ``derive`` does, or what there is in place of no value.
        flag: in place of that which is made of its name.
    """
    metadata = {
        "kind": kind,
        "text": text,
        "default": derive or (lambda _: default),
        "shown_default": of or kind.show(default),
        **({} if flag is None else {"flag": flag}),
    }
    return field(metadata=metadata) if derive and default is None else field(default=default, metadata=metadata)


def _table(of: type) -> dict[str, Setting]:
    return {
        one.name: Setting(one.name, **{"flag": f"--{one.name.replace('_', '-')}", **one.metadata})
        for one in fields(of)
        if one.metadata
    }
