"""One rank's part in building the layers of an image together with other ranks.

::

    the pipeline:  is_mine? ── yes ──> build ─ mark_written … ─> finish      no ──> wait until the artifact is here
    an artifact:   frames down a tree of the ranks that lack it, while it grows ─> verified by its trailer
    all artifacts: AssembleImage ─> assemble ─> rank 0 compares the fingerprints ─> OutputVerdict ─> publish
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import TYPE_CHECKING

from fastpull.cluster.blobs.plan import CHUNK_SIZE, next_ranks
from fastpull.cluster.build.artifacts import FILES
from fastpull.cluster.build.builders import MemberState, lacking
from fastpull.cluster.control.channel import ROOT
from fastpull.cluster.messages import AssembleImage, ImageAssembled, LayerBuilt, LayersGathered, OutputVerdict
from fastpull.cluster.transport.frame import FrameKind
from fastpull.cluster.transport.send_queue import SendRequest
from fastpull.concurrency.threads import in_thread
from fastpull.errors import OutputDiffers

if TYPE_CHECKING:
    from fastpull.cluster.build.artifacts import LayerArtifact
    from fastpull.cluster.control.channel import ControlChannel
    from fastpull.cluster.transport.frame import Frame
    from fastpull.cluster.transport.sender import Sender

_GENERATIONS = 1 << 8  # generations that one rank may begin in one round


class BuildMember:
    """The artifacts on this rank.

    Args:
        image: the number of the image within the job.
        source: the name of the image, for messages.
        artifacts: the artifacts of all layers, with files for those that are received.
        weights: the bytes of each layer's blob, the unit of `progress`.
        channel: the control channel of the job.
        sender: sends frames of this image.
        executor: runs blocking calls on files.

    Attributes:
        received: the number of bytes of artifacts received.
        built: the numbers of the layers that this rank built.
        gathered_at, assembled_at: the times at which all artifacts were here, and at which this rank had assembled its
            output, by `time.monotonic`; 0 before.
    """

    def __init__(
        self,
        image: int,
        source: str,
        artifacts: Sequence[LayerArtifact],
        weights: Sequence[int],
        channel: ControlChannel,
        sender: Sender,
        executor: Executor,
    ) -> None:
        self._image = image
        self._source = source
        self._artifacts = artifacts
        self._weights = weights
        self._channel = channel
        self._sender = sender
        self._executor = executor
        self._loop = asyncio.get_running_loop()
        self._sources: dict[int, int] = {}
        self._lacking: list[list[int]] = [[] for _ in artifacts]
        self._arrived = [0] * len(artifacts)
        self._changed = asyncio.Event()
        self._assemble = asyncio.Event()
        self._verdict: asyncio.Future[OutputVerdict] = self._loop.create_future()
        self._has_announced = False
        self.received = 0
        self.built: list[int] = []
        self.gathered_at = self.assembled_at = 0.0
        for artifact in artifacts:
            artifact.on_written = partial(self._on_written, artifact)
        channel.on(AssembleImage, lambda *_: self._assemble.set(), image)
        channel.on(OutputVerdict, self._on_verdict, image)

    # --- for the pipeline

    async def is_mine(self, layer: int) -> bool:
        """Wait until a layer's artifact is here, or is assigned to this rank; return whether this rank builds it."""
        artifact = self._artifacts[layer]
        while not artifact.is_complete:
            if self._sources.get(layer) == self._channel.rank:
                return True
            await self._changed.wait()
        return False

    async def finish(self, layer: int) -> None:
        """Complete the artifact of a layer that this rank built.

        Raises:
            FastpullError: the trailer cannot be written.
        """
        await in_thread(self._executor, self._artifacts[layer].finish)
        self.built.append(layer)
        self._channel.send(ROOT, LayerBuilt(self._image, layer))
        self._announce()

    async def gathered(self) -> None:
        """Wait until all ranks have all artifacts, so that none reads the files of this rank any more."""
        await self._assemble.wait()

    async def agree(self, fingerprint: str) -> None:
        """Wait until all ranks have assembled equal outputs.

        Args:
            fingerprint: the fingerprint of this rank's output.

        Raises:
            OutputDiffers: this rank's output differs from that of the majority, or there is no majority.
        """
        self.assembled_at = time.monotonic()
        self._channel.send(ROOT, ImageAssembled(self._image, fingerprint))
        verdict = await self._verdict
        if self._channel.rank in verdict.rejected:
            raise OutputDiffers(self._source, verdict.groups)

    # --- for the exchange

    @property
    def has(self) -> list[bool]:
        """Flags of the layers whose artifacts are here, one for each layer."""
        return [artifact.is_complete for artifact in self._artifacts]

    @property
    def progress(self) -> int:
        """The progress of all artifacts, in bytes of blobs."""
        return sum(
            weight if artifact.is_complete else min(weight, arrived)
            for artifact, weight, arrived in zip(self._artifacts, self._weights, self._arrived, strict=True)
        )

    def plan(self, round_: int, sources: Sequence[int], members: Mapping[int, MemberState]) -> None:
        """Begin a round; send what is here of the artifacts that come from this rank to the ranks that lack it."""
        self._sources = dict(enumerate(sources))
        self._lacking = [lacking(members, layer, source) for layer, source in enumerate(sources)]
        for artifact in self._artifacts:
            artifact.first_generation = round_ * _GENERATIONS + 1
            if self._sources[artifact.layer] == self._channel.rank:
                for number, file in enumerate(artifact.files):
                    self._forward(artifact, artifact.generation, number, self._channel.rank, 0, file.front)
        self._wake_waits()
        self._announce()

    async def receive(self, frame: Frame, memory: memoryview) -> None:
        """Store an intact frame, and forward it.

        Raises:
            FastpullError: it cannot be stored, or it completes an artifact that is damaged.
        """
        layer, number = divmod(frame.item, FILES)
        artifact = self._artifacts[layer]
        if self._sources.get(layer) == self._channel.rank or frame.part < artifact.generation or artifact.is_complete:
            return
        if frame.part > artifact.generation:
            artifact.begin(frame.part)
            self._arrived[layer] = 0
        write = partial(artifact.files[number].write, frame.part, frame.offset, memory, frame.total)
        if not await in_thread(self._executor, write):
            return
        self.received += frame.size
        self._arrived[layer] += frame.size
        self._forward(artifact, frame.part, number, frame.origin, frame.offset, frame.offset + frame.size)
        if await in_thread(self._executor, artifact.verify):
            self._announce()

    def close(self) -> None:
        """Close the files of all artifacts."""
        for artifact in self._artifacts:
            artifact.close()

    # --- private

    def _on_written(self, artifact: LayerArtifact, generation: int, file: int, start: int, stop: int) -> None:
        rank = self._channel.rank
        self._loop.call_soon_threadsafe(self._forward, artifact, generation, file, rank, start, stop)

    def _forward(
        self, artifact: LayerArtifact, generation: int, file: int, origin: int, start: int, stop: int
    ) -> None:
        """Queue a range of a file for the next ranks of its tree, which rotates from chunk to chunk."""
        wanting, fan_out = self._lacking[artifact.layer], self._channel.terms.fan_out
        item, source, kind = artifact.layer * FILES + file, artifact.files[file], FrameKind.ARTIFACT
        while start < stop:
            chunk = start // CHUNK_SIZE
            end = min(stop, (chunk + 1) * CHUNK_SIZE)
            turn = artifact.layer + chunk
            ranks = next_ranks(self._channel.rank, origin, wanting, turn, fan_out)
            self._sender.put(ranks, SendRequest(source, kind, item, generation, turn, origin, start, end))
            start = end

    def _announce(self) -> None:
        """Tell rank 0 once that all artifacts are here."""
        self._wake_waits()
        if not self._has_announced and all(self.has):
            self._has_announced = True
            self.gathered_at = time.monotonic()
            self._channel.send(ROOT, LayersGathered(self._image))

    def _on_verdict(self, _: int, verdict: OutputVerdict) -> None:
        if not self._verdict.done():
            self._verdict.set_result(verdict)

    def _wake_waits(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
