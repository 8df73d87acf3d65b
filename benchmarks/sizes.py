"""Sizes of files and functions, types and docstrings: `make pages` writes ours into docs/contributing/style.md.

`python -m benchmarks.sizes FOLDER` prints those of another package. A function's lines are from `def` to its end,
docstring included; typed means that the result, or every argument, has an annotation.
"""

import ast
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles

ROOT = Path(__file__).parents[1]
PACKAGE, PAGE = ROOT / "src" / "fedstrata", ROOT / "docs" / "contributing" / "style.md"
Function = ast.FunctionDef | ast.AsyncFunctionDef


def functions(tree: ast.AST) -> Iterator[Function]:
    """Functions and methods, those within others too."""
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def lines(node: Function) -> int:
    """How long it is, without its decorators."""
    return (node.end_lineno or node.lineno) - node.lineno + 1


def typed(node: Function) -> bool:
    """Whether its result, or all of its arguments, have a type."""
    args = [a for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs) if a.arg not in {"self", "cls"}]
    return node.returns is not None or (bool(args) and all(a.annotation for a in args))


def spread(values: Sequence[int]) -> str:
    """Median / 90th percentile / largest."""
    return f"{median(values):.0f} / {quantiles(values, n=10)[-1]:.0f} / {max(values)}"


def share(some: Sequence[bool]) -> str:
    """Of how many it is true."""
    return f"{100 * sum(some) / len(some):.0f} %"


def row(folder: Path) -> str:
    """A line of the table."""
    files = sorted(folder.rglob("*.py"))
    texts = [f.read_text(encoding="utf-8") for f in files]
    every = [node for text in texts for node in functions(ast.parse(text))]
    cells = [
        str(len(files)),
        spread([len(text.splitlines()) for text in texts]),
        spread([lines(node) for node in every]),
        share([typed(node) for node in every]),
        share([ast.get_docstring(node) is not None for node in every]),
    ]
    return f"| {folder.name} | {' | '.join(cells)} |"


def longest(folder: Path, count: int) -> list[tuple[int, str]]:
    """The longest functions, and where they are."""
    found = [
        (lines(node), f"{path.relative_to(folder)}:{node.name}")
        for path in folder.rglob("*.py")
        for node in functions(ast.parse(path.read_text(encoding="utf-8")))
    ]
    return sorted(found, reverse=True)[:count]


def with_figures(page: str, folder: Path = PACKAGE) -> str:
    """The page of style with our row, and our longest functions."""
    longest_ones = ", ".join(f"`{where}` {length}" for length, where in longest(folder, 10))
    page = re.sub(r"^\| fedstrata \| \d.*$", row(folder), page, flags=re.M)
    return re.sub(r"^Longest: .*$", f"Longest: {longest_ones}.", page, flags=re.M)


def main(args: Sequence[str]) -> None:
    """Print the figures of a package, or write ours into the page."""
    if args:
        print(row(Path(args[0])), *longest(Path(args[0]), 10), sep="\n")
    else:
        PAGE.write_text(with_figures(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
