"""All recipes into directories as an unprivileged user: ``python -m tests.hostile.as_nobody FOLDER CANARY``.

It prints the failures of each recipe as JSON.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from pathlib import Path

from tests.hostile.recipe import AttackRecipe, RecipeRefused
from tests.hostile.recipes import ALL
from tests.hostile.running import check_refusal, expected_words, look_at_directory, outcome, read_output, state_of


def main() -> None:
    folder, canary = Path(sys.argv[1]), Path(sys.argv[2])
    "\x1b".encode("unicode_escape")  # load the codec now; the unprivileged user may be unable to read it

    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
    before = state_of(canary)
    json.dump({name: _complaints(one, folder / "run", canary, before) for name, one in ALL.items()}, sys.stdout)


def _complaints(recipe: AttackRecipe, folder: Path, canary: Path, before: object) -> list[str]:
    found = []
    for workers in (1, 8):
        folder.mkdir()
        try:
            error = outcome(recipe, "directory", folder, canary, workers)
            if isinstance(recipe.verdict, RecipeRefused):
                check_refusal(error, recipe.verdict)
            else:
                assert error is None, str(error)
                expected = _for_users(expected_words(recipe.verdict, os.fsencode(canary)[1:], "directory"))
                actual = _plain(read_output(folder / "out", "directory"))
                assert actual == expected, f"got {actual}, expected {expected}"
                for path, seen in look_at_directory(folder / "out").items():
                    assert (seen.uid, seen.gid) == (65534, 65534), f"{path!r} belongs to {seen.uid}:{seen.gid}"
                    assert not seen.mode & 0o6000, f"{path!r} has setuid or setgid"
        except AssertionError as wrong:
            found.append(f"with {workers} workers: {wrong}")
        if state_of(canary) != before:
            found.append(f"with {workers} workers: the canary has changed")
        shutil.rmtree(folder)
    return found


def _for_users(tree: dict[bytes, str]) -> dict[bytes, str]:
    """Return a tree without devices, owners, modes and times, which an unprivileged user cannot create."""
    devices = {path for path, words in tree.items() if words[0] in "cb"}
    names = {f"= {os.fsdecode(path)}" for path in devices}
    return {path: words for path, words in _plain(tree).items() if path not in devices and words not in names}


def _plain(tree: dict[bytes, str]) -> dict[bytes, str]:
    return {path: re.sub(r" \[.*\]$", "", words, flags=re.DOTALL) for path, words in tree.items()}


if __name__ == "__main__":
    main()
