"""The schema of settings: kinds of values, and the fields that hold them."""

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
    """The kind of a setting's values.

    Attributes:
        metavar: the placeholder in the help of its flag; empty for a switch.
        read: converts text to the value.
        show: converts the value to text that `read` accepts.
        types: types of a value in TOML, beside text.
        is_list: whether the value is a list of texts; its flag may be repeated.
        is_secret: whether the value must not stand in files or arguments, and is never shown.
    """

    metavar: str
    read: Callable[[str], Any]
    show: Callable[[Any], str] = str
    types: tuple[type, ...] = ()
    is_list: bool = False
    is_secret: bool = False

    @classmethod
    def choice(cls, *words: str) -> Self:
        """Return the kind of a choice between words."""

        def read(text: str) -> str:
            if text not in words:
                raise InvalidSetting(text, f"must be one of {', '.join(words)}")
            return text

        return cls(f"{{{','.join(words)}}}", read)


COUNT = SettingKind("N", parse_count, types=(int,))
NUMBER = SettingKind("N", parse_number, types=(int,))
SECONDS = SettingKind("SECONDS", parse_seconds, show_seconds, types=(int, float))
SIZE = SettingKind("SIZE", parse_size, show_size, types=(int,))
SWITCH = SettingKind("", parse_switch, show_switch, types=(bool,))
DIRECTORY = SettingKind("DIR", parse_path)
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
        name: the name in TOML and in `Settings`, and after ``FASTPULL_`` in the environment.
        kind: the kind of its values.
        text: a short description.
        default: the default value, from the environment.
        shown_default: the default for people.
        flag: the name on the command line; empty if it has none.
    """

    name: str
    kind: SettingKind
    text: str
    default: Callable[[Mapping[str, str]], Any]
    shown_default: str
    flag: str

    @property
    def variable(self) -> str:
        """The name of its environment variable."""
        return f"FASTPULL_{self.name.upper()}"

    def read(self, value: Any) -> Any:
        """Return the value of a text or of a TOML value.

        Raises:
            InvalidSetting: the text or the type is invalid.
        """
        is_known = isinstance(value, str) or type(value) in self.kind.types  # a bool is an int as well
        if not is_known or (isinstance(value, list) and not all(isinstance(one, str) for one in value)):
            raise InvalidSetting(str(value), f"{self.name}: the value has the wrong type")
        if isinstance(value, list):
            value = ",".join(value)
        try:
            return self.kind.read(str(value))
        except InvalidSetting as error:
            raise InvalidSetting(error.given, f"{self.name}: {error.reason}") from None


def setting_field(
    kind: SettingKind,
    text: str,
    *,
    default: Any = None,
    derive: Callable[[Mapping[str, str]], Any] | None = None,
    of: str = "",
    flag: str | None = None,
) -> Any:
    """Return a dataclass field that is a setting.

    Args:
        kind: the kind of its values.
        text: a short description.
        default: the default value.
        derive: returns the default for an environment; ``default`` is then that of the class itself.
        of: describes the result of ``derive``, or the meaning of no value.
        flag: the flag, in place of the one made from the name.
    """
    metadata = {
        "kind": kind,
        "text": text,
        "default": derive or (lambda _: default),
        "shown_default": of or kind.show(default),
        **({} if flag is None else {"flag": flag}),
    }
    return field(metadata=metadata) if derive and default is None else field(default=default, metadata=metadata)


def settings_table(of: type) -> dict[str, Setting]:
    """Return the settings among the fields of a dataclass, by name."""
    return {
        one.name: Setting(one.name, **{"flag": f"--{one.name.replace('_', '-')}", **one.metadata})
        for one in fields(of)
        if one.metadata
    }
