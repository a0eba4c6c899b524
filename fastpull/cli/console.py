"""Telling what happens: a live line per layer on a terminal, plain lines elsewhere, JSON for machines."""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from fastpull.cli.words import error_summary, plain, size_of
from fastpull.progress import (
    Committing,
    Event,
    LayerDone,
    LayerProgress,
    NodeDone,
    NodeProgress,
    Resolved,
    Retrying,
    Waiting,
    WaitingForImage,
    Warned,
)

if TYPE_CHECKING:
    from rich.progress import TaskID

    import fastpull
    from fastpull.errors import FastpullError

_LINE_SECONDS = 5.0
_MAX_LIVE_LINES = 24


class Console(Protocol):
    """A way of telling; a context manager for the time of the work."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def on_event(self, event: Event) -> None:
        """Tells of an event, or not."""

    def result(self, value: object, words: str, data: str = "") -> None:
        """Tells what has come of it.

        Args:
            value: for machines.
            words: for people, on stderr.
            data: for scripts, on stdout or where the console was told.
        """

    def failure(self, error: FastpullError) -> None:
        """Tells an error that does not end the command."""


def console_for(options: argparse.Namespace, data_to: TextIO | None = None) -> Console:
    """The way of telling that the options and the terminal ask for.

    Args:
        options: of the command line.
        data_to: where the data of a result go, unless it is JSON; by default stdout.
    """
    if options.json:
        return JsonConsole()
    if options.quiet:
        return QuietConsole(data_to)
    if sys.stderr.isatty():
        return LiveConsole(options.verbose, data_to, shows_nodes=getattr(options, "mpi", False))
    return LineConsole(options.verbose, data_to)


class QuietConsole:
    """Tells only the result."""

    def __init__(self, data_to: TextIO | None = None) -> None:
        self._data_to = data_to

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def on_event(self, event: Event) -> None:
        """Tells nothing."""

    def result(self, value: object, words: str, data: str = "") -> None:  # noqa: ARG002
        """Tells the data."""
        if data:
            print(data, file=self._data_to)

    def failure(self, error: FastpullError) -> None:
        """Tells an error that does not end the command."""
        self._say(f"fastpull: error: {error}")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


class JsonConsole(QuietConsole):
    """Tells everything, one JSON object a line, on stdout."""

    def on_event(self, event: Event) -> None:
        """Tells an event under its name: ``LayerDone`` is ``layer_done``."""
        self._put(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower(), plain(event))

    def result(self, value: object, words: str, data: str = "") -> None:  # noqa: ARG002
        """Tells the value as the event ``result``."""
        self._put("result", plain(value))

    def failure(self, error: FastpullError) -> None:
        """Tells an error as an event, and on stderr."""
        self._put("error", error_summary(error))
        super().failure(error)

    @staticmethod
    def _put(name: str, value: object) -> None:
        body = value if isinstance(value, dict) else {"value": value}
        print(json.dumps({"event": name, **body}), flush=True)


class LineConsole(QuietConsole):
    """Tells in lines, for logs: what begins and ends, and every few seconds how far it is."""

    def __init__(self, verbose: bool, data_to: TextIO | None = None) -> None:
        super().__init__(data_to)
        self._verbose = verbose
        self._layers: dict[tuple[str, str], LayerProgress] = {}
        self._nodes: dict[tuple[str, int], NodeProgress] = {}
        self._sizes: dict[str, int] = {}
        self._last = time.monotonic()

    def on_event(self, event: Event) -> None:
        """Tells an event."""
        if isinstance(event, Resolved):
            self._sizes[event.image.source] = event.image.size
        if isinstance(event, LayerProgress):
            self._layers[event.source, str(event.digest)] = event
            self._tell_progress(event.source)
        elif isinstance(event, NodeProgress):
            self._nodes[event.source, event.rank] = event
            self._tell_nodes(event.source)
        elif isinstance(event, NodeDone):
            self._say(_node_done(event))
        elif words := self._words(event):
            self._say(words)

    def result(self, value: object, words: str, data: str = "") -> None:
        """Tells the words, and the data."""
        if words:
            self._say(words)
        super().result(value, words, data)

    def _words(self, event: Event) -> str:
        match event:
            case Resolved(image):
                return f"{image.source}: {image.digest} {image.platform}, {_layers(len(image.layers), image.size)}"
            case Waiting(source, digest):
                return f"{source}: waiting for {digest.short}, which somebody else is downloading"
            case WaitingForImage(source):
                return f"{source}: waiting for somebody else who is making it"
            case LayerDone() if self._verbose:
                how = ", was cached" if event.was_cached else ""
                return f"{event.source}: {event.digest.short} done, {size_of(event.size)}{how}"
            case Retrying(host, reason, pause, is_repeated) if self._verbose or (pause >= 1 and not is_repeated):
                return f"warning: {reason} (again in {pause:.1f} s from {host})"
            case Committing(source, entries) if self._verbose:
                return f"{source}: finishing the output of {entries} entries"
            case Warned(source, message):
                return f"warning: {source}: {message}"
        return ""

    def _tell_progress(self, source: str) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS:
            self._last = now
            read = sum(layer.read for layer in self._layers.values() if layer.source == source)
            self._say(f"{source}: {size_of(read)} of {size_of(self._sizes.get(source, 0))}")

    def _tell_nodes(self, source: str) -> None:
        now = time.monotonic()
        if now - self._last >= _LINE_SECONDS:
            self._last = now
            nodes = [node for node in self._nodes.values() if node.source == source]
            whole = sum(node.read >= node.size for node in nodes)
            least = min(nodes, key=lambda node: node.read)
            sizes = f"{size_of(sum(node.read for node in nodes))} of {size_of(sum(node.size for node in nodes))}"
            self._say(f"{source}: {whole} of {len(nodes)} nodes have all, {sizes}; {_node(least)} has least")


class LiveConsole(LineConsole):
    """Tells with a line per layer, or per node of an MPI job, that moves; for terminals."""

    def __init__(self, verbose: bool, data_to: TextIO | None = None, *, shows_nodes: bool = False) -> None:
        super().__init__(verbose, data_to)
        self._shows_nodes = shows_nodes

    def __enter__(self) -> Self:
        from rich.console import Console as Terminal  # noqa: PLC0415  # only a terminal has to load it
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn  # noqa: PLC0415

        self._tasks: dict[tuple[str, str], TaskID] = {}
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            TextColumn("{task.fields[state]}", markup=False),
            console=Terminal(stderr=True),
            transient=True,
        )
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def on_event(self, event: Event) -> None:
        """Moves the lines, and prints above them what is to stay."""
        match event:
            case Resolved(image) if not self._shows_nodes:
                for layer in image.layers:
                    self._line(image.source, layer.blob.digest, layer.blob.size)
            case LayerProgress():
                self._show(event, "unpacking" if event.unpacked else "")
            case LayerDone():
                self._show(event, "was cached" if event.was_cached else "done")
            case NodeProgress():
                self._show_node(event, event.read, "")
            case NodeDone():
                self._show_node(event, None, "failed" if event.error else "done")
                self._say(_node_done(event))
            case Committing():
                for task in self._tasks.values():
                    self._progress.update(task, state="finishing")
        if words := self._words(event):
            self._say(words)

    def _line(self, source: str, digest: fastpull.Digest, size: int) -> TaskID:
        key = source, str(digest)
        if key not in self._tasks:
            self._tasks[key] = self._progress.add_task(
                digest.short, total=size, state="", visible=len(self._tasks) < _MAX_LIVE_LINES
            )
        return self._tasks[key]

    def _show(self, event: LayerProgress | LayerDone, state: str) -> None:
        task = self._line(event.source, event.digest, event.size)
        is_done = isinstance(event, LayerDone)
        read = event.size if isinstance(event, LayerDone) else event.read
        visible = len(self._tasks) <= _MAX_LIVE_LINES or not is_done
        self._progress.update(task, completed=read, state=state, visible=visible)

    def _show_node(self, event: NodeProgress | NodeDone, read: int | None, state: str) -> None:
        key, size = (event.source, _node(event)), self._sizes.get(event.source)
        if key not in self._tasks:
            visible = len(self._tasks) < _MAX_LIVE_LINES
            self._tasks[key] = self._progress.add_task(_node(event), total=size, state="", visible=visible)
        self._progress.update(self._tasks[key], completed=read, state=state)

    def _say(self, line: str) -> None:
        if getattr(self, "_progress", None) is not None and self._progress.live.is_started:
            self._progress.console.print(line, markup=False, highlight=False, soft_wrap=True)
        else:
            super()._say(line)


def _node(event: NodeProgress | NodeDone) -> str:
    return f"rank {event.rank} on {event.host}"


def _node_done(event: NodeDone) -> str:
    how = f"done, {size_of(event.fetched)} from the registry, {size_of(event.received)} from other nodes"
    how = f"failed: {event.error}" if event.error else how
    return f"{event.source}: after {event.seconds:.1f} s {_node(event)} {how}"


def _layers(count: int, size: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}, {size_of(size)}"
