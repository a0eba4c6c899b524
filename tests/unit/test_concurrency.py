from __future__ import annotations

import asyncio
import platform
import subprocess
import sys
import threading
from collections.abc import Awaitable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from fastpull.concurrency.budget import ByteBudget
from fastpull.concurrency.semaphores import OrderedStart, PrioritySemaphore
from fastpull.concurrency.serial_executor import SerialExecutor
from fastpull.concurrency.threads import in_thread, task_group


async def test_task_group_raises_its_first_error() -> None:
    async def fail() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        async with task_group() as group:
            group.create_task(fail())
            group.create_task(asyncio.sleep(60))


async def test_cancellation_aborts_and_awaits_the_thread() -> None:
    stop, ended = threading.Event(), threading.Event()

    def work() -> None:
        stop.wait(30)
        ended.set()

    with ThreadPoolExecutor(1) as executor:
        task = asyncio.create_task(in_thread(executor, work, abort=stop.set))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


async def test_second_cancellation_awaits_the_thread() -> None:
    stop, ended = threading.Event(), threading.Event()

    def work() -> None:
        stop.wait(30)
        ended.set()

    with ThreadPoolExecutor(1) as executor:
        task = asyncio.create_task(in_thread(executor, work))
        for _ in range(3):
            await asyncio.sleep(0.01)
            task.cancel()
        await asyncio.sleep(0.01)
        assert not task.done()
        stop.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert ended.is_set()


async def test_result_of_cancelled_call_is_disposed() -> None:
    stop, disposed = threading.Event(), list[str]()

    def work() -> str:
        stop.wait(30)
        return "a descriptor"

    with ThreadPoolExecutor(1) as executor:
        task = asyncio.create_task(in_thread(executor, work, abort=stop.set, dispose=disposed.append))
        await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert disposed == ["a descriptor"]
        assert await in_thread(executor, work, dispose=disposed.append) == "a descriptor"
        assert len(disposed) == 1


async def test_permits_go_to_the_lowest_rank_first() -> None:
    turns, order = PrioritySemaphore(1), []

    async def take(rank: int) -> None:
        with await turns.acquire(rank):
            order.append(rank)
            await asyncio.sleep(0)

    first = await turns.acquire(0)
    tasks = [asyncio.create_task(take(rank)) for rank in (5, 1, 3, 2, 4)]
    await asyncio.sleep(0)
    first.release()
    await asyncio.gather(*tasks)
    assert order == [1, 2, 3, 4, 5]


async def passed(patience: float, *seconds: float) -> list[int]:
    """The numbers of tasks that take so long to come to a point, in the order in which they pass it."""
    passage, order = OrderedStart(patience), []

    async def come(number: int) -> None:
        go = passage.enter()
        await asyncio.sleep(seconds[number])
        await go()
        order.append(number)

    await asyncio.gather(*map(come, range(len(seconds))))
    return order


async def test_ordered_start_keeps_order_of_entry() -> None:
    assert await passed(60, 0.05, 0.02, 0.0, 0.03) == [0, 1, 2, 3]


async def test_ordered_start_limits_waiting_for_slow_task() -> None:
    assert await passed(0.02, 0.5, 0.0, 0.0) == [1, 2, 0]


async def test_cancelled_wait_loses_no_permit() -> None:
    turns = PrioritySemaphore(1)
    first = await turns.acquire(0)
    waiting = asyncio.create_task(turns.acquire(1))
    await asyncio.sleep(0)
    first.release()  # granted, but not received yet
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(1):
        (await turns.acquire(2)).release()


async def test_permit_is_released_once() -> None:
    turns = PrioritySemaphore(1)
    turn = await turns.acquire(0)
    turn.release()
    turn.release()
    await turns.acquire(0)
    assert turns.is_exhausted


async def test_more_permits_wake_waiting_tasks() -> None:
    turns = PrioritySemaphore(1)
    await turns.acquire(0)
    waiting = asyncio.create_task(turns.acquire(0))
    await asyncio.sleep(0)
    turns.resize(2)
    async with asyncio.timeout(1):
        await waiting


async def test_a_budget_is_never_exceeded_and_serves_in_order() -> None:
    budget, held, most, order = ByteBudget(10), 0, 0, []

    async def use(name: int, size: int) -> None:
        nonlocal held, most
        async with budget.hold(size):
            order.append(name)
            held += size
            most = max(most, held)
            await asyncio.sleep(0.001)
            held -= size

    await asyncio.gather(*(use(name, size) for name, size in enumerate((4, 4, 8, 2, 10, 1))))
    assert most <= 10
    assert order == [0, 1, 2, 3, 4, 5]


async def test_request_above_total_is_granted_alone() -> None:
    budget = ByteBudget(10)
    async with asyncio.timeout(1), budget.hold(1000):
        pass


def test_serial_executor_runs_one_call_at_a_time_in_order() -> None:
    made: list[int] = []
    inside = threading.Lock()

    def call(number: int) -> None:
        assert inside.acquire(blocking=False)
        made.append(number)
        inside.release()

    with ThreadPoolExecutor(4) as executor:
        strand = SerialExecutor(executor, 3)
        for number in range(1000):
            strand.submit(call, number)
        strand.finish()
    assert made == list(range(1000))


def test_serial_executor_limits_waiting_calls() -> None:
    go_on = threading.Event()
    with ThreadPoolExecutor(1) as executor:
        strand = SerialExecutor(executor, 2)
        strand.submit(go_on.wait, 30)
        filled = threading.Event()

        def fill() -> None:
            for _ in range(3):
                strand.submit(go_on.wait, 30)
            filled.set()

        filler = threading.Thread(target=fill)
        filler.start()
        assert not filled.wait(0.1)
        go_on.set()
        filler.join(30)
        assert filled.is_set()
        strand.finish()


def test_serial_executor_raises_error_of_a_call_and_stops() -> None:
    made: list[int] = []

    def fail() -> None:
        raise ValueError("mine")

    with ThreadPoolExecutor(1) as executor:
        strand = SerialExecutor(executor, 10)
        strand.submit(fail)
        with pytest.raises(ValueError, match="mine"):
            strand.finish()
        with pytest.raises(ValueError, match="mine"):
            strand.submit(made.append, 1)
    assert made == []


_FREEING = """
import os, threading
from fastpull.concurrency.memory import give_back_freed_memory

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

held = []

def work():
    pieces = []
    for _ in range(1000):
        pieces.append(b"x" * 100_000)
        held.append(b"y" * 1000)  # keeps what stands before it from being the end of what the thread has

thread = threading.Thread(target=work)
thread.start()
thread.join()
before = resident()
give_back_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="others give back by themselves, or never")
def test_freed_memory_is_returned_to_the_kernel() -> None:
    """In a process of its own: in this one there may be free memory already, which is used first."""
    ended = subprocess.run([sys.executable, "-c", _FREEING], capture_output=True, check=True)
    assert int(ended.stdout) > 50_000_000


async def test_ordered_start_keeps_concurrent_cancellation() -> None:
    passage = OrderedStart(60)
    first, second = passage.enter(), passage.enter()
    waiting = asyncio.create_task(_await(second()))
    await asyncio.sleep(0.01)
    await first()
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def _await(awaitable: Awaitable[None]) -> None:
    await awaitable


async def test_cancellation_takes_precedence_over_errors_of_task_group() -> None:
    went_on = False

    async def fail() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            raise ValueError("at its end")

    async def caller() -> None:
        nonlocal went_on
        with suppress(ValueError):
            async with task_group() as group:
                group.create_task(fail())
        went_on = True

    task = asyncio.create_task(caller())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not went_on


async def test_task_group_raises_its_error_after_earlier_cancellation() -> None:
    async def fail() -> None:
        raise ValueError("mine")

    async def caller() -> str:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            try:
                async with task_group() as group:
                    group.create_task(fail())
            except ValueError as error:
                return str(error)
        return ""

    task = asyncio.create_task(caller())
    await asyncio.sleep(0.01)
    task.cancel()
    assert await task == "mine"


@pytest.mark.parametrize("loops", range(4))
async def test_no_wait_loses_a_cancellation_that_comes_with_its_result(loops: int) -> None:
    """Whatever wakes a task, and however many steps of the loop later it is cancelled."""
    turns, budget = PrioritySemaphore(1), ByteBudget(1)
    turn, went_on = await turns.acquire(0), list[str]()
    holding = budget.hold(1)
    await holding.__aenter__()
    executor = ThreadPoolExecutor(1)

    async def for_turn() -> None:
        with await turns.acquire(0):
            await asyncio.sleep(10)
        went_on.append("turn")

    async def for_budget() -> None:
        async with budget.hold(1):
            await asyncio.sleep(10)
        went_on.append("budget")

    async def for_thread() -> None:
        await in_thread(executor, thread_may_end.wait)
        await asyncio.sleep(10)
        went_on.append("thread")

    thread_may_end = threading.Event()
    tasks = [asyncio.create_task(one()) for one in (for_turn, for_budget, for_thread)]
    await asyncio.sleep(0.01)
    turn.release()
    await holding.__aexit__(None, None, None)
    thread_may_end.set()
    for _ in range(loops):
        await asyncio.sleep(0)
    for task in tasks:
        task.cancel()
    assert all(
        isinstance(ended, asyncio.CancelledError) for ended in await asyncio.gather(*tasks, return_exceptions=True)
    )
    assert not went_on
    assert not turns.is_exhausted
    async with asyncio.timeout(1), budget.hold(1):
        pass
    executor.shutdown()
