"""Every recipe into every kind of output: verdict, equality for 1 and 8 workers, and an unchanged canary."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fastpull.config.limits import DEFAULT_LIMITS
from tests.hostile.recipe import AttackRecipe, RecipeRefused
from tests.hostile.recipes import ALL, CLASSES
from tests.hostile.running import SINKS, check_refusal, expected_words, make_canary, outcome, read_output, state_of
from tests.support.engines import ENGINES, Engine, scan

PATH_MAX = 4096
RECIPES = [pytest.param(one, id=name) for name, one in ALL.items()]


@pytest.fixture(scope="module")
def playground() -> Iterator[Path]:
    """Return a directory with a canary, the target of all recipes of this module."""
    with tempfile.TemporaryDirectory() as name:
        make_canary(Path(name))
        yield Path(name)


def test_every_class_has_enough_distinct_recipes() -> None:
    assert all(len(found) >= 40 for found in CLASSES.values())
    assert len(ALL) >= 200
    attacks = [(one.layers, kind) for kind, found in CLASSES.items() for one in found]
    assert len({repr(layers) for layers, _ in attacks}) == len(attacks), "no two recipes have the same layers"


def limited(engine: Engine) -> Engine:
    """Return an engine whose scanner has the default limit."""
    return replace(engine, scanner=lambda: engine.scanner(DEFAULT_LIMITS.max_layer_size))


@pytest.mark.parametrize("recipe", RECIPES)
def test_both_scanners_agree_on_a_recipe(recipe: AttackRecipe) -> None:
    for tar in recipe.tars(b"canary"):
        native, reference = (scan(limited(engine), tar, 1 << 16).verdict for engine in ENGINES)
        assert native == reference


@pytest.mark.root
@pytest.mark.peer("unsquashfs")
@pytest.mark.parametrize("kind", SINKS)
@pytest.mark.parametrize("recipe", RECIPES)
def test_recipe(recipe: AttackRecipe, kind: str, playground: Path) -> None:
    canary = playground / "canary"
    before = state_of(canary)
    folder = playground / "outputs"
    try:
        for workers in (1, 8):
            folder.mkdir()
            error = outcome(recipe, kind, folder, canary, workers)
            if isinstance(recipe.verdict, RecipeRefused):
                check_refusal(error, recipe.verdict)
            else:
                assert error is None, str(error)
                expected = expected_words(recipe.verdict, os.fsencode(canary)[1:], kind)
                if kind == "squashfs" and max(map(len, expected)) > PATH_MAX:
                    assert set(read_output(folder / "out", kind, can_be_extracted=False)) == set(expected)
                else:
                    assert read_output(folder / "out", kind) == expected
            assert state_of(canary) == before
            shutil.rmtree(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        assert os.listdir(playground) == ["canary"]


# --- as an unprivileged user


@pytest.fixture(scope="module")
def as_nobody() -> dict[str, Any]:
    """Return the failures of all recipes as an unprivileged user, from a separate process."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        os.mkdir(f"{name}/theirs")
        os.chown(f"{name}/theirs", 65534, 65534)
        canary = make_canary(Path(name))
        os.chmod(canary, 0o777)  # the user may write to it, so that only fastpull protects it
        os.chmod(canary / "folder", 0o777)
        os.chmod(canary / "file", 0o666)
        before = state_of(canary)
        done = subprocess.run(
            [sys.executable, "-m", "tests.hostile.as_nobody", f"{name}/theirs", canary],
            check=False,
            capture_output=True,
        )
        assert done.returncode == 0, done.stderr.decode()
        assert state_of(canary) == before
        assert os.listdir(f"{name}/theirs") == []
        found: dict[str, Any] = json.loads(done.stdout)
        return found


@pytest.mark.root
@pytest.mark.parametrize("name", ALL)
def test_recipe_as_an_unprivileged_user(name: str, as_nobody: dict[str, Any]) -> None:
    assert as_nobody[name] == []
