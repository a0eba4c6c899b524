"""What a recipe is: hostile layers, and what has to become of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fastpull.errors import FastpullError, LayerError, LimitExceeded, TarError
from fastpull.layers.archive import END, header_of, padded
from tests.support.layers import Member

CANARY = b"@canary@"
"""Stands for the path of the canary, without leading slash, in paths and link targets."""

Part = Member | bytes
"""An entry, or bytes of the tar as they are."""

Layer = Sequence[Part] | bytes
"""The parts of a tar, to which its end is added, or all of its bytes."""

Tree = Mapping[str | bytes, str]
"""For each path what is there; directories that are only on the way to something need not be told.

``d`` a directory, ``f TEXT`` a file, ``l TARGET`` a symbolic link, ``p`` a fifo, ``c 1:3`` and ``b 8:1`` devices;
then, where they are not the usual ones, in brackets mode, owner, time and attributes: ``f x [4755 uid=5 user.a=1]``.
``= NAME`` is one more name of another path's inode.
"""


@dataclass(frozen=True)
class RecipeRefused:
    """The layers are refused.

    Attributes:
        error: of exactly this class.
        reason: a part of the message.
        culprit: a part of the message, too: the entry at fault.
    """

    error: type[FastpullError]
    reason: str
    culprit: str = ""


Verdict = Tree | RecipeRefused


@dataclass(frozen=True)
class AttackRecipe:
    """One attack.

    Attributes:
        name: of the test.
        layers: from the base to the top; each is its tar, or the parts of one.
        verdict: what has to come of them.
    """

    name: str
    layers: tuple[Layer, ...]
    verdict: Verdict

    def tars(self, canary: bytes) -> list[bytes]:
        """The layers as they would come, aimed at a canary."""
        return [layer if isinstance(layer, bytes) else _tar(layer, canary) for layer in self.layers]


def recipe(name: str, *layers: Layer, gives: Verdict, split: Verdict | None = None, at: int = -1) -> list[AttackRecipe]:
    """Adds a recipe, and with ``split`` the same one cut in two layers before its last part, or before part ``at``."""
    made = [AttackRecipe(name, layers, gives)]
    if split is not None:
        (only,) = layers
        assert not isinstance(only, bytes), "only parts can be split"
        made.append(AttackRecipe(f"{name}-in-two-layers", (only[:at], only[at:]), split))
    return made


def escapes(culprit: str) -> RecipeRefused:
    return RecipeRefused(LayerError, "path leaves the root", culprit)


def layer_error(reason: str, culprit: str = "") -> RecipeRefused:
    return RecipeRefused(LayerError, reason, culprit)


def tar_error(reason: str, culprit: str = "") -> RecipeRefused:
    return RecipeRefused(TarError, reason, culprit)


def over_limit(reason: str, culprit: str = "") -> RecipeRefused:
    return RecipeRefused(LimitExceeded, reason, culprit)


def below_own(culprit: str) -> RecipeRefused:
    return layer_error("an entry below a non-directory of its own layer", culprit)


ROOT_KIND = layer_error("the root has to be a directory", "/")


def _tar(parts: Sequence[Part], canary: bytes) -> bytes:
    return b"".join(part if isinstance(part, bytes) else _member(part, canary) for part in parts) + END


def _member(member: Member, canary: bytes) -> bytes:
    entry, content = member
    aimed = replace(entry, path=entry.path.replace(CANARY, canary), linkname=entry.linkname.replace(CANARY, canary))
    return header_of(aimed) + padded(content)
