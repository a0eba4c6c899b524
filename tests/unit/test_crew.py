"""Who makes a call: another thread while one may compute, else the caller."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest

from fastpull.sinks.squashfs.blocks.pool import CompressionPool


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as executor:
        yield executor


def test_as_many_members_as_may_compute_make_their_own_calls(pool: ThreadPoolExecutor) -> None:
    crew = CompressionPool(pool, 2)
    crew.join()
    crew.join()
    for _ in range(10):
        assert crew.call(threading.get_ident).result() == threading.get_ident()


def test_others_help_a_single_member_and_each_has_a_call_in_wait(pool: ThreadPoolExecutor) -> None:
    crew, go_on = CompressionPool(pool, 3), threading.Event()
    crew.join()
    held = [crew.call(_wait, go_on) for _ in range(4)]
    own = crew.call(threading.get_ident)
    assert own.done()
    assert own.result() == threading.get_ident()
    go_on.set()
    assert threading.get_ident() not in {future.result() for future in held}


def test_who_leaves_makes_room(pool: ThreadPoolExecutor) -> None:
    crew = CompressionPool(pool, 1)
    crew.join()
    assert crew.call(threading.get_ident).result() == threading.get_ident()
    crew.leave()
    assert crew.call(threading.get_ident).result() != threading.get_ident()


def test_a_call_that_has_ended_makes_room(pool: ThreadPoolExecutor) -> None:
    crew = CompressionPool(pool, 2)
    crew.join()
    for _ in range(20):
        future = crew.call(threading.get_ident)
        assert future.result() != threading.get_ident()
        _until_counted(crew)


@pytest.mark.parametrize("members", [0, 1])
def test_what_a_call_raises_is_in_its_future(pool: ThreadPoolExecutor, members: int) -> None:
    crew = CompressionPool(pool, 1)
    for _ in range(members):
        crew.join()
    future: Future[None] = crew.call(_fail)
    with pytest.raises(OSError, match="no room"):
        future.result()


def _wait(event: threading.Event) -> int:
    event.wait()
    return threading.get_ident()


def _until_counted(crew: CompressionPool) -> None:
    """A future is done before those are called who want to know."""
    while crew._handed:
        time.sleep(0.001)


def _fail() -> None:
    raise OSError("no room")
