"""Line coverage: a mark, one byte, per source line, which is set when the statement there runs.

Marks are inserted when modules are imported. All processes that are forked later share the bytes.
"""

from __future__ import annotations

import ast
import builtins
import mmap
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType

import pytest


def with_marks(text: bytes, first: int) -> ast.Module:
    """Parse a module, and set `__reached__[first + line]` before each statement of a function."""
    tree = ast.parse(text)
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    functions = [each for each in ast.walk(tree) if isinstance(each, kinds)]
    nodes = {id(node): node for each in functions for node in ast.walk(each)}.values()
    bodies = (getattr(n, name, ()) for n in nodes for name in ("body", "orelse", "finalbody"))
    for body in (body for body in bodies if isinstance(body, list)):
        for each in [*body]:
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                mark = ast.parse(f"__reached__[{first + each.lineno}] = 1").body[0]
                for part in ast.walk(mark):
                    ast.copy_location(part, each)
                body.insert(body.index(each), mark)
    return tree


class Marks:
    """The marks of source files. Modules that are imported after its creation set them."""

    def __init__(self, root: Path, files: list[str]) -> None:
        """Number the lines of `files`, and insert marks in modules that are imported later."""
        #: The range of marks of each file.
        self.lines: dict[str, range] = {}
        count = 0
        for name in files:
            size = (root / name).read_bytes().count(b"\n") + 2
            self.lines[name], count = range(count, count + size), count + size
        self.reached = mmap.mmap(-1, count + (1 << 16))  # room for a last file that grows
        vars(builtins)["__reached__"] = self.reached
        plain = SourceFileLoader.get_code

        def get_code(loader: SourceFileLoader, fullname: str) -> CodeType | None:
            path = Path(loader.get_filename(fullname)).resolve()
            name = path.relative_to(root).as_posix() if root in path.parents else ""
            if name not in self.lines:
                return plain(loader, fullname)
            marked = with_marks(path.read_bytes(), self.lines[name].start)
            return compile(marked, path, "exec", dont_inherit=True)

        pytest.MonkeyPatch().setattr(SourceFileLoader, "get_code", get_code)
