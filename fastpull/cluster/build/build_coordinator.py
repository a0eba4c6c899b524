"""Rank 0's part in building layers together: it assigns builders, and compares the outputs of all members."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from fastpull.cluster.build.builders import MemberState, choose_sources, differing_groups
from fastpull.cluster.control.agreement import name_ranks
from fastpull.cluster.messages import AssembleImage, ImageAssembled, LayerBuilt, LayersGathered, OutputVerdict

if TYPE_CHECKING:
    from fastpull.cluster.control.channel import ControlChannel


class BuildCoordinator:
    """The state of all members that build the layers of an image.

    Args:
        image: the number of the image within the job.
        layers: for each layer the number of its blob.
        sizes: the sizes of the blobs, in bytes.
        channel: the control channel of the job.
    """

    def __init__(self, image: int, layers: Sequence[int], sizes: Sequence[int], channel: ControlChannel) -> None:
        self._image = image
        self._layers = layers
        self._sizes = sizes
        self._channel = channel
        self._members: Mapping[int, MemberState] = {}
        self._sources: list[int | None] = [None] * len(layers)
        self._built = set[int]()
        self._gathered = set[int]()
        self._fingerprints: dict[int, str] = {}
        self._may_assemble = self._has_verdict = False
        channel.on(LayerBuilt, self._on_layer_built, image)
        channel.on(LayersGathered, self._on_layers_gathered, image)
        channel.on(ImageAssembled, self._on_image_assembled, image)

    def plan(self, members: Mapping[int, MemberState]) -> list[int]:
        """Return for each layer the rank that its artifact comes from, in a round of these members."""
        self._members = members
        if not members:
            return []
        sources = choose_sources(self._layers, self._sizes, members, self._sources)
        self._sources = list(sources)
        self._built = {layer for layer, source in enumerate(sources) if members[source].artifacts[layer]}
        self._advance()
        return sources

    def drop(self, rank: int) -> None:
        """Go on without a rank."""
        self._members = {one: member for one, member in self._members.items() if one != rank}
        self._advance()

    def missing(self) -> Iterable[int]:
        """Return the ranks that the others wait for."""
        if self._has_verdict:
            return []
        if not self._may_assemble:
            building = {source for layer, source in enumerate(self._sources) if layer not in self._built}
            return sorted(self._members.keys() & building) or sorted(self._members.keys() - self._gathered)
        return sorted(self._members.keys() - self._fingerprints.keys())

    def _on_layer_built(self, rank: int, message: LayerBuilt) -> None:
        if self._sources[message.layer] == rank:
            self._built.add(message.layer)

    def _on_layers_gathered(self, rank: int, _: LayersGathered) -> None:
        self._gathered.add(rank)
        self._advance()

    def _on_image_assembled(self, rank: int, message: ImageAssembled) -> None:
        self._fingerprints[rank] = message.fingerprint
        self._advance()

    def _advance(self) -> None:
        """Send what is due after a change."""
        ranks = self._members.keys()
        if not ranks:
            return
        if not self._may_assemble and ranks <= self._gathered:
            self._may_assemble = True
            self._channel.broadcast(AssembleImage(self._image), ranks)
        if self._may_assemble and not self._has_verdict and ranks <= self._fingerprints.keys():
            self._has_verdict = True
            self._send_verdict({rank: self._fingerprints[rank] for rank in ranks})

    def _send_verdict(self, fingerprints: Mapping[int, str]) -> None:
        """Send which members may publish: all, or with ``--best-effort`` the majority whose outputs are equal.

        A rejected member fails. That ends the image on all members, or drops this member.
        """
        groups = differing_groups(fingerprints)
        rejected: list[int] = []
        if groups:
            largest = next(iter(groups.values()))
            accepted = largest if 2 * len(largest) > len(fingerprints) else []
            rejected = sorted(fingerprints.keys() - set(accepted))
        verdict = OutputVerdict(self._image, tuple(rejected), tuple(name_ranks(ranks) for ranks in groups.values()))
        may_publish = self._channel.terms.best_effort or not groups
        self._channel.broadcast(verdict, fingerprints if may_publish else rejected)
