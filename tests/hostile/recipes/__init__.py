"""All recipes by class of attack."""

from __future__ import annotations

from itertools import chain

from tests.hostile.recipe import AttackRecipe
from tests.hostile.recipes import archives, links, metadata, names, resources, whiteouts

CLASSES: dict[str, list[AttackRecipe]] = {
    module.__name__.rpartition(".")[2]: list(chain.from_iterable(module.RECIPES))
    for module in (names, links, archives, resources, metadata, whiteouts)
}
ALL: dict[str, AttackRecipe] = {f"{kind}-{one.name}": one for kind, found in CLASSES.items() for one in found}
assert len(ALL) == sum(map(len, CLASSES.values())), "recipe names are unique"
