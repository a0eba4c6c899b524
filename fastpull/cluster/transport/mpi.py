"""The fabric over MPI. One thread makes all calls and polls, since a blocking call cannot have a timeout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from fastpull.cluster.transport.fabric import HEADER_SIZE, MAX_PAYLOAD
from fastpull.errors import MpiError

if TYPE_CHECKING:
    from fastpull.cluster.transport.fabric import OnFrame, OnMessage

_MESSAGE, _FRAME = 1, 2  # tags
_RECEIVE_BUFFERS = 4
_ABORT_SECONDS = 5.0
_FLUSH_SECONDS = 2.0  # for messages in flight when the loop ends
_LOOP_CHECK_SECONDS = 0.2
_MIN_PAUSE, _MAX_PAUSE = 0.0001, 0.002  # seconds between polls: 8 idle ranks use 4 % of one core


class MpiFabric:
    """The ranks of ``MPI_COMM_WORLD``. `open_mpi` creates it.

    Attributes:
        rank, size, node: as in `fastpull.cluster.transport.fabric.Fabric`.
    """

    rank: int
    size: int
    node: int

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._started = threading.Event()
        self._wake = threading.Event()
        self._outgoing: deque[tuple[int, int, Any, asyncio.Future[None] | None]] = deque()
        self._sending: list[tuple[Any, Any, asyncio.Future[None] | None]] = []
        self._receiving: list[tuple[Any, int, bytearray, int]] = []
        self._free = deque(bytearray(HEADER_SIZE + MAX_PAYLOAD) for _ in range(_RECEIVE_BUFFERS))
        self._tasks = set[asyncio.Task[None]]()
        self._leaving: asyncio.Future[None] | None = None
        self._thread = threading.Thread(target=self._run, name="fastpull-mpi", daemon=True)

    async def open(self, timeout_seconds: float) -> None:
        """Start MPI.

        Raises:
            MpiError: MPI is missing, or not all ranks started in time.
        """
        self._thread.start()
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.shield(self._ready)
        except TimeoutError as error:
            reason = f"MPI_Init has not returned for {timeout_seconds:.0f} s"
            raise MpiError(
                reason, "Not all ranks of the job have started; raise --mpi-timeout if they need longer"
            ) from error

    # --- the fabric

    def start(self, on_message: OnMessage, on_frame: OnFrame, on_error: Callable[[Exception], None]) -> None:
        """See `fastpull.cluster.transport.fabric.Fabric`."""
        self._on_message, self._on_frame, self._on_error = on_message, on_frame, on_error
        self._started.set()

    def send_message(self, to: int, message: bytes) -> None:
        """See `fastpull.cluster.transport.fabric.Fabric`."""
        self._outgoing.append((to, _MESSAGE, message, None))
        self._wake.set()

    async def send_frame(self, to: int, frame: memoryview) -> None:
        """See `fastpull.cluster.transport.fabric.Fabric`."""
        sent: asyncio.Future[None] = self._loop.create_future()
        self._outgoing.append((to, _FRAME, frame, sent))
        self._wake.set()
        await asyncio.shield(sent)

    async def leave(self) -> None:
        """See `fastpull.cluster.transport.fabric.Fabric`. ``MPI_Finalize`` returns when all ranks have called it."""
        self._leaving = self._loop.create_future()
        self._wake.set()
        await asyncio.shield(self._leaving)

    def abort(self, code: int) -> None:
        """End all ranks by force, where not all can end by themselves. Does not return.

        Rank 0 aborts the job and the others wait for that, so that the launcher reports one end.
        """
        if self._ready.done() and not self._ready.cancelled() and self._ready.exception() is None:
            if self.rank:
                time.sleep(_ABORT_SECONDS)
            self._mpi.COMM_WORLD.Abort(code)
        os._exit(code)

    # --- the thread

    def _run(self) -> None:
        try:
            self._initialize()
        except Exception as error:  # noqa: BLE001  # raised where the caller waits
            self._call_on_loop(_settle, self._ready, error)
            return
        self._call_on_loop(_settle, self._ready, None)
        while not self._started.wait(_LOOP_CHECK_SECONDS):
            if self._loop.is_closed():
                return
        try:
            if not self._serve():
                return
            self._mpi.Finalize()
        except Exception as error:  # noqa: BLE001
            self._call_on_loop(self._on_error, MpiError(str(error)))
        if self._leaving is not None:
            self._call_on_loop(_settle, self._leaving, None)

    def _initialize(self) -> None:
        try:
            import mpi4py  # noqa: PLC0415  # an extra

            mpi4py.rc(initialize=False, finalize=False)
            from mpi4py import MPI  # noqa: PLC0415
        except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py finds no MPI library
            advice = (
                "Install it with pip install '.[mpi]' in fastpull's source, and use the MPI library of the launcher"
            )
            raise MpiError(f"no MPI ({error})", advice) from error
        self._mpi = MPI
        try:
            MPI.Init_thread(MPI.THREAD_FUNNELED)
            world = MPI.COMM_WORLD
            self._world = world.Dup()  # a communicator without other messages
            self.rank, self.size = world.Get_rank(), world.Get_size()
            local = world.Split_type(MPI.COMM_TYPE_SHARED)
            self.node = local.bcast(self.rank, 0)
            local.Free()
        except MPI.Exception as error:
            raise MpiError(str(error)) from error

    def _serve(self) -> bool:
        """Exchange messages until this rank leaves or its event loop is closed; return whether this rank leaves.

        After the loop is closed, nothing can be delivered; only queued messages are still sent. MPI_Finalize is not
        called then: it would wait for ranks that do not know of the end.
        """
        pause = _MIN_PAUSE
        closed_at: float | None = None
        while True:
            leaving = self._leaving is not None
            if closed_at is None and self._loop.is_closed():
                closed_at = time.monotonic()
            has_moved = self._take_outgoing() | self._finish_sends() | self._begin_receives() | self._finish_receives()
            if leaving and not (has_moved or self._sending or self._receiving):
                return True
            if closed_at is not None:
                is_flushed = not (self._outgoing or self._sending)
                if is_flushed or time.monotonic() - closed_at > _FLUSH_SECONDS:
                    return False
            pause = _MIN_PAUSE if has_moved else min(2 * pause, _MAX_PAUSE)
            self._wake.wait(pause)
            self._wake.clear()

    def _take_outgoing(self) -> bool:
        has_moved = False
        while self._outgoing:
            to, tag, data, sent = self._outgoing.popleft()
            request = self._world.Isend([data, self._mpi.BYTE], to, tag)
            self._sending.append((request, data, sent))
            has_moved = True
        return has_moved

    def _finish_sends(self) -> bool:
        left = []
        for request, data, sent in self._sending:
            if not request.Test():
                left.append((request, data, sent))
            elif sent is not None:
                self._call_on_loop(_settle, sent, None)
        has_moved = len(left) < len(self._sending)
        self._sending = left
        return has_moved

    def _begin_receives(self) -> bool:
        has_moved = False
        status = self._mpi.Status()
        while (message := self._world.Improbe(self._mpi.ANY_SOURCE, _MESSAGE, status)) is not None:
            buffer = bytearray(status.Get_count(self._mpi.BYTE))
            message.Recv([buffer, self._mpi.BYTE])  # small, so it does not block for long
            self._call_on_loop(self._on_message, status.Get_source(), bytes(buffer))
            has_moved = True
        while self._free and (message := self._world.Improbe(self._mpi.ANY_SOURCE, _FRAME, status)) is not None:
            size = status.Get_count(self._mpi.BYTE)
            buffer = self._free.popleft()
            request = message.Irecv([memoryview(buffer)[:size], self._mpi.BYTE])
            self._receiving.append((request, status.Get_source(), buffer, size))
            has_moved = True
        return has_moved

    def _finish_receives(self) -> bool:
        left = []
        for request, source, buffer, size in self._receiving:
            if request.Test():
                self._call_on_loop(self._deliver, source, buffer, size)
            else:
                left.append((request, source, buffer, size))
        has_moved = len(left) < len(self._receiving)
        self._receiving = left
        return has_moved

    def _call_on_loop(self, function: Callable[..., None], *args: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed, which `_serve` checks
            self._loop.call_soon_threadsafe(function, *args)

    # --- on the loop

    def _deliver(self, source: int, buffer: bytearray, size: int) -> None:
        async def handle() -> None:
            try:
                await self._on_frame(source, memoryview(buffer)[:size])
            finally:
                self._free.append(buffer)
                self._wake.set()

        task = self._loop.create_task(handle())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _settle(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


async def open_mpi(timeout_seconds: float) -> MpiFabric:
    """Join the job for which an MPI launcher started this process.

    Args:
        timeout_seconds: the time that all ranks have to start.

    Raises:
        MpiError: MPI is missing, or not all ranks started in time.
    """
    fabric = MpiFabric()
    await fabric.open(timeout_seconds)
    return fabric
