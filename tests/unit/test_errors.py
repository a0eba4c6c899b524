from __future__ import annotations

import inspect
import re
from pathlib import Path

import fastpull
from fastpull import errors
from fastpull.cli.main import make_parser
from fastpull.errors import FastpullError, printable, translate_errors

CLASSES = [
    value
    for value in vars(errors).values()
    if inspect.isclass(value) and issubclass(value, FastpullError) and not value.__name__.startswith("_")
]


def test_all_lists_every_error() -> None:
    assert sorted(errors.__all__) == sorted(one.__name__ for one in CLASSES)


def test_docstring_draws_every_class_with_its_exit_code() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+)(?: \(\w+\))?(?:\s+(\d+)\s)?", errors.__doc__ or ""))
    assert set(drawn) == {one.__name__ for one in CLASSES} - {"FastpullError"}
    for one in CLASSES:
        if drawn.get(one.__name__):
            assert one.exit_code == int(drawn[one.__name__]), one


def test_each_family_has_a_unique_exit_code() -> None:
    families = [one for one in CLASSES if "exit_code" in vars(one)]
    codes = [one.exit_code for one in families]
    assert len(set(codes)) == len(codes)
    assert all(0 < code < 126 for code in codes)


def test_help_and_documentation_list_exit_codes() -> None:
    help_text = make_parser().format_help()
    documented = (Path(fastpull.__file__).parents[1] / "docs/errors.md").read_text()
    for one in CLASSES:
        assert re.search(rf"\b{one.exit_code}\b", help_text)
        assert re.search(rf"\| {one.exit_code} \|.*`{one.__name__}`", documented) or one is FastpullError, one


def test_printable_escapes_names_from_layers() -> None:
    assert printable(b"a\x1b[31m\xff\n\xc3\xa9") == "a\\x1b[31m\\xff\\n\xe9"


def test_messages_hold_event_place_and_hint() -> None:
    error = errors.DigestMismatch("layer 1", "sha256:a", "sha256:b")
    assert str(error).startswith("got digest sha256:b, expected sha256:a for: layer 1. ")


def test_foreign_errors_become_ours_and_ours_pass() -> None:
    ours = errors.CacheError("p", "r")
    mapping: errors.ErrorMapping = {OSError: lambda error: errors.OutputError("p", str(error))}
    for raised, expected in ((OSError("x"), errors.OutputError), (ours, errors.CacheError)):
        try:
            with translate_errors(mapping):
                raise raised
        except FastpullError as caught:
            assert type(caught) is expected
