"""Rank 0's part of an exchange: it makes the plan and leases chunks; see `fastpull.cluster.blobs.exchange`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from fastpull.cluster.blobs.plan import DistributionPlan, Holding, cut
from fastpull.cluster.build.build_coordinator import BuildCoordinator
from fastpull.cluster.build.builders import MemberState
from fastpull.cluster.messages import (
    BlobLease,
    BlobRequest,
    ChunkDelivered,
    ChunkLease,
    ChunkRequest,
    ChunksHeld,
    ExchangePlan,
    MemberHolding,
    NewRound,
)
from fastpull.errors import MalformedMessage

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel


class ExchangeCoordinator:
    """The plan of an image's exchange, and its leases.

    Args:
        image: the number of the image within the job.
        sizes: the sizes of its blobs, in bytes.
        ranks: the number of ranks for which the blobs are cut, the same on all ranks.
        members: the ranks that take part.
        channel: the control channel of the job.
        layers: for each layer the number of its blob.

    Attributes:
        members: the ranks that still take part.
        chunks: the chunks of the image.
    """

    def __init__(
        self,
        image: int,
        sizes: Sequence[int],
        ranks: int,
        members: Sequence[int],
        channel: ControlChannel,
        layers: Sequence[int] = (),
    ) -> None:
        self._image = image
        self._channel = channel
        self.members = list(members)
        self.chunks = cut(sizes, ranks)
        self._layers = layers
        self._blobs = range(len(sizes))
        self._build = BuildCoordinator(image, layers, sizes, channel)
        self._round = 0
        self._held: dict[int, ChunksHeld] = {}
        self._plan: DistributionPlan | None = None
        self._stack = ExitStack()
        channel.on(ChunksHeld, self._on_chunks_held, image)
        channel.on(ChunkRequest, self._on_chunk_request, image)
        channel.on(ChunkDelivered, self._on_chunk_delivered, image)
        channel.on(BlobRequest, self._on_blob_request, image)
        self._stack.enter_context(channel.expecting(self._outstanding, f"image {image + 1} was exchanged"))

    def drop(self, rank: int) -> None:
        """Go on without a rank, in a new round."""
        if rank in self.members:
            self.members.remove(rank)
            self._build.drop(rank)
            self._round += 1
            self._held, self._plan = {}, None
            self._channel.broadcast(NewRound(self._image, self._round), self.members)

    def close(self) -> None:
        """Stop waiting for ranks."""
        self._stack.close()

    def _on_chunks_held(self, rank: int, held: ChunksHeld) -> None:
        if rank not in self.members or held.round != self._round:
            return
        artifacts = len(self._layers) if held.artifacts is None else len(held.artifacts)
        if (len(held.chunks), artifacts) != (len(self.chunks), len(self._layers)):
            reason = f"ChunksHeld: {len(held.chunks)} chunks and {artifacts} layers"
            expected = f"expected {len(self.chunks)} and {len(self._layers)}"
            raise MalformedMessage(self._channel.name(rank), f"{reason}, {expected}")
        self._held[rank] = held
        if len(self._held) == len(self.members):
            self._make_plan()

    def _make_plan(self) -> None:
        states = {
            rank: MemberState(self._complete_blobs(held.chunks), held.artifacts)
            for rank, held in self._held.items()
            if held.artifacts is not None
        }
        sources = self._build.plan(states)
        holdings = {}
        for rank, held in self._held.items():
            wants = frozenset(self._blobs) if held.wants else frozenset[int]()
            if rank in states:
                mine = (layer for layer, source in enumerate(sources) if source == rank)
                wants = frozenset(self._layers[layer] for layer in mine if not states[rank].artifacts[layer])
            holdings[rank] = Holding(held.chunks, wants)
        self._plan = DistributionPlan(self.chunks, holdings)
        members = {
            rank: MemberHolding(
                held.chunks, tuple(blob in holdings[rank].wants for blob in self._blobs), held.artifacts
            )
            for rank, held in self._held.items()
        }
        self._channel.broadcast(ExchangePlan(self._image, self._round, members, tuple(sources)), self.members)

    def _complete_blobs(self, has: Sequence[bool]) -> frozenset[int]:
        """Return the blobs of which all chunks are there."""
        lacking = {chunk.blob for chunk in self.chunks if not has[chunk.number]}
        return frozenset(self._blobs) - lacking

    def _current_plan(self, rank: int, round_: int) -> DistributionPlan | None:
        return self._plan if rank in self.members and round_ == self._round else None

    def _on_chunk_request(self, rank: int, request: ChunkRequest) -> None:
        plan = self._current_plan(rank, request.round)
        if plan is not None:
            self._channel.send(rank, ChunkLease(self._image, self._round, plan.lease(rank)))

    def _on_chunk_delivered(self, _: int, delivered: ChunkDelivered) -> None:
        if self._plan is not None and delivered.round == self._round:
            self._plan.mark_delivered(delivered.chunk)

    def _on_blob_request(self, rank: int, request: BlobRequest) -> None:
        plan = self._current_plan(rank, request.round)
        if plan is not None:
            is_granted = plan.lease_blob(request.blob, rank)
            self._channel.send(rank, BlobLease(self._image, self._round, request.blob, is_granted))

    def _outstanding(self) -> Iterable[int]:
        if self._plan is None:
            return [rank for rank in self.members if rank not in self._held]
        return list(self._plan.outstanding()) or self._build.missing()
