"""The table of cases in docs/registries.md, made from the markers of tests.

A test has one ``@pytest.mark.case(AREA, TEXT)`` for each case that it covers. ``make cases`` writes the table.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/registries.md"
AREAS = {
    "auth": "Authorization",
    "credentials": "Credential sources",
    "http": "HTTP",
    "mirrors": "Mirrors",
    "objects": "Objects",
    "signatures": "Policy and signatures",
}
_BEGIN, _END = "<!-- cases: written by make cases -->\n", "<!-- end of cases -->\n"


@dataclass(frozen=True, order=True)
class DocumentedCase:
    """One marker of a test."""

    area: str
    text: str
    path: str
    test: str


def find_cases(folder: Path = ROOT / "tests") -> list[DocumentedCase]:
    """Return the cases of all tests below a directory.

    Raises:
        ValueError: a marker is not a pair of strings, or names an unknown area.
    """
    found = []
    for path in sorted(folder.rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                name = path.relative_to(folder.parent).as_posix()
                found += [DocumentedCase(area, text, name, node.name) for area, text in _marks(node)]
    return sorted(found)


def _marks(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.case":
            match decorator.args:
                case [ast.Constant(value=str(area)), ast.Constant(value=str(text))] if area in AREAS:
                    yield area, text
                case _:
                    raise ValueError(
                        f"{function.name}: {ast.unparse(decorator)} is not a case; the areas are {[*AREAS]}"
                    )


def table(cases: list[DocumentedCase]) -> str:
    """Return the cases as Markdown tables, one per area."""
    lines: list[str] = []
    for area, title in AREAS.items():
        of_area = [case for case in cases if case.area == area]
        if of_area:
            lines += [f"### {title}", "", "| case | test |", "|---|---|"]
            lines += [f"| {case.text} | [`{case.test}`](../{case.path}) |" for case in of_area]
            lines.append("")
    return "\n".join(lines)


def with_table(page: str, content: str) -> str:
    """Return the page with new content between the two comments."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError("the page lacks the comments around the table")
    return f"{before}{begin}\n{content}\n{end}{after}"


def main() -> None:
    """Write the table into its page."""
    PAGE.write_text(with_table(PAGE.read_text(), table(find_cases())))


if __name__ == "__main__":
    main()
