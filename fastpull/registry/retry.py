"""When a request is worth repeating, and after how long."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TypeVar

from fastpull.errors import FastpullError, RateLimited, TransportError, UnexpectedAnswer

T = TypeVar("T")

Retrying = Callable[[str, BaseException, float], None]
"""Told (host, error, pause in seconds) before a request is repeated."""

TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
MAX_RETRY_AFTER_SECONDS = 120.0
"""The longest pause that a host may ask for before the pull gives up; a user should rather be told."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential backoff with full jitter.

    Attributes:
        attempts: how many requests in all, without progress between them.
        first_seconds, max_seconds: bounds of the pause before jitter; it doubles each time.
    """

    attempts: int = 6
    first_seconds: float = 0.5
    max_seconds: float = 15.0

    def pause_seconds(self, attempt: int) -> float:
        """The pause after failed attempt number ``attempt``, counted from 1: up to 0.5 s, 1 s, 2 s and so on."""
        ceiling = min(self.max_seconds, self.first_seconds * 2.0 ** (attempt - 1))
        return random.uniform(ceiling / 2, ceiling)  # noqa: S311  # spreads clients, keeps no secret


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
    return isinstance(error, UnexpectedAnswer) and error.status in TRANSIENT_STATUSES | {206}


async def with_retries(once: Callable[[], Awaitable[T]], host: str, backoff: Backoff, on_retry: Retrying) -> T:
    """Repeats what failed for a transient reason, with pauses, as often as ``backoff`` allows."""
    for attempt in range(1, backoff.attempts):
        try:
            return await once()
        except FastpullError as error:
            if not is_transient(error):
                raise
            pause = backoff.pause_seconds(attempt)
            on_retry(host, error, pause)
            await asyncio.sleep(pause)
    return await once()
