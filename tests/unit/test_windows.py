"""Memory for the windows of zstd frames: bounded, and never waited for in a circle."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from fastpull.concurrency.budget import ByteBudget
from fastpull.concurrency.threads import Aborted
from fastpull.layers.windows import INCLUDED, InflaterWindow, WindowMemory

MIB = 1 << 20


class Taken(list[int]):
    """What was taken, one after the other."""

    def windows(self, total: int) -> WindowMemory:
        return WindowMemory(total, self.append)


def waits(work: threading.Thread) -> bool:
    work.start()
    work.join(0.05)
    return work.is_alive()


def test_a_small_window_is_not_counted() -> None:
    taken = Taken()
    InflaterWindow(taken.windows(0)).grow(INCLUDED)
    assert taken == []


def test_window_counts_its_largest_frame_and_is_released_once() -> None:
    taken = Taken()
    window = InflaterWindow(taken.windows(100 * MIB))
    for size in (8 * MIB, 4 * MIB, 8 * MIB, 9 * MIB):
        window.grow(size)
    window.release()
    window.release()
    assert taken == [8 * MIB, 9 * MIB, 0]


def test_window_that_does_not_fit_waits_for_a_release() -> None:
    windows = Taken().windows(10 * MIB)
    first, second = InflaterWindow(windows), InflaterWindow(windows)
    first.grow(8 * MIB)
    work = threading.Thread(target=second.grow, args=(4 * MIB,))
    assert waits(work)
    first.release()
    work.join(10)
    assert (work.is_alive(), second.size) == (False, 4 * MIB)


def test_one_window_at_a_time_may_exceed_the_total() -> None:
    windows = Taken().windows(10 * MIB)
    first, second = InflaterWindow(windows), InflaterWindow(windows)
    first.grow(128 * MIB)
    work = threading.Thread(target=second.grow, args=(128 * MIB,))
    assert waits(work)
    first.release()
    work.join(10)
    assert not work.is_alive()


def test_growing_windows_do_not_deadlock() -> None:
    windows = Taken().windows(10 * MIB)
    first, second = InflaterWindow(windows), InflaterWindow(windows)
    first.grow(5 * MIB)
    second.grow(5 * MIB)
    first.grow(6 * MIB)
    work = threading.Thread(target=second.grow, args=(6 * MIB,))
    assert waits(work), "the one that went beyond goes on, the other waits"
    first.grow(100 * MIB)
    first.release()
    work.join(10)
    assert not work.is_alive()


def test_abort_ends_waiting() -> None:
    windows = Taken().windows(10 * MIB)
    first, second = InflaterWindow(windows), InflaterWindow(windows)
    first.grow(10 * MIB)
    with ThreadPoolExecutor(1) as executor:
        waiting = executor.submit(second.grow, 2 * MIB)
        second.abort()
        with pytest.raises(Aborted):
            waiting.result(10)
    assert second.size == 0


@pytest.mark.parametrize("seed", range(4))
def test_windows_take_at_most_the_total_and_one_more(seed: int) -> None:
    """Layers whose frames have windows of any size, side by side: all come to their end."""
    taken, total, largest = Taken(), 20 * MIB, 64 * MIB
    windows = taken.windows(total)

    def layer(number: int) -> None:
        choose = random.Random(f"{seed}/{number}")
        window = InflaterWindow(windows)
        for _ in range(choose.randrange(1, 6)):
            window.grow(choose.randrange(largest + 1))
            time.sleep(0.0005 * choose.random())
        window.release()

    with ThreadPoolExecutor(8) as executor:
        for done in [executor.submit(layer, number) for number in range(100)]:
            done.result(30)
    assert taken[-1] == 0
    assert max(taken) <= total + largest


async def test_shrunk_budget_keeps_held_bytes_and_blocks_requests() -> None:
    budget, began = ByteBudget(10), list[int]()

    async def hold(size: int, stop: asyncio.Event) -> None:
        async with budget.hold(size):
            began.append(size)
            await stop.wait()

    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        group.create_task(hold(6, stop))
        await asyncio.sleep(0)
        budget.resize(5)
        group.create_task(hold(3, stop))
        await asyncio.sleep(0.01)
        assert began == [6]
        budget.resize(10)
        await asyncio.sleep(0.01)
        assert began == [6, 3]
        stop.set()
    async with budget.hold(10):
        pass
