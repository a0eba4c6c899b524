"""The root's part of an exchange: it makes the plan and grants leases; see `fastpull.cluster.blobs.exchange`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from fastpull.cluster.blobs.plan import DistributionPlan, Holding, cut, from_bits, to_bits
from fastpull.cluster.build.build_coordinator import BuildCoordinator
from fastpull.cluster.build.builders import MemberState

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel


class ExchangeCoordinator:
    """The root's part: it makes the plan and grants leases.

    Args:
        number: of the image within the job.
        sizes: of its blobs, in bytes.
        ranks: for how many the blobs are cut, the same on all.
        members: the ranks that take part.
        council: of the job.
        layers: for each the number of its blob.
    """

    def __init__(
        self,
        number: int,
        sizes: Sequence[int],
        ranks: int,
        members: Sequence[int],
        council: ControlChannel,
        layers: Sequence[int] = (),
    ) -> None:
        self._number = number
        self._council = council
        self.members = list(members)
        self.stretches = cut(sizes, ranks)
        self._layers = layers
        self._blobs = range(len(sizes))
        self._judge = BuildCoordinator(number, layers, sizes, council)
        self._round = 0
        self._said: dict[int, dict[str, Any]] = {}
        self._plan: DistributionPlan | None = None
        self._stack = ExitStack()
        for word, handler in (
            ("hold", self._on_hold),
            ("ask", self._on_ask),
            ("brought", self._on_brought),
            ("whole", self._on_whole),
        ):
            council.on(f"{number}.{word}", handler)
        doing = f"image {number + 1} was exchanged"
        self._stack.enter_context(council.expecting(self._debtors, doing))

    def drop(self, rank: int) -> None:
        """Goes on without a rank, in a new round."""
        if rank in self.members:
            self.members.remove(rank)
            self._judge.drop(rank)
            self._round += 1
            self._said, self._plan = {}, None
            self._council.post_all(self.members, f"{self._number}.again", {"round": self._round})

    def close(self) -> None:
        """Nothing is waited for any more."""
        self._stack.close()

    def _on_hold(self, rank: int, value: dict[str, Any]) -> None:
        if rank not in self.members or value["round"] != self._round:
            return
        self._said[rank] = value
        if len(self._said) == len(self.members):
            self._make_plan()

    def _make_plan(self) -> None:
        has = {rank: from_bits(said["has"], len(self.stretches)) for rank, said in self._said.items()}
        makers = {
            rank: MemberState(self._whole(has[rank]), from_bits(said["products"], len(self._layers)))
            for rank, said in self._said.items()
            if said["products"] is not None
        }
        sources = self._judge.plan(makers)
        held = {}
        for rank, said in self._said.items():
            wants = frozenset(self._blobs) if said["wants"] else frozenset[int]()
            if rank in makers:
                mine = (layer for layer, source in enumerate(sources) if source == rank)
                wants = frozenset(self._layers[layer] for layer in mine if not makers[rank].products[layer])
            held[rank] = Holding(has[rank], wants)
        self._plan = DistributionPlan(self.stretches, held)
        plan = {
            "round": self._round,
            "held": {
                rank: [said["has"], to_bits([blob in held[rank].wants for blob in self._blobs])]
                for rank, said in self._said.items()
            },
            "sources": sources,
            "products": {rank: self._said[rank]["products"] for rank in makers},
        }
        self._council.post_all(self.members, f"{self._number}.plan", plan)

    def _whole(self, has: Sequence[bool]) -> frozenset[int]:
        """The blobs of which a rank has all stretches."""
        lacking = {stretch.blob for stretch in self.stretches if not has[stretch.number]}
        return frozenset(self._blobs) - lacking

    def _on_ask(self, rank: int, value: dict[str, Any]) -> None:
        if self._plan is not None and rank in self.members and value["round"] == self._round:
            stretch = self._plan.take(rank)
            self._council.post(rank, f"{self._number}.lease", {"round": self._round, "stretch": stretch})

    def _on_brought(self, _: int, value: dict[str, Any]) -> None:
        if self._plan is not None and value["round"] == self._round:
            self._plan.bring(value["stretch"])

    def _on_whole(self, rank: int, value: dict[str, Any]) -> None:
        if self._plan is not None and rank in self.members and value["round"] == self._round:
            is_given = self._plan.take_whole(value["blob"], rank)
            self._council.post(rank, f"{self._number}.given", {**value, "is_given": is_given})

    def _debtors(self) -> Iterable[int]:
        if self._plan is None:
            return [rank for rank in self.members if rank not in self._said]
        return list(self._plan.debtors()) or self._judge.missing()
