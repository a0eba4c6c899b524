"""``make faults``: run campaigns, and fail if a trial failed."""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys

from tests.campaigns import CAMPAIGNS
from tests.campaigns.campaign import Report, Unavailable, run


def _progress(report: Report) -> None:
    if sys.stderr.isatty():
        print(f"\r{report} ", end="", file=sys.stderr)


def main() -> int:
    parser = argparse.ArgumentParser("make faults", description="Run fault campaigns.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(CAMPAIGNS)} (default: all)")
    parser.add_argument("--trials", type=int, help="trials of each campaign (default: its long form)")
    parser.add_argument("--seed", type=int, help="seed of the run to repeat (default: a new seed)")
    parser.add_argument("--only", type=int, metavar="NUMBER", help="repeat only this trial of a run")
    parser.add_argument("--seconds", type=float, help="start no further trial of a campaign after this time")
    options = parser.parse_args()
    unknown = set(options.names) - set(CAMPAIGNS)
    if unknown:
        parser.error(f"unknown campaign: {', '.join(sorted(unknown))}")
    seed = secrets.randbelow(1 << 32) if options.seed is None else options.seed
    failed = False
    for name in options.names or CAMPAIGNS:
        campaign = CAMPAIGNS[name]()
        trials = campaign.trials if options.trials is None else options.trials
        try:
            report = asyncio.run(
                run(campaign, seed, trials, only=options.only, seconds=options.seconds, on_trial=_progress)
            )
        except Unavailable as reason:
            print(f"{name}: not run: {reason}", flush=True)
            failed = failed or bool(options.names)
            continue
        print(f"\r{report.details()}", flush=True)
        failed = failed or bool(report.failures) or not report.trials
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
