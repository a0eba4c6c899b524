from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fastpull.cache.files import CacheFiles
from fastpull.cache.images import pins as pins_module
from fastpull.cache.images.pins import MAX_PIN_SECONDS, Holder, Pins
from fastpull.errors import InvalidSetting

ME = Holder.here("7", "0")


@pytest.fixture
def files(tmp_path: Path) -> CacheFiles:
    return CacheFiles(str(tmp_path / "cache"))


@pytest.fixture
def pins(files: CacheFiles) -> Pins:
    return Pins(files)


def test_a_pin_holds_until_it_is_released(pins: Pins) -> None:
    assert pins.active() == {}
    assert [pins.add(ME, "one"), pins.add(ME, "two"), pins.add(ME, "one")] == [True, True, False]
    assert {image: [pin.holder for pin in held] for image, held in pins.active().items()} == {"one": [ME], "two": [ME]}
    pins.release(ME, "one")
    assert set(pins.active()) == {"two"}
    for _ in range(2):
        pins.release(ME)
        assert pins.active() == {}


@pytest.mark.parametrize(
    "other",
    [
        replace(ME, job="77"),
        replace(ME, job="70"),
        replace(ME, step="00"),
        replace(ME, step="batch"),
        replace(ME, host=f"{ME.host}0"),
        replace(ME, host=f"x{ME.host}"),
        replace(ME, host=f"{ME.host}.7"),
        replace(ME, host="node/../x"),
        replace(ME, host=".hidden"),
    ],
    ids=str,
)
def test_release_removes_only_the_holder_s_own_pins(pins: Pins, other: Holder) -> None:
    for holder in (ME, other):
        pins.add(holder, "image")
    pins.release(other)
    assert [pin.holder for pin in pins.active()["image"]] == [ME]
    pins.add(other, "image")
    pins.release(ME)
    assert [pin.holder for pin in pins.active()["image"]] == [other]


@pytest.mark.parametrize("word", ["", "a/b", "..", "1.2", "x" * 65, "1\n", "é", "*"])
def test_text_that_cannot_be_a_file_name_is_no_job_and_no_step(word: str) -> None:
    with pytest.raises(InvalidSetting, match="not the id of a job"):
        Holder.here(word, "0")
    with pytest.raises(InvalidSetting, match="not the id of a step"):
        Holder.here("0", word)


def test_an_old_pin_does_not_count(pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    pins.add(ME, "image")
    assert pins.active(3600)
    now = time.time()
    monkeypatch.setattr("fastpull.cache.images.pins.time.time", lambda: now + 4000)
    assert not pins.active(3600)
    assert pins.active()
    pins.remove_expired()
    assert pins.active()
    monkeypatch.setattr("fastpull.cache.images.pins.time.time", lambda: now + MAX_PIN_SECONDS + 1)
    assert not pins.active()
    pins.remove_expired()
    monkeypatch.undo()
    assert not pins.active()


def test_only_pins_of_this_host_end_with_its_boot(pins: Pins, monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(ME, host="elsewhere")
    for holder in (ME, other):
        pins.add(holder, "image")
    monkeypatch.setattr(pins_module, "boot_id", lambda: "the next boot")
    assert [pin.holder for pin in pins.active()["image"]] == [other]
    pins.remove_expired()
    monkeypatch.undo()
    assert [pin.holder for pin in pins.active()["image"]] == [other]


@pytest.mark.parametrize("content", [b"", b"{}", b"{}\n0\n", b"\xff" * 100])
def test_a_damaged_pin_is_skipped_and_removed(files: CacheFiles, pins: Pins, content: bytes) -> None:
    pins.add(ME, "image")
    [name] = os.listdir(f"{files.root}/pins")
    Path(files.root, "pins", name).write_bytes(content)
    assert pins.active() == {}
    pins.remove_expired()
    assert os.listdir(f"{files.root}/pins") == []
