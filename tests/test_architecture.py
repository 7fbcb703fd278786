"""The shape of the tree: who imports whom, what runs without the compiler, what each file holds."""

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = (
    "artifact", "compiler", "dialects", "formats", "kernels", "passes", "runtime", "server",
    "simulator", "targets",
)  # fmt: skip
FOLDERS = (*PACKAGES, "mxc", "tests", "lit_tests", "benchmarks", "examples")

#: Imports go one way: a room of the tree and the rooms that it may import.
_DATA = {"artifact", "errors", "formats", "targets"}
MAY_IMPORT = {
    "errors": set(),
    "formats": {"formats", "errors"},
    "targets": {"targets", "errors"},
    "artifact": {"artifact", "errors"},
    "dialects": {"dialects", *_DATA},
    "kernels": {"kernels", "dialects", *_DATA},
    "passes": {"passes", "kernels", "dialects", *_DATA},
    "compiler": {"compiler", "passes", "kernels", "dialects", *_DATA},
    "simulator": {"simulator", "artifact", "targets", "errors"},
    "runtime": {"runtime", "simulator", *_DATA},
    "server": {"server", "runtime", "artifact", "errors"},
    "cli": {
        "cli",
        "compiler",
        "runtime",
        "server",
        "simulator",
        "passes",
        "dialects",
        "mxc",
        *_DATA,
    },
}
#: Rooms of kernels share what lies beside them, and know nothing of each other.
KERNELS = ("attention", "cpu", "gpu")
#: The only files that may touch MLIR's pass manager, and name a flag of IREE.
PASS_MANAGER = {"passes/base.py"}
IREE_FLAGS = {"compiler/iree.py"}
#: The only files of passes that erase operations: a worklist has to know of it.
ERASE = {"passes/rewriting/sanitizer.py", "passes/rewriting/worklist.py"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@cache
def modules() -> dict[str, Path]:
    """Every module of the packages, by its import name."""
    found = {"mxc.errors": ROOT / "mxc" / "errors.py"}
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found[".".join(("mxc", *parts)).removesuffix(".__init__")] = path
    return found


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=relative(path))


def names_of(node: ast.AST, package: str) -> Iterator[str]:
    """Dotted names that an import statement, or a call of import_module, brings in."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        home = node.module or ""
        if node.level:
            base = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            home = f"{base}.{home}".rstrip(".")
        yield from (f"{home}.{alias.name}" for alias in node.names)
    elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        called = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if called in {"import_module", "__import__"}:
            yield str(node.args[0].value)


@cache
def imports(module: str) -> frozenset[str]:
    """What a module imports anywhere in its text: modules of ours, else the dotted name."""
    path = modules()[module]
    package = module if path.name == "__init__.py" else module.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree(path)):
        for name in names_of(node, package):
            ours = name
            while ours not in modules() and "." in ours:
                ours = ours.rpartition(".")[0]
            found.add(ours if ours in modules() else "mxc" if ours == "mxc" else name)
    return frozenset(found)


def room(module: str) -> str:
    """The room of a module: its package, `cli`, or `mxc` for the front door."""
    parts = module.split(".")
    return "cli" if parts[1:3] == ["compiler", "cli"] else parts[1] if len(parts) > 1 else "mxc"


def files(*suffixes: str) -> list[Path]:
    """Files of the tree that people write."""
    here = (p for p in ROOT.iterdir() if p.name != ".git")  # a file in a worktree
    found = [p for p in here if p.is_file() and p.suffix in suffixes]
    for folder in FOLDERS:
        found += [p for p in (ROOT / folder).rglob("*") if p.is_file() and p.suffix in suffixes]
    return sorted(p for p in found if not {"Output", "__pycache__"} & set(p.parts))


def passes() -> list[tuple[Any, Path]]:
    """Every pass with its file, whether the table of passes lists it or not."""
    from mxc.passes.base import Pass

    for name in modules():
        if room(name) == "passes":
            import_module(name)
    found: list[type] = []
    todo = [Pass]
    while todo:
        subclasses = todo.pop().__subclasses__()
        todo += subclasses
        found += (c for c in subclasses if c.__module__ in modules())
    return [(c, modules()[c.__module__]) for c in sorted(found, key=lambda c: c.__name__)]


def listed(lines: list[str], why: str) -> str:
    return "\n".join((why, *lines))


def python(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-c", program, *arguments], capture_output=True, text=True, timeout=60
    )


WITHOUT_COMPILER = """
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "iree.compiler" or name.startswith("iree.compiler."):
            raise ImportError(f"{name} is blocked")

sys.meta_path.insert(0, Block())
"""


def test_names_that_are_imported_exist() -> None:
    """Nothing else imports lit tests, which mypy does not check."""
    known = {"mxc", *modules(), *(f"mxc.{path.stem}" for path in (ROOT / "mxc").glob("*.py"))}
    missing = set()
    for path in files(".py"):
        unchecked = relative(path).split("/")[0] not in PACKAGES
        for node in ast.walk(tree(path)) if unchecked else ():
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "mxc":
                home = node.module or ""
                module = import_module(home) if home in known else None
                missing |= {
                    f"{relative(path)}:{node.lineno}: {home}.{alias.name}"
                    for alias in node.names
                    if f"{home}.{alias.name}" not in known and not hasattr(module, alias.name)
                }
    assert not missing, listed(sorted(missing), "no such name")


def test_imports_go_one_way() -> None:
    against = [
        f"{importer} imports {name}"
        for importer in modules()
        for name in sorted(imports(importer))
        if name.split(".")[0] == "mxc" and room(name) not in MAY_IMPORT[room(importer)]
    ]
    assert not against, listed(against, f"rooms may import {MAY_IMPORT}")


def test_kernels_of_one_room_know_none_of_another() -> None:
    rooms = [f"mxc.passes.kernels.{name}" for name in KERNELS]
    against = [
        f"{importer} imports {name}"
        for importer in modules()
        if importer.startswith("mxc.passes.kernels.")
        for name in sorted(imports(importer))
        for other in rooms
        if name.startswith(other) and not importer.startswith(other)
    ]
    assert not against, listed(against, f"{', '.join(KERNELS)}: what two need lies beside them")


def test_our_modules_are_imported_by_their_full_name() -> None:
    bare = [
        f"{importer} imports {name}"
        for importer in modules()
        for name in sorted(imports(importer))
        if name.split(".")[0] in PACKAGES
    ]
    assert not bare, listed(bare, "a second copy under a bare name would register everything twice")


def test_what_the_runtime_reaches_has_no_mlir() -> None:
    reached: dict[str, str] = {name: name for name in modules() if room(name) == "runtime"}
    todo = list(reached)
    while todo:
        module = todo.pop()
        for name in imports(module):
            assert not f"{name}.".startswith("iree.compiler."), (
                f"{name} by way of {reached[module]}"
            )
            parents = (".".join(name.split(".")[:n]) for n in range(2, name.count(".") + 2))
            for new in parents:
                if new in modules() and new not in reached:
                    reached[new] = f"{reached[module]} -> {new}"
                    todo.append(new)
    assert any(room(name) == "artifact" for name in reached)


def test_runtime_and_interpreter_are_imported_without_the_compiler() -> None:
    names = sorted(name for name in modules() if room(name) in ("runtime", "server"))
    names += sorted(
        name
        for name in modules()
        if room(name) == "kernels" and not name.startswith("mxc.kernels.lowering")
    )
    program = WITHOUT_COMPILER + (
        "from importlib import import_module\n"
        "import mxc\n"
        "for name in sys.argv[1:]: import_module(name)\n"
        "assert 'iree.compiler' not in sys.modules\n"
    )
    result = python(program, *names)
    assert result.returncode == 0, result.stderr
    control = python(program, "mxc.dialects.context")
    assert "iree.compiler is blocked" in control.stderr, "the block must bite"


@pytest.mark.parametrize(
    "words",
    [["--help"], ["generate", "--help"], ["list", "formats"], ["list", "targets"]],
    ids=" ".join,
)
def test_command_line_starts_without_the_compiler(words: list[str]) -> None:
    program = WITHOUT_COMPILER + (
        "from mxc.compiler.cli import main\nsys.argv[0] = 'mxc'\nsys.exit(main())\n"
    )
    result = python(program, *words)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip()


def test_no_module_of_ours_is_loaded_under_a_bare_name() -> None:
    # Collection has imported every test module by now. transformers asks for a package "kernels"
    # of another project, and finds the folder; nothing in it is loaded so.
    names = (name.partition(".") for name in sys.modules)
    assert not {name for name in names if name[0] in PACKAGES and name[1]}


def test_one_file_runs_passes_and_one_knows_the_flags() -> None:
    managers, flags = set(), set()
    for path in modules().values():
        for node in ast.walk(tree(path)):
            if "PassManager" in (getattr(node, key, "") for key in ("id", "attr", "name")):
                managers.add(relative(path))
            if isinstance(node, ast.Constant) and str(node.value).startswith("--iree-"):
                flags.add(relative(path))
    assert managers <= PASS_MANAGER, "only there is the program verified after each pass"
    assert flags <= IREE_FLAGS


def test_one_function_erases_operations() -> None:
    erasing = {
        relative(path)
        for name, path in modules().items()
        if room(name) == "passes"
        for node in ast.walk(tree(path))
        if isinstance(node, ast.Attribute) and node.attr == "erase"
    }
    assert erasing == ERASE, "passes call erase of passes/rewriting/worklist.py"


#: What says whether an operation may be a kernel. Other matchers return None: it is no such thing.
MATCHERS = ("match", "match_scaled_contraction", "match_attention")


def test_a_matcher_returns_a_record_or_a_reason() -> None:
    """What says no says why: no caller can lose a reason that was never given."""
    silent = [
        f"{name}.{node.name}: {ast.unparse(node.returns)}"
        for name, path in modules().items()
        if room(name) in ("passes", "dialects")
        for node in ast.walk(tree(path))
        if isinstance(node, ast.FunctionDef) and node.returns is not None
        for returns in [ast.unparse(node.returns).split(" | ")]
        if {"Reason", "None"} <= {*returns} or (node.name in MATCHERS and "Reason" not in returns)
    ]
    assert not silent, listed(silent, "wanted `Record | Reason`")


def test_every_pass_is_in_the_table() -> None:
    from mxc.passes import PASSES

    assert [p.__name__ for p in PASSES] == [p.__name__ for p, _ in passes()]


def test_a_pass_file_is_one_pass_with_its_page_and_its_lit_tests() -> None:
    lit = ROOT / "lit_tests" / "passes"
    wrong = []
    seen: dict[Path, str] = {}
    for defined, path in passes():
        place = relative(path)
        if (other := seen.setdefault(path, defined.__name__)) != defined.__name__:
            wrong.append(f"{place}: wanted one pass a file, found {other} and {defined.__name__}")
        page = ast.get_docstring(tree(path)) or ""
        for word in (f"{defined.name}: ", "before:", "after:", "Leaves alone:"):
            if word not in page:
                wrong.append(f"{place}: `mxc list passes` prints its docstring, which lacks {word}")
        # One of many operations has a folder beside it, with a file for each of the others.
        if not (lit / f"{path.stem}.mlir").is_file():
            wrong.append(f"{place}: no lit test of the same stem")
        refuses = any(getattr(node, "id", "") == "PassError" for node in ast.walk(tree(path)))
        if refuses and not (lit / f"{path.stem}_invalid.mlir").is_file():
            wrong.append(f"{place}: no lit test, {path.stem}_invalid.mlir, of its refusals")
    assert seen
    assert not wrong, listed(wrong, "a pass is read, found and checked by its name")


def test_lit_tests_of_passes_have_their_pass() -> None:
    stems = {p.stem.removesuffix("_invalid") for p in (ROOT / "lit_tests/passes").iterdir()}
    assert stems <= {p.stem for p in (ROOT / "passes").glob("*.py")}


def test_every_format_has_an_expectation_written_out() -> None:
    from mxc.formats.formats import FORMATS

    tests = [p.read_text() for p in files(".py", ".mlir", ".test") if "tests" in relative(p)]
    unused = [n for n in FORMATS if not any(re.search(rf"\b{n}\b", text) for text in tests)]
    assert not unused


def test_files_are_short() -> None:
    long = {relative(p): n for p in files(".py") if (n := len(p.read_text().splitlines())) > 400}
    assert not long, "longer than 400 lines"


def test_file_names_say_what_is_inside() -> None:
    vague = {"utils", "util", "helpers", "helper", "misc", "manager", "common"}
    assert not [relative(p) for p in files(".py") if vague & set(p.stem.split("_"))]


def test_no_path_of_one_machine() -> None:
    place = re.compile(r"(?<![\w.~}:-])/(root|home|work|farm|Users|tmp|opt)/\w")
    texts = files(".py", ".md", ".toml", ".cfg", ".mlir", ".test", ".yml", "")
    found = [
        f"{relative(path)}:{number}: {line.strip()}"
        for path in texts
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if place.search(line)
    ]
    assert not found, listed(found, "the tree is for every machine")


def test_nothing_is_silenced() -> None:
    comment = re.compile(r"#\s*(type:\s*ignore|noqa|pyright:\s*ignore|pragma:\s*no cover)", re.I)
    counted = "tests/rounds.py"  # what it skips is counted, and named where all of a test is
    attribute = {"skip", "skipif", "xfail", "importorskip", "skipTest", "expectedFailure"}
    found = []
    for path in files(".py"):
        text = path.read_text()
        # Few files have any of it, in a comment or in a string.
        for token in (
            tokenize.generate_tokens(io.StringIO(text).readline) if comment.search(text) else ()
        ):
            if token.type == tokenize.COMMENT and comment.match(token.string):
                found.append(f"{relative(path)}:{token.start[0]}: {token.string}")
        found += [
            f"{relative(path)}:{node.lineno}: {node.attr}"
            for node in ast.walk(tree(path))
            if isinstance(node, ast.Attribute) and node.attr in attribute
            if relative(path) != counted
        ]
    assert not found, listed(found, "a check that does not run says nothing")
