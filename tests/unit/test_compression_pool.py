"""The compression pool: which thread runs a call."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fastpull.sinks.squashfs.blocks.pool import CompressionPool


@pytest.fixture
def executor() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as found:
        yield found


def test_registered_threads_run_their_own_calls_when_there_are_as_many_as_workers(executor: ThreadPoolExecutor) -> None:
    pool = CompressionPool(executor, 2)
    pool.register_thread()
    pool.register_thread()
    for _ in range(10):
        assert pool.submit(threading.get_ident).result() == threading.get_ident()


def test_each_free_worker_gets_one_running_and_one_queued_call(executor: ThreadPoolExecutor) -> None:
    pool, go_on = CompressionPool(executor, 3), threading.Event()
    pool.register_thread()
    submitted = [pool.submit(_wait, go_on) for _ in range(4)]
    own = pool.submit(threading.get_ident)
    assert own.done()
    assert own.result() == threading.get_ident()
    go_on.set()
    assert threading.get_ident() not in {future.result() for future in submitted}


def test_unregistering_a_thread_frees_its_core_for_a_worker(executor: ThreadPoolExecutor) -> None:
    pool = CompressionPool(executor, 1)
    pool.register_thread()
    assert pool.submit(threading.get_ident).result() == threading.get_ident()
    pool.unregister_thread()
    assert pool.submit(threading.get_ident).result() != threading.get_ident()


def test_a_completed_call_frees_its_worker(executor: ThreadPoolExecutor) -> None:
    pool = CompressionPool(executor, 2)
    pool.register_thread()
    for _ in range(20):
        future = pool.submit(threading.get_ident)
        assert future.result() != threading.get_ident()
        _wait_until_counted(pool)


@pytest.mark.parametrize("registered", [0, 1])
def test_the_future_raises_the_exception_of_its_call(executor: ThreadPoolExecutor, registered: int) -> None:
    pool = CompressionPool(executor, 1)
    for _ in range(registered):
        pool.register_thread()
    future: Future[None] = pool.submit(_fail)
    with pytest.raises(OSError, match="no room"):
        future.result()


def _wait(event: threading.Event) -> int:
    event.wait()
    return threading.get_ident()


def _wait_until_counted(pool: CompressionPool) -> None:
    """Wait for the callback of the last future: a future is done before its callbacks run."""
    while pool._submitted:
        time.sleep(0.001)


def _fail() -> None:
    raise OSError("no room")
