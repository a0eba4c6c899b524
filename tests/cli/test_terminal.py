"""The command with a terminal, without one, with Ctrl-C and with closed pipes."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import fastpull
from fastpull.concurrency.writes import pwrite_all
from fastpull.config.settings import Settings
from fastpull.sinks.squashfs.image import transfer as finished
from fastpull.telemetry.events import Copying, Event
from tests.support.layers import file, publish
from tests.support.registry import FaultyRegistry, slow, status
from tests.support.terminal import Screen, Terminal
from tests.support.trees import names

FASTPULL = (sys.executable, "-m", "fastpull")


def slow_image(registry: FaultyRegistry, layers: int = 3, size: int = 200_000, rate: int = 100_000) -> str:
    image = publish(registry, *[[file(f"data{number}", os.urandom(size))] for number in range(layers)])
    registry.faults.append(slow(rate))
    return image


def frames(terminal: Terminal) -> list[list[str]]:
    """Return what the screen shows after each drawing of the display."""
    screen, found = Screen(terminal.columns), []
    for piece in re.split(r"(?<=\x1b\[J)", terminal.shown):
        screen.feed(piece)
        found.append([line for line in screen.lines if line])
    return found


async def test_display_shows_total_rate_and_layers(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    image = slow_image(registry, size=2_000_000, rate=1_000_000)
    terminal = Terminal([*FASTPULL, "pull", image, "-o", f"{tmp_path}/out/"], 120, FASTPULL_CACHE=settings.cache)
    assert await asyncio.to_thread(terminal.wait) == 0
    shown = ["\n".join(frame) for frame in frames(terminal)]
    assert any(re.search(r"\d+%  .* downloaded, .* of .* unpacked  .*/s  (\d:\d\d|-:--) left", one) for one in shown)
    assert any(one.count("downloading") > 1 for one in shown)
    last = terminal.screen().text.splitlines()
    assert not any("[#" in line or "[=" in line for line in last), "the display is removed"
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", last[-1])


@pytest.mark.parametrize(("columns", "rows"), [(20, 5), (7, 3), (40, 2), (1, 1)])
async def test_small_terminal_shows_fitting_lines(
    columns: int, rows: int, registry: FaultyRegistry, settings: Settings
) -> None:
    image = slow_image(registry, layers=8, size=60_000)
    program = "import sys; from fastpull.cli import main; sys.exit(main(sys.argv[1:]))"
    command = (sys.executable, "-c", program, "warm", image)
    terminal = Terminal(command, columns, rows, FASTPULL_CACHE=settings.cache)
    assert await asyncio.to_thread(terminal.wait) == 0
    for drawn in re.findall(r"\r(?:\x1b\[\d+A)?((?:[^\x1b\n]*\x1b\[K\r?\n)+)\x1b\[J", terminal.shown):
        lines = drawn.split("\x1b[K")[:-1]
        assert len(lines) < max(rows, 2)
        assert max(len(line.strip("\r\n")) for line in lines) < max(columns, 2), drawn


@pytest.mark.parametrize("kind", ["dumb", "no terminal"])
async def test_dumb_terminal_gets_plain_lines(kind: str, registry: FaultyRegistry, settings: Settings) -> None:
    image = slow_image(registry, size=20_000)
    if kind == "dumb":
        terminal = Terminal([*FASTPULL, "warm", image], FASTPULL_CACHE=settings.cache, TERM="dumb")
        assert await asyncio.to_thread(terminal.wait) == 0
        shown = terminal.shown
    else:
        environment = {**os.environ, "FASTPULL_CACHE": settings.cache}
        ended = await asyncio.to_thread(
            subprocess.run, [*FASTPULL, "warm", image], env=environment, capture_output=True, text=True, check=True
        )
        shown = ended.stderr
    assert "\x1b" not in shown
    assert f"{image}: sha256:" in shown


async def test_plain_lines_show_progress(
    registry: FaultyRegistry, settings: Settings, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from fastpull.cli import console  # noqa: PLC0415

    monkeypatch.setattr(console, "_LINE_SECONDS", 0.3)
    telling = console.LineConsole(verbose=False)
    async with fastpull.Client(settings, on_event=telling.on_event) as client:
        await client.warm(slow_image(registry, size=2_000_000, rate=1_000_000))
    shown = capfd.readouterr().err
    assert re.search(r"\d+%  .* downloaded, .* of 5.7 MiB verified  .*/s  (\d:\d\d|-:--) left", shown)


async def test_ctrl_c_keeps_the_display_intact(registry: FaultyRegistry, settings: Settings, tmp_path: Path) -> None:
    image = slow_image(registry, size=2_000_000)
    terminal = Terminal([*FASTPULL, "pull", image, "-o", f"{tmp_path}/out/"], 100, FASTPULL_CACHE=settings.cache)
    assert await asyncio.to_thread(terminal.read, "downloading")
    terminal.type("\x03")
    assert await asyncio.to_thread(terminal.wait) == 130
    last = terminal.screen().text.splitlines()
    assert last[-1].endswith("fastpull: interrupted; downloaded data stays in the cache")
    assert sum("stopping" in line for line in last) == 1
    assert not any("[#" in line or "[=" in line or "[-" in line for line in last)
    assert "Traceback" not in terminal.shown
    assert not {name for name in names(tmp_path) if "out" in name}


async def test_second_ctrl_c_exits_at_once_with_a_usable_terminal(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    image = slow_image(registry, size=2_000_000)
    terminal = Terminal([*FASTPULL, "pull", image, "-o", f"{tmp_path}/out/"], 100, FASTPULL_CACHE=settings.cache)
    assert await asyncio.to_thread(terminal.read, "downloading")
    terminal.type("\x03\x03")
    assert await asyncio.to_thread(terminal.wait) == 130
    assert "\x1b[?" not in terminal.shown, "no mode of the terminal is changed, so that none stays changed"
    assert "Traceback" not in terminal.shown


@pytest.mark.parametrize("delay", [0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.5])
async def test_ctrl_c_while_modules_load_prints_no_traceback(
    delay: float, registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    image = slow_image(registry, size=2_000_000)
    program = "import os, fastpull.__main__ as m; m._let_interrupts_end_the_process(); os.write(1, b'.'); m.script()"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program, "pull", image, "-o", f"{tmp_path}/out/"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "FASTPULL_CACHE": settings.cache},
    )
    assert process.stdout is not None
    await process.stdout.readexactly(1)
    await asyncio.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode in (130, -signal.SIGINT)
    assert b"Traceback" not in err
    assert b"KeyboardInterrupt" not in err


def test_background_command_keeps_ignoring_ctrl_c() -> None:
    program = "import signal; from fastpull.__main__ import _let_interrupts_end_the_process as f; f(); print(int("
    program += "signal.getsignal(signal.SIGINT) == signal.SIG_IGN))"
    ended = subprocess.run(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", sys.executable, "-c", program], capture_output=True, check=True
    )
    assert ended.stdout == b"1\n"


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
@pytest.mark.parametrize(
    "arguments", [("--help",), ("warm", "--json"), ("warm", "-v"), ("inspect", "--json"), ("demo",)]
)
async def test_closed_pipe_ends_the_command_quietly(
    stream: str, arguments: tuple[str, ...], registry: FaultyRegistry, settings: Settings
) -> None:
    sources = [publish(registry, [file("a")])] if arguments[0] in ("warm", "inspect") else []
    reader, writer = os.pipe()
    os.close(reader)
    other = "stderr" if stream == "stdout" else "stdout"
    process = await asyncio.create_subprocess_exec(
        *(*FASTPULL, *arguments, *sources),
        **{stream: writer, other: asyncio.subprocess.PIPE},  # type: ignore[arg-type]
        env={**os.environ, "FASTPULL_CACHE": settings.cache},
    )
    os.close(writer)
    out, err = await asyncio.wait_for(process.communicate(), 60)
    shown = (out or b"") + (err or b"")
    assert process.returncode in (0, 1)
    assert b"Traceback" not in shown
    assert b"Exception ignored" not in shown
    assert b"Broken pipe" not in shown


async def test_copying_a_finished_image_shows_progress(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fastpull.pipeline.outputs.TICK_SECONDS", 0.0005)
    monkeypatch.setattr(finished, "_FICLONE", 0)

    def slowly(*arguments: Any) -> int:
        time.sleep(0.005)
        return pwrite_all(*arguments)

    monkeypatch.setattr(finished, "pwrite_all", slowly)
    image, events = publish(registry, [file("data", os.urandom(8 << 20))]), list[Event]()
    keeping = replace(settings, keep_images=True)
    async with fastpull.Client(keeping, on_event=events.append) as client:
        await client.pull(image, tmp_path / "one.sqsh")
        events.clear()
        report = await client.pull(image, tmp_path / "two.sqsh")
    assert report.was_finished
    copies = [event for event in events if isinstance(event, Copying)]
    assert {event.size for event in copies} == {(tmp_path / "two.sqsh").stat().st_size}
    assert [event.copied for event in copies] == sorted(event.copied for event in copies)
    assert len({event.copied for event in copies}) > 2


async def test_lost_network_is_reported_in_one_line(
    registry: FaultyRegistry, settings: Settings, tmp_path: Path
) -> None:
    image = publish(registry, *[[file(f"data{number}", os.urandom(1000))] for number in range(8)])
    registry.faults.append(status(502))
    process = await asyncio.create_subprocess_exec(
        *FASTPULL,
        "pull",
        image,
        "-o",
        f"{tmp_path}/out/",
        "--retries",
        "3",
        "--cache",
        settings.cache,
        stderr=subprocess.PIPE,
    )
    _, told = await process.communicate()
    lines = told.decode().splitlines()
    assert sum("retry in" in line for line in lines) == 1, lines
    assert process.returncode == 11
