"""The trace file: the timeline of a pull, written whether the pull succeeds or fails."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

from fastpull.concurrency.writes import pwrite_all
from fastpull.errors import InvalidSetting, OutputError
from fastpull.sinks.output.errors import output_errors
from fastpull.sinks.output.file_staging import FileStaging
from fastpull.telemetry.trace import Trace

if TYPE_CHECKING:
    from types import TracebackType


class TraceFile:
    """A context manager that returns a `Trace` and writes it to a file at the end, also after an error.

    The file is published complete and replaces an existing one. Open it with Perfetto (https://ui.perfetto.dev) or
    chrome://tracing.

    Args:
        path: path of the file; only a regular file is replaced.
        keep_out: directories that the file must not be in.

    Raises:
        InvalidSetting: from the constructor, if the path is not that of a file.
        OutputError: from ``with``: at the beginning if the file cannot be created, at the end if it cannot be written.
            An error of the context takes precedence.

    Spec: Trace Event Format (Google, 2016), JSON Object Format.
    """

    def __init__(self, path: str | os.PathLike[str], *, keep_out: Sequence[str] = ()) -> None:
        name = os.fspath(path)
        if name in ("", "-") or name.endswith("/"):
            raise InvalidSetting(name, "a trace has to have the name of a file")
        self._keep_out = keep_out
        self._staging = FileStaging(name, force=True)

    def __enter__(self) -> Trace:
        try:
            self._staging.create(self._keep_out)
        except BaseException:
            self._staging.remove()
            raise
        self._trace = Trace()
        return self._trace

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            with output_errors(self._staging.destination):
                pwrite_all(self._staging.fd, 0, [json.dumps(self._trace.document()).encode()])
            self._staging.publish(sync=False)
        except OutputError:
            if error is None:
                raise
        finally:
            self._staging.remove()
