"""Text of images and registries is shown without control characters."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fastpull.cli.words import table
from fastpull.errors import MalformedDocument, NotFound, UnexpectedAnswer, printable
from fastpull.telemetry.events import Retrying, Warned

HOSTILE = "\x1b]0;title\x07\x1b[2J\r\nfake: line\x7f\x9b31m\u202egnp.exe\u2028\udcff"
texts = st.text(alphabet=st.characters(), max_size=40)


@given(texts)
def test_printable_text_is_printable_and_encodable(text: str) -> None:
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()


@given(st.text(alphabet=st.characters(exclude_categories=("C", "Z"), include_characters=" ")))
def test_printable_keeps_ordinary_text(text: str) -> None:
    assert printable(text) == text


@given(st.binary(max_size=40))
def test_invalid_utf8_is_escaped(name: bytes) -> None:
    assert printable(name).isprintable()


def test_errors_warnings_and_tables_are_safe_for_terminals() -> None:
    for error in (
        NotFound(HOSTILE, HOSTILE, HOSTILE),
        UnexpectedAnswer(HOSTILE, HOSTILE, 500, HOSTILE),
        MalformedDocument(HOSTILE, HOSTILE),
    ):
        assert str(error).isprintable()
        assert error.message.isprintable()
        assert error.hint.isprintable()
    assert Warned("image", HOSTILE).message.isprintable()
    assert Retrying("host", HOSTILE, 0.1).reason.isprintable()
    assert all(line.isprintable() for line in table(("A", "B"), [(HOSTILE, "x"), ("y", HOSTILE)]))
