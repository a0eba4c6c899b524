"""The file that a trace is written to, whatever becomes of the pull."""

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
    """A context manager whose value is a `Trace`, which is written at the end of the context, also after an error.

    The file appears complete, and replaces one that is there. It is for Perfetto (https://ui.perfetto.dev) and
    chrome://tracing.

    Args:
        path: of the file; a regular file there is replaced, and nothing else.
        keep_out: directories that the file is not to be in.

    Raises:
        InvalidSetting: from the constructor, if the path cannot be that of a file.
        OutputError: from ``with``: when it begins if the file cannot be made, when it ends if it
            cannot be written; an error of the context goes before that.

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
            if error is None:  # what went wrong first is what is to be told
                raise
        finally:
            self._staging.remove()
