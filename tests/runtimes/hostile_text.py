"""Config texts that try to inject something into the files of other programs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

FSTAB = "/x none none\n/ /host none x-create=dir,rbind,rw\n#"

HOSTILE = {
    "a line of an fstab": FSTAB,
    "a line feed": "a\nEVIL=1",
    "a command": "a\ntouch evil\n",
    "a line feed at the end": "a\n",
    "a carriage return": "a\rEVIL=1",
    "both": "a\r\nEVIL=1",
    "a vertical tab": "a\vEVIL=1",
    "a form feed": "a\fEVIL=1",
    "a file separator": "a\x1cEVIL=1",
    "a group separator": "a\x1dEVIL=1",
    "a record separator": "a\x1eEVIL=1",
    "next line": "a\x85EVIL=1",
    "a line separator": "a\u2028EVIL=1",
    "a paragraph separator": "a\u2029EVIL=1",
    "an escape sequence": "a\x1b]0;evil\x07",
    "a backspace": "a\b\b\bevil",
    "right to left": "a\u202eevil",
    "a blank": "a none rbind",
    "a tab": "a\tnone",
    "a space of another width": "a\u3000b",
    "an octal escape": "a\\040none\\012evil",
    "a climb": "a/../../../host",
    "only a climb": "..",
    "a variable": "${HOME}$HOME",
    "a command in parentheses": "$(touch evil)",
    "a command in backquotes": "`touch evil`",
    "an open quote": "a'; touch evil; '",
    "an open double quote": 'a"; touch evil; "',
    "a comment": "a # b",
    "an escaped end": "a\\",
    "JSON": 'a", "evil": {"x": "',
    "a whiteout": ".wh.evil",
    "a colon": "a:0:0::/:/bin/sh",
    "a hundred kilobytes": "a" * 100_000,
}
"""Hostile texts by their content."""


def _volume(text: str) -> dict[str, Any]:
    return {"Volumes": {"/" + text.removeprefix("/"): {}, text: {}, "/data": {}}}


PLACES: dict[str, Callable[[str], dict[str, Any]]] = {
    "a volume": _volume,
    "a volume below another": lambda text: {"Volumes": {f"/data/{text}": {}}},
    "a label": lambda text: {"Labels": {"a": text, "z": "last"}},
    "the name of a label": lambda text: {"Labels": {text: "a", "z": "last"}},
    "a variable": lambda text: {"Env": [f"A={text}", "Z=last"]},
    "the name of a variable": lambda text: {"Env": [f"A{text}=a", "Z=last"]},
    "a variable without a value": lambda text: {"Env": [f"A{text}", "Z=last"]},
    "the user": lambda text: {"User": text},
    "the group": lambda text: {"User": f"0:{text}"},
    "the entrypoint": lambda text: {"Entrypoint": ["/bin/true", text]},
    "the command": lambda text: {"Cmd": ["/bin/true", text]},
    "the working directory": lambda text: {"WorkingDir": f"/srv/{text}"},
    "the stop signal": lambda text: {"StopSignal": text},
    "a port": lambda text: {"ExposedPorts": {text: {}}},
    "the author": lambda text: {"top": {"author": text}},
    "the time": lambda text: {"top": {"created": text}},
    "the version of the system": lambda text: {"top": {"os.version": text, "os.features": [text]}},
    "the history": lambda text: {"top": {"history": [{"created_by": text, "comment": text}]}},
    "the source": lambda text: {"source": f"oci:{text}"},
}
"""The arguments of `image_of` for each place of a text in a config."""
