"""Control messages: their wire form round-trips, malformed content is refused, and the tables list all of them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import fastpull
from fastpull.cluster import messages
from fastpull.cluster.messages import (
    TYPES,
    Alive,
    ChunkLease,
    ChunksHeld,
    ExchangePlan,
    Hello,
    MemberHolding,
    Message,
    decode,
    encode,
)
from fastpull.errors import MalformedMessage

PLAN = ExchangePlan(1, 2, {3: MemberHolding((True, False), (), None), 4: MemberHolding((), (True,), (False,))}, (3,))


@pytest.mark.parametrize("kind", TYPES.values(), ids=TYPES)
@given(data=st.data())
def test_every_message_round_trips(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(st.from_type(kind))
    found = decode(encode(message), "rank 1")
    assert encode(found) == encode(message)
    assert type(found) is type(message)


def test_truth_values_are_packed() -> None:
    content = json.loads(encode(ChunksHeld(0, 0, (True,) * 1000, wants=True)))
    assert content["chunks"] == "1000:" + "f" * 250


def changed(message: Message, **values: Any) -> bytes:
    return json.dumps({**json.loads(encode(message)), **values}).encode()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        pytest.param(b"\xff", "codec", id="not UTF-8"),
        pytest.param(b"{", "Expecting", id="not JSON"),
        pytest.param(b"[" * 100_000, "recursion", id="nested too deeply"),
        pytest.param(b"[]", "not a JSON object", id="not an object"),
        pytest.param(b"{}", "unknown message None", id="without a type"),
        pytest.param(b'{"message": "Message"}', "unknown message 'Message'", id="base class"),
        pytest.param(b'{"message": "Shout"}', "unknown message 'Shout'", id="unknown type"),
        pytest.param(b'{"message": "ChunkLease", "image": 1}', "expected the fields image, round, chunk", id="missing"),
        pytest.param(changed(ChunkLease(1, 2, 3), more=1), "expected the fields", id="unknown field"),
        pytest.param(changed(ChunkLease(1, 2, 3), chunk="3"), "expected int, got '3'", id="string for a number"),
        pytest.param(changed(ChunkLease(1, 2, 3), image=True), "expected int, got True", id="truth value for a number"),
        pytest.param(changed(ChunkLease(1, 2, 3), round=None), "expected int, got None", id="None"),
        pytest.param(changed(Hello("a", 0, "1", {}), asked=[]), "expected an object", id="list for a mapping"),
        pytest.param(changed(Hello("a", 0, "1", {}), asked={"a": 1}), "expected str", id="wrong value in a mapping"),
        pytest.param(changed(PLAN, sources=1), "expected a list", id="number for a tuple"),
        pytest.param(changed(PLAN, holdings={"x": {}}), "ExchangePlan: ", id="wrong key of a mapping"),
        pytest.param(changed(PLAN, holdings={"1": {"chunks": "2:f"}}), "expected the fields", id="nested"),
        pytest.param(changed(ChunksHeld(0, 0, (), wants=True), chunks="2:f"), "expected truth values", id="more bits"),
        pytest.param(changed(ChunksHeld(0, 0, (), wants=True), chunks="f"), "expected truth values", id="no count"),
        pytest.param(changed(ChunksHeld(0, 0, (), wants=True), chunks=5), "expected truth values", id="no bits"),
        pytest.param(changed(Alive(), progress=5), "expected an object", id="number for an object"),
    ],
)
def test_malformed_content_is_a_typed_error_that_names_the_sender(content: bytes, reason: str) -> None:
    with pytest.raises(MalformedMessage) as caught:
        decode(content, "rank 3 on n3")
    assert str(caught.value).startswith("malformed message from rank 3 on n3: ")
    assert reason in str(caught.value)
    assert caught.value.exit_code == 40


@given(st.binary(max_size=60))
def test_any_content_is_a_message_or_a_typed_error(content: bytes) -> None:
    with pytest.raises(MalformedMessage):
        decode(content, "rank 3")


def test_the_tables_list_every_message_once() -> None:
    page = (Path(fastpull.__file__).parents[1] / "docs/mpi.md").read_text()
    assert sorted(re.findall(r"^`(\w+)`  ", messages.__doc__ or "", re.MULTILINE)) == sorted(TYPES)
    assert sorted(re.findall(r"^\| `([A-Z]\w+)` \|", page, re.MULTILINE)) == sorted(TYPES)
