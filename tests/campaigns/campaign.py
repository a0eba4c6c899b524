"""The base of a campaign: a seed, trials, and a report of the failures."""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import tempfile
import time
import traceback
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

_TRIAL_SECONDS = 300.0
"""A longer trial hangs; no trial takes this long, even on a loaded machine."""


class Missed(Exception):
    """The fault did not occur, or hit a file of another program; the trial has no result."""


class Unavailable(Exception):
    """This machine lacks a requirement of the campaign."""


@dataclass(slots=True)
class Report:
    """The result of a campaign.

    Attributes:
        name: name of the campaign.
        seed: seed that repeats it.
        trials: number of trials with a result.
        missed: number of trials without a result.
        failures: number and message of each failed trial.
        counts: number of trials by kind and outcome.
        notes: measurements.
    """

    name: str
    seed: int
    trials: int = 0
    missed: int = 0
    failures: list[tuple[int, str]] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        missed = f", {self.missed} missed" if self.missed else ""
        return f"{self.name}: {len(self.failures)} / {self.trials} (seed {self.seed}{missed})"

    def details(self) -> str:
        """Return the full report as text."""
        lines = [f"  {count:6} {what}" for what, count in sorted(self.counts.items())]
        lines += [f"  {note}" for note in self.notes]
        lines += [
            f"  failed: --seed {self.seed} --only {number}: {what}".replace("\n", "\n    ")
            for number, what in self.failures
        ]
        return "\n".join([*lines, str(self)])


class Campaign(ABC):
    """A kind of fault.

    Attributes:
        name: name on the command line.
        trials: number of trials in the long form.
        at_once: number of concurrent trials, on one event loop.
        report: report of the current run.
    """

    name: ClassVar[str]
    trials: ClassVar[int]
    at_once: ClassVar[int] = 1
    report: Report

    @abstractmethod
    async def prepare(self, folder: Path) -> None:
        """Prepare what all trials share; ``folder`` stays until the end.

        Raises:
            Unavailable: A requirement of every trial is missing.
        """

    @abstractmethod
    async def trial(self, choose: random.Random, folder: Path) -> None:
        """Run one trial, in an empty folder with the number of the trial as its name.

        Raises:
            AssertionError: A rule of the campaign is broken.
            Missed: The trial has no result.
        """

    def finish(self) -> None:  # noqa: B027
        """Check rules that concern all trials together; raises AssertionError."""

    async def close(self) -> None:  # noqa: B027
        """Release the resources of `prepare`."""


async def run(
    campaign: Campaign,
    seed: int,
    trials: int,
    *,
    only: int | None = None,
    seconds: float | None = None,
    on_trial: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Run trials; the choices of each depend only on the seed and its number.

    Args:
        campaign: campaign to run.
        seed: seed of the choices.
        trials: number of trials.
        only: number of a single trial to repeat.
        seconds: time after which no further trial starts.
        on_trial: function called after each trial.

    Raises:
        Unavailable: A requirement of every trial is missing.
    """
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # clients are meant to die
    report = campaign.report = Report(campaign.name, seed)
    began = time.monotonic()
    base = Path(tempfile.mkdtemp(prefix="fastpull-campaign-"))
    try:
        (base / "shared").mkdir()
        await campaign.prepare(base / "shared")
        left = iter([only] if only is not None else range(trials))

        async def try_next() -> None:
            for number in left:
                if seconds is not None and time.monotonic() - began > seconds:
                    break
                folder = base / str(number)
                folder.mkdir()
                await _try(campaign, number, folder)
                await asyncio.to_thread(shutil.rmtree, folder)
                on_trial(report)

        async with asyncio.TaskGroup() as group:
            for _ in range(campaign.at_once):
                group.create_task(try_next())
        if only is None:
            try:
                campaign.finish()
            except AssertionError as error:
                report.failures.append((-1, str(error)))
    finally:
        await campaign.close()
        shutil.rmtree(base, ignore_errors=True)
    return report


async def _try(campaign: Campaign, number: int, folder: Path) -> None:
    report = campaign.report
    try:
        async with asyncio.timeout(_TRIAL_SECONDS):
            await campaign.trial(random.Random(f"{report.seed}/{number}"), folder)
    except Missed:
        report.missed += 1
        return
    except AssertionError as error:
        report.failures.append((number, str(error) or traceback.format_exc(limit=-1)))
    except Exception as error:  # noqa: BLE001  # record a failed or hanging pull and continue the campaign
        report.failures.append((number, f"{error!r}\n{traceback.format_exc(limit=-4)}"))
    report.trials += 1
