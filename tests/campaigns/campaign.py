"""The frame of a campaign: a seed, trials, and a report of how many failed."""

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
"""A trial that takes so long hangs; it is far more than any takes on a loaded machine."""


class Missed(Exception):
    """The misfortune did not come to pass, or hit something that is not ours; the trial says nothing."""


class Unavailable(Exception):
    """This machine lacks what a campaign needs."""


@dataclass(slots=True)
class Report:
    """What came of a campaign.

    Attributes:
        name: of the campaign.
        seed: that repeats it.
        trials: that said something.
        missed: those that did not.
        failures: number of the trial and what went wrong.
        counts: what the trials were, and how they ended.
        notes: what was measured.
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
        """All of it, for people."""
        lines = [f"  {count:6} {what}" for what, count in sorted(self.counts.items())]
        lines += [f"  {note}" for note in self.notes]
        lines += [
            f"  failed: --seed {self.seed} --only {number}: {what}".replace("\n", "\n    ")
            for number, what in self.failures
        ]
        return "\n".join([*lines, str(self)])


class Campaign(ABC):
    """One kind of misfortune.

    Attributes:
        name: on the command line.
        trials: of the long form.
        at_once: how many trials run side by side, on one event loop.
        report: being made.
    """

    name: ClassVar[str]
    trials: ClassVar[int]
    at_once: ClassVar[int] = 1
    report: Report

    @abstractmethod
    async def prepare(self, folder: Path) -> None:
        """Makes what all trials need, before the first; ``folder`` stays until the end.

        Raises:
            Unavailable: something is not there that no trial can do without.
        """

    @abstractmethod
    async def trial(self, choose: random.Random, folder: Path) -> None:
        """Tries once, in an empty folder that is named by the number of the trial.

        Raises:
            AssertionError: something was lost, or something bad was published.
            Missed: nothing can be said.
        """

    def finish(self) -> None:  # noqa: B027
        """Checks what only all trials together can show; raises AssertionError."""

    async def close(self) -> None:  # noqa: B027
        """Undoes what `prepare` did."""


async def run(
    campaign: Campaign,
    seed: int,
    trials: int,
    *,
    only: int | None = None,
    seconds: float | None = None,
    on_trial: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Runs trials, each with its own choices, which depend on seed and number alone.

    Args:
        campaign: what to try.
        seed: of the choices.
        trials: how many.
        only: the number of the one trial to repeat.
        seconds: begin no further trial after so long.
        on_trial: told after each trial.

    Raises:
        Unavailable: there can be no trial.
    """
    logging.getLogger("aiohttp.server").setLevel(logging.CRITICAL)  # that clients die is what is wanted
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
    except Exception as error:  # noqa: BLE001  # a pull that should have succeeded, or hung: the campaign goes on
        report.failures.append((number, f"{error!r}\n{traceback.format_exc(limit=-4)}"))
    report.trials += 1
