"""Capabilities of sinks: each sink has those of the table in `fastpull.sinks.capabilities`, and no others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from fastpull.sinks import Directory, Squashfs, Tar, capabilities
from fastpull.sinks.bundle import BundleSink, SidecarSink
from fastpull.sinks.capabilities import (
    DistributedSink,
    FinishedImageSink,
    MarkedSink,
    NamedSink,
    SidecarFilesSink,
)

if TYPE_CHECKING:
    from fastpull.sinks import Sink

PROTOCOLS = (NamedSink, MarkedSink, SidecarFilesSink, FinishedImageSink, DistributedSink)
SINKS: dict[str, Sink] = {
    "Directory": Directory("out"),
    "Tar": Tar("out.tar"),
    "Squashfs": Squashfs("out.sqsh"),
    "BundleSink": BundleSink(Directory("out")),
    "SidecarSink": SidecarSink(Squashfs("out.sqsh"), [".meta"]),
}


class PlainSink:
    """A sink of the caller with the methods of `Sink` alone."""

    def begin(self, resources: object) -> None: ...
    def room(self) -> int: ...  # type: ignore[empty-body]
    def layer(self, *_: object) -> None: ...
    def commit(self, *_: object) -> None: ...
    def cancel(self) -> None: ...
    def abort(self) -> None: ...


@pytest.mark.parametrize("name", SINKS)
def test_sink_has_documented_capabilities(name: str) -> None:
    rows = [line.split("  ") for line in (capabilities.__doc__ or "").splitlines() if line.startswith("`")]
    documented = {row[0].strip("`") for row in rows if row[-1].strip() == "all" or f"`{name}`" in row[-1]}
    assert {protocol.__name__ for protocol in PROTOCOLS if isinstance(SINKS[name], protocol)} == documented


def test_plain_sink_has_no_capability() -> None:
    assert not any(isinstance(PlainSink(), protocol) for protocol in PROTOCOLS)
