"""The root's part in the making of products: who is to make what, who has all, and whether all have made the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from fastpull.cluster.control.agreement import name_ranks
from fastpull.cluster.build.builders import MemberState, choose_sources, odd_ones

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel


class BuildCoordinator:
    """What the root knows of the products of an image.

    Args:
        number: of the image within the job.
        layers: for each the number of its blob.
        sizes: of the blobs, in bytes.
        council: of the job.
    """

    def __init__(self, number: int, layers: Sequence[int], sizes: Sequence[int], council: ControlChannel) -> None:
        self._number = number
        self._layers = layers
        self._sizes = sizes
        self._council = council
        self._makers: Mapping[int, MemberState] = {}
        self._sources: list[int | None] = [None] * len(layers)
        self._finished = set[int]()
        self._gathered = set[int]()
        self._fingerprints: dict[int, str] = {}
        self._may_assemble = self._has_judged = False
        for word, handler in (
            ("finished", self._on_finished),
            ("gathered", self._on_gathered),
            ("made", self._on_made),
        ):
            council.on(f"{number}.{word}", handler)

    def plan(self, makers: Mapping[int, MemberState]) -> list[int]:
        """Who is to make what, in a round in which these take part."""
        self._makers = makers
        if not makers:
            return []
        sources = choose_sources(self._layers, self._sizes, makers, self._sources)
        self._sources = list(sources)
        self._finished = {layer for layer, source in enumerate(sources) if makers[source].products[layer]}
        self._look()
        return sources

    def drop(self, rank: int) -> None:
        """Goes on without a rank."""
        self._makers = {one: maker for one, maker in self._makers.items() if one != rank}
        self._look()

    def missing(self) -> Iterable[int]:
        """The ranks whose part is waited for."""
        if self._has_judged:
            return []
        if not self._may_assemble:
            making = {source for layer, source in enumerate(self._sources) if layer not in self._finished}
            return sorted(self._makers.keys() & making) or sorted(self._makers.keys() - self._gathered)
        return sorted(self._makers.keys() - self._fingerprints.keys())

    def _on_finished(self, rank: int, value: dict[str, Any]) -> None:
        if self._sources[value["layer"]] == rank:
            self._finished.add(value["layer"])

    def _on_gathered(self, rank: int, _: Any) -> None:
        self._gathered.add(rank)
        self._look()

    def _on_made(self, rank: int, value: dict[str, Any]) -> None:
        self._fingerprints[rank] = value["fingerprint"]
        self._look()

    def _look(self) -> None:
        ranks = self._makers.keys()
        if not ranks:
            return
        if not self._may_assemble and ranks <= self._gathered:
            self._may_assemble = True
            self._council.post_all(ranks, f"{self._number}.assemble")
        if self._may_assemble and not self._has_judged and ranks <= self._fingerprints.keys():
            self._has_judged = True
            self._judge({rank: self._fingerprints[rank] for rank in ranks})

    def _judge(self, fingerprints: Mapping[int, str]) -> None:
        """Says who may publish: all; or, where that is asked for, the more than half that have made the same.

        Who is told that it has made something else fails; that ends the image on all, or leaves that rank out.
        """
        groups = odd_ones(fingerprints)
        verdict: dict[str, Any] = {"odd": [], "makers": [name_ranks(ranks) for ranks in groups.values()]}
        if groups:
            most = next(iter(groups.values()))
            right = most if 2 * len(most) > len(fingerprints) else []
            verdict["odd"] = sorted(fingerprints.keys() - set(right))
        told = fingerprints if self._council.terms.best_effort or not groups else verdict["odd"]
        self._council.post_all(told, f"{self._number}.verdict", verdict)
