"""Recipes: hostile layers with their expected verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from fastpull.errors import FastpullError, LayerError, LimitExceeded, TarError
from fastpull.layers.archive import END, header_of, padded
from tests.support.layers import Member

CANARY = b"@canary@"
"""Placeholder in paths and link targets for the path of the canary, without a leading slash."""

Part = Member | bytes
"""An entry, or raw bytes of the tar."""

Layer = Sequence[Part] | bytes
"""The parts of a tar without its end, or all of its bytes."""

Tree = Mapping[str | bytes, str]
"""The expected entry of each path; parent directories with default attributes may be omitted.

``d`` a directory, ``f TEXT`` a file, ``l TARGET`` a symbolic link, ``p`` a fifo, ``c 1:3`` and ``b 8:1`` devices;
mode, owner, time and extended attributes follow in brackets unless they are defaults: ``f x [4755 uid=5 user.a=1]``.
``= NAME`` is a hard link to another path.
"""


@dataclass(frozen=True)
class RecipeRefused:
    """A verdict that the layers are refused.

    Attributes:
        error: exact class of the error.
        reason: part of the message.
        culprit: part of the message that names the entry.
    """

    error: type[FastpullError]
    reason: str
    culprit: str = ""


Verdict = Tree | RecipeRefused


@dataclass(frozen=True)
class AttackRecipe:
    """An attack.

    Attributes:
        name: name of the test.
        layers: layers from the base to the top, as tars or parts.
        verdict: expected tree or refusal.
    """

    name: str
    layers: tuple[Layer, ...]
    verdict: Verdict

    def tars(self, canary: bytes) -> list[bytes]:
        """Return the layers as tars that target a canary."""
        return [layer if isinstance(layer, bytes) else _tar(layer, canary) for layer in self.layers]


def recipe(name: str, *layers: Layer, gives: Verdict, split: Verdict | None = None, at: int = -1) -> list[AttackRecipe]:
    """Return a recipe, and with ``split`` also its variant cut into two layers before part ``at``."""
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
