"""Fault campaigns: many pulls of one image, each with a random fault. See ``docs/testing.md``."""

from __future__ import annotations

from collections.abc import Callable

from tests.campaigns.bitrot import BitRot
from tests.campaigns.campaign import Campaign
from tests.campaigns.concurrency import Concurrency, Handover
from tests.campaigns.crash import Crash
from tests.campaigns.errnos import Errnos
from tests.campaigns.forgery import Forgery
from tests.campaigns.powercut import PowerCut
from tests.campaigns.refusal import Refusal
from tests.campaigns.registry import Permanent, Registry
from tests.campaigns.sameness import Sameness
from tests.campaigns.tar import TarSubject

CAMPAIGNS: dict[str, Callable[[], Campaign]] = {
    campaign.name: campaign
    for campaign in (
        Crash,
        Errnos,
        PowerCut,
        BitRot,
        Forgery,
        Concurrency,
        Handover,
        Registry,
        Permanent,
        Refusal,
        Sameness,
        TarSubject,
    )
}
