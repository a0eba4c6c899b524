"""Retries: which failures are worth one, and the pauses between attempts."""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from fastpull.errors import FastpullError, RateLimited, SizeMismatch, TransportError, UnexpectedAnswer

T = TypeVar("T")

OnRetry = Callable[[str, FastpullError, float], None]
"""Called with host, error and pause in seconds before a request is repeated."""

_log = logging.getLogger("fastpull.registry.http.retry")
_TRANSIENT_STATUSES = frozenset({206, 408, 425, 429})  # 206: a range other than the requested one
_PERMANENT_STATUSES = frozenset({501, 505, 511})  # not implemented, or the network requires a login
_MAX_CONTRADICTIONS = 2
RETRY_TIMEOUTS = 5
"""How many times ``timeout`` a request may be repeated without progress."""

MAX_RETRY_AFTER_SECONDS = 120.0
"""The longest ``Retry-After`` that is waited for; a longer one fails the pull with a message."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with equal jitter: half of each pause is fixed, the other half is random.

    Attributes:
        attempts: the number of attempts without progress between them.
        first_seconds: the longest first pause; it doubles with each attempt.
        max_seconds: the upper bound of all pauses.
        total_seconds: the time without progress after which the next failure is final.
    """

    attempts: int = 6
    first_seconds: float = 0.5
    max_seconds: float = 15.0
    total_seconds: float = 300.0

    def pause_seconds(self, attempt: int) -> float:
        """Return the pause after failed attempt number ``attempt``, counted from 1: up to 0.5 s, 1 s, 2 s and so on."""
        ceiling = min(self.max_seconds, self.first_seconds * 2.0 ** (attempt - 1))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311  # jitter, not a secret


class Attempts:
    """The attempts at one request, or at one range of a blob.

    Args:
        backoff: the limits on number and time without progress, and the pauses.
    """

    def __init__(self, backoff: Backoff) -> None:
        self._backoff = backoff
        self.reset()

    def reset(self) -> None:
        """Restart the counts after progress."""
        self._failures = self._contradictions = 0
        self._since = time.monotonic()

    def failed(self, error: FastpullError) -> float:
        """Count a failure and return the pause before the next attempt.

        Raises:
            FastpullError: the error itself, if no further attempt is allowed.
        """
        self._failures += 1
        self._contradictions += contradicts_descriptor(error)
        is_last = (
            self._failures >= self._backoff.attempts
            or self._contradictions > _MAX_CONTRADICTIONS
            or time.monotonic() - self._since >= self._backoff.total_seconds
        )
        if is_last or not (contradicts_descriptor(error) or is_transient(error)):
            raise error
        pause = self._backoff.pause_seconds(self._failures)
        _log.debug("attempt %d failed, next in %.2f s: %s", self._failures, pause, error.message)
        return pause


def retry_after_seconds(headers: Mapping[str, str], now: datetime | None = None) -> float | None:
    """Return the pause that ``Retry-After`` asks for, or None. Spec: RFC 9110, 10.2.3."""
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
    """Whether the same request is likely to succeed a moment later."""
    if isinstance(error, TransportError):
        return error.is_transient
    if isinstance(error, RateLimited):
        return (error.retry_after_seconds or 0.0) <= MAX_RETRY_AFTER_SECONDS
    if not isinstance(error, UnexpectedAnswer) or error.status is None:
        return False
    return error.status in _TRANSIENT_STATUSES or (error.status >= 500 and error.status not in _PERMANENT_STATUSES)


def contradicts_descriptor(error: BaseException) -> bool:
    """Whether a response contradicts the blob's descriptor: another size, or HTTP 416 for a range within the blob.

    A host may send such a response by mistake, so a few retries are allowed.
    """
    return isinstance(error, SizeMismatch) or (isinstance(error, UnexpectedAnswer) and error.status == 416)


async def with_retries(once: Callable[[], Awaitable[T]], host: str, backoff: Backoff, on_retry: OnRetry) -> T:
    """Call a function until it succeeds or fails for good, with the pauses and limits of ``backoff``."""
    attempts = Attempts(backoff)
    while True:
        try:
            return await once()
        except FastpullError as error:
            pause = attempts.failed(error)
            on_retry(host, error, pause)
            await asyncio.sleep(pause)
