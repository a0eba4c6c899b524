"""Output of commands: a live display on a terminal, plain lines elsewhere, or JSON."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import sys
import threading
import time
from typing import TYPE_CHECKING, Protocol, Self, TextIO

from fastpull.cli.display import Display, is_live
from fastpull.cli.layout import lines, total_line
from fastpull.cli.tracker import Tracker, node_name
from fastpull.cli.words import error_summary, plain, size_of
from fastpull.errors import printable
from fastpull.progress import (
    NOTICED_SECONDS,
    Committing,
    Copying,
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
    from fastpull.errors import FastpullError

_LINE_SECONDS = 5.0


class Console(Protocol):
    """Output of a command's events and result; a context manager around the work."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def on_event(self, event: Event) -> None:
        """Show an event, or ignore it."""

    def result(self, value: object, words: str, data: str = "") -> None:
        """Show the result.

        Args:
            value: the result for JSON.
            words: text for people, on stderr.
            data: text for scripts, on stdout or the console's other stream.
        """

    def failure(self, error: FastpullError) -> None:
        """Show an error that does not end the command."""


def console_for(options: argparse.Namespace, data_to: TextIO | None = None) -> Console:
    """Return the console that the options and the terminal ask for.

    Args:
        options: the command line's options.
        data_to: stream for the data of a result, unless it is JSON; by default stdout.
    """
    if options.json:
        return JsonConsole()
    if options.quiet:
        return QuietConsole(data_to)
    kind = LiveConsole if is_live(sys.stderr) else LineConsole
    return kind(options.verbose, data_to, shows_nodes=getattr(options, "mpi", False))


class QuietConsole:
    """Shows only errors and the result."""

    def __init__(self, data_to: TextIO | None = None) -> None:
        self._data_to = data_to

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def on_event(self, event: Event) -> None:
        """Ignore the event."""

    def result(self, value: object, words: str, data: str = "") -> None:  # noqa: ARG002
        """Print the data."""
        if data:
            print(data, file=self._data_to)

    def failure(self, error: FastpullError) -> None:
        """Show an error that does not end the command."""
        self._say(f"fastpull: error: {error}")

    def _say(self, line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)


class JsonConsole(QuietConsole):
    """Prints every event and the result as one JSON object a line, on stdout."""

    def on_event(self, event: Event) -> None:
        """Print an event under its name: ``LayerDone`` is ``layer_done``."""
        self._put(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", type(event).__name__).lower(), plain(event))

    def result(self, value: object, words: str, data: str = "") -> None:  # noqa: ARG002
        """Print the value as the event ``result``."""
        self._put("result", plain(value))

    def failure(self, error: FastpullError) -> None:
        """Print an error as an event, and on stderr."""
        self._put("error", error_summary(error))
        super().failure(error)

    @staticmethod
    def _put(name: str, value: object) -> None:
        body = value if isinstance(value, dict) else {"value": value}
        print(json.dumps({"event": name, **body}), flush=True)


class LineConsole(QuietConsole):
    """Prints lines, for logs: beginnings, ends, and the progress every few seconds."""

    def __init__(self, verbose: int, data_to: TextIO | None = None, *, shows_nodes: bool = False) -> None:
        super().__init__(data_to)
        self._verbose = verbose
        self._tracker = Tracker(shows_nodes=shows_nodes)
        self._nodes: dict[tuple[str, int], NodeProgress] = {}
        self._last = time.monotonic()

    def on_event(self, event: Event) -> None:
        """Print the lines of an event."""
        self._note(event)
        if isinstance(event, NodeProgress):
            self._nodes[event.source, event.rank] = event
        if isinstance(event, LayerProgress | Copying | NodeProgress):
            self._show_progress(event)
        elif isinstance(event, NodeDone):
            self._say(_node_done(event))
        elif words := self._words(event):
            self._say(words)

    def result(self, value: object, words: str, data: str = "") -> None:
        """Print the words and the data."""
        for line in words.split("\n") if words else ():
            self._say(line)
        super().result(value, words, data)

    def _note(self, event: Event) -> None:
        self._tracker.note(event, time.monotonic())

    def _shows_retry(self, pause: float, is_repeated: bool) -> bool:
        return bool(self._verbose) or (pause >= NOTICED_SECONDS and not is_repeated)

    def _words(self, event: Event) -> str:
        match event:
            case Resolved(image):
                return f"{image.source}: {image.digest} {image.platform}, {_layers(len(image.layers), image.size)}"
            case Waiting(source, digest):
                return f"{source}: waiting for {digest.short}, another process is downloading it"
            case WaitingForImage(source):
                return f"{source}: waiting for another process to make it"
            case LayerDone() if self._verbose:
                how = ", was cached" if event.was_cached else ""
                return f"{event.source}: {event.digest.short} done, {size_of(event.size)}{how}"
            case Retrying(host, reason, pause, is_repeated) if self._shows_retry(pause, is_repeated):
                return f"warning: {reason} (retry in {pause:.1f} s from {host})"
            case Committing(source, entries) if self._verbose:
                return f"{source}: finishing the output of {entries} entries"
            case Warned(source, message):
                return f"warning: {source}: {message}"
        return ""

    def _show_progress(self, event: LayerProgress | Copying | NodeProgress) -> None:
        now = time.monotonic()
        if now - self._last < _LINE_SECONDS:
            return
        self._last = now
        if not isinstance(event, NodeProgress):
            self._say(total_line(self._tracker.total(now)))
            return
        nodes = [node for node in self._nodes.values() if node.source == event.source]
        whole = sum(node.read >= node.size for node in nodes)
        least = min(nodes, key=lambda node: node.read)
        sizes = f"{size_of(sum(node.read for node in nodes))} of {size_of(sum(node.size for node in nodes))}"
        self._say(f"{event.source}: {whole} of {len(nodes)} nodes complete, {sizes}; {node_name(least)} is last")


class LiveConsole(LineConsole):
    """Shows a live total and a live line for each layer, image or node; for terminals."""

    def __init__(self, verbose: int, data_to: TextIO | None = None, *, shows_nodes: bool = False) -> None:
        super().__init__(verbose, data_to, shows_nodes=shows_nodes)
        self._shows_nodes = shows_nodes
        self._lock = threading.Lock()  # events arrive on the event loop's thread; the display has its own
        self._display: Display | None = None

    def __enter__(self) -> Self:
        self._tracker = Tracker(shows_nodes=self._shows_nodes)
        self._display = Display(sys.stderr, self._render)
        self._display.open()
        return self

    def __exit__(self, *_: object) -> None:
        if self._display is not None:
            self._display.close()
            self._display = None

    def result(self, value: object, words: str, data: str = "") -> None:
        """Print the words and the data, which may go to the same terminal."""
        with self._display.paused() if self._display is not None else contextlib.nullcontext():
            super().result(value, words, data)

    def _note(self, event: Event) -> None:
        with self._lock:
            super()._note(event)

    def _show_progress(self, event: LayerProgress | Copying | NodeProgress) -> None:
        """Print nothing: the display shows progress."""

    def _render(self, columns: int, height: int) -> list[str]:
        with self._lock:
            total, rows = self._tracker.total(time.monotonic()), self._tracker.rows()
            return lines(total, rows, columns, height)


def _node_done(event: NodeDone) -> str:
    how = f"done, {size_of(event.fetched)} from the registry, {size_of(event.received)} from other nodes"
    how = f"failed: {event.error}" if event.error else how
    return f"{event.source}: after {event.seconds:.1f} s {node_name(event)} {how}"


def _layers(count: int, size: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}, {size_of(size)}"
