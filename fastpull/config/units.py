"""Text to values and back: sizes, ages, numbers, switches."""

from __future__ import annotations

import os
import re

from fastpull.errors import InvalidSetting

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_AGE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([smhdw])", re.IGNORECASE)
_HOST = re.compile(r"(?:[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")
_SECONDS = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,6})?")
_AGES = {"s": 1, "m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}


def parse_count(text: str) -> int:
    """Parse a whole number above zero."""
    if not (text.isascii() and text.isdigit()) or int(text) == 0:
        raise InvalidSetting(text, "not a whole number above zero")
    return int(text)


def parse_number(text: str) -> int:
    """Parse a whole number, which may be zero."""
    if not (text.isascii() and text.isdigit()):
        raise InvalidSetting(text, "not a whole number")
    return int(text)


def parse_seconds(text: str) -> float:
    """Parse seconds above zero, such as ``60`` or ``2.5``."""
    if not _SECONDS.fullmatch(text.strip()) or float(text) == 0:
        raise InvalidSetting(text, "not a number of seconds above zero")
    return float(text)


def show_seconds(seconds: float) -> str:
    """Return seconds as `parse_seconds` reads them."""
    return f"{seconds:f}".rstrip("0").rstrip(".")


def parse_size(text: str) -> int:
    """Parse a size such as ``300M`` or ``1.5GiB``; units are powers of 1024."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(text, "not a size, such as 300M or 1.5G")
    return int(float(match[1]) * _UNITS[match[2].lower()])


def show_size(size: int) -> str:
    """Return a size as `parse_size` reads it, in the largest unit that divides it: ``192M``."""
    unit = max((unit for unit, count in _UNITS.items() if size % count == 0), key=_UNITS.__getitem__) if size else ""
    return f"{size // _UNITS[unit]}{unit.upper()}"


def parse_age(text: str) -> float:
    """Parse an age such as ``12h`` or ``30d``; return seconds."""
    match = _AGE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(text, "not an age, such as 12h or 30d")
    return float(match[1]) * _AGES[match[2].lower()]


def parse_switch(text: str) -> bool:
    """Parse ``1``, ``true``, ``yes``, ``on`` or their opposites."""
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
        return False
    raise InvalidSetting(text, "not a switch, which is yes or no")


def show_switch(value: bool) -> str:
    """Return a switch as `parse_switch` reads it."""
    return "yes" if value else "no"


def parse_path(text: str) -> str:
    """Parse a path; ``~`` is a home directory."""
    if not text or "\0" in text:
        raise InvalidSetting(text, "a path must not be empty or contain NUL")
    return os.path.expanduser(text)


def parse_host(text: str) -> str:
    """Parse ``HOST[:PORT]``, which may be empty."""
    if text and not _HOST.fullmatch(text):
        raise InvalidSetting(text, "not a HOST[:PORT]")
    return text


def parse_hosts(text: str) -> tuple[str, ...]:
    """Parse a list of ``HOST[:PORT]``, separated by commas."""
    return tuple(parse_host(name.strip()) for name in text.split(",") if name.strip())
