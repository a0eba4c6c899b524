"""When a request is worth repeating, and after how long."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from fastpull.errors import FastpullError, RateLimited, SizeMismatch, TransportError, UnexpectedAnswer

T = TypeVar("T")

Retrying = Callable[[str, FastpullError, float], None]
"""Told (host, error, pause in seconds) before a request is repeated."""

_TRANSIENT_STATUSES = frozenset({206, 408, 425, 429})  # 206: a part, though not the one that was asked for
_LASTING_STATUSES = frozenset({501, 505, 511})  # of a host that cannot, or wants somebody to log in to the network
_MAX_DOUBTS = 2
PATIENCE = 5
"""How many times ``timeout`` a request may be repeated without progress."""

MAX_RETRY_AFTER_SECONDS = 120.0
"""The longest pause that a host may ask for before the pull gives up; a user should rather be told."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with equal jitter: half of each pause is fixed, the other half is random.

    Attributes:
        attempts: how many requests in all, without progress between them.
        first_seconds, max_seconds: bounds of the longest pause; it doubles each time.
        total_seconds: how long it may go on without progress: a failure after that is the last.
    """

    attempts: int = 6
    first_seconds: float = 0.5
    max_seconds: float = 15.0
    total_seconds: float = 300.0

    def pause_seconds(self, attempt: int) -> float:
        """The pause after failed attempt number ``attempt``, counted from 1: up to 0.5 s, 1 s, 2 s and so on."""
        ceiling = min(self.max_seconds, self.first_seconds * 2.0 ** (attempt - 1))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311  # spreads clients, keeps no secret


class Attempts:
    """The attempts at one request, or at one range of a blob.

    Args:
        backoff: how many there may be, and how long they may take, without progress between them.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.progressed()

    def progressed(self) -> None:
        """Begin to count anew: something came that was worth an attempt."""
        self._failed = self._doubted = 0
        self._since = time.monotonic()

    def failed(self, error: FastpullError) -> float:
        """Count a failure; return the pause before the next attempt.

        Raises:
            FastpullError: the error itself, if there is to be no other attempt.
        """
        self._failed += 1
        self._doubted += is_doubtful(error)
        is_last = (
            self._failed >= self._backoff.attempts
            or self._doubted > _MAX_DOUBTS
            or time.monotonic() - self._since >= self._backoff.total_seconds
        )
        if is_last or not (is_doubtful(error) or is_transient(error)):
            raise error
        return self._backoff.pause_seconds(self._failed)


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """The pause that an answer asks for, or None. Spec: RFC 9110, 10.2.3."""
    value = headers.get("Retry-After", "").strip()
    if value.isascii() and value.isdigit():
        return float(value)
    try:
        when = parsedate_to_datetime(value)
    except ValueError:
        return None
    if when.tzinfo is None:
        when = when.replace(tzinfo=UTC)
    return max(0.0, (when - (now or datetime.now(UTC))).total_seconds())


def is_transient(error: BaseException) -> bool:
    """Whether the same request may well succeed a moment later."""
    if isinstance(error, TransportError):
        return error.is_transient
    if isinstance(error, RateLimited):
        return (error.retry_after_seconds or 0.0) <= MAX_RETRY_AFTER_SECONDS
    if not isinstance(error, UnexpectedAnswer) or error.status is None:
        return False
    return error.status in _TRANSIENT_STATUSES or (error.status >= 500 and error.status not in _LASTING_STATUSES)


def is_doubtful(error: BaseException) -> bool:
    """Whether an answer to a range contradicts what is known of the blob: a host may be wrong once.

    It says that the blob has another size, or (HTTP 416) that it ends before the range.
    """
    return isinstance(error, SizeMismatch) or (isinstance(error, UnexpectedAnswer) and error.status == 416)


async def with_retries(once: Callable[[], Awaitable[T]], host: str, backoff: Backoff, on_retry: Retrying) -> T:
    """Repeats what failed for a transient reason, with pauses, as often and as long as ``backoff`` allows."""
    attempts = Attempts(backoff)
    while True:
        try:
            return await once()
        except FastpullError as error:
            pause = attempts.failed(error)
            on_retry(host, error, pause)
            await asyncio.sleep(pause)
