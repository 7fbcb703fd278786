"""`mxc opt`: run passes, or a target's pipeline up to a stage, over a file of IR.

The file may hold several programs separated by `// -----`. With `verify_diagnostics`, each program
says which refusal it expects:

    // expected-error @+1 {{K=100 is not a multiple of the block size 32}}

and the run fails where a program is not refused so, or is refused without having said so.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from iree.compiler import ir

from mxc.compiler.pipelines import pipeline
from mxc.dialects.context import new_context
from mxc.dialects.errors import MxcError, PassError
from mxc.passes.base import Pass, run
from mxc.passes.spec import parse

#: The first bytes of MLIR bytecode (mlir/Bytecode/Encoding.h).
_BYTECODE = b"ML\xefR"
_SEPARATOR = re.compile(r"^// -----\s*$", re.MULTILINE)
_EXPECTED = re.compile(r"//\s*expected-error\s*(?:@([+-]\d+))?\s*\{\{(.*?)\}\}")
_LOCATION = re.compile(r'loc\("-":(\d+):(\d+)\)')


def command(
    file: Path,
    *,
    passes: str | None = None,
    target: str | None = None,
    to: str | None = None,
    output: Path | None = None,
    split_input_file: bool = False,
    verify_diagnostics: bool = False,
    dump_ir: Path | None = None,
) -> int:
    """Run the passes and write the programs that come out, to `output` or to standard output.

    `passes` is a spec (`mxc-a{x=1},canonicalize`); `target` and `to` name a pipeline and its last
    stage instead. Returns the exit status: 1 where an expected refusal did not come as said.
    Raises MxcError on an unknown pass, target or stage, and where a pass refuses the program.
    """
    chosen = select(passes, target, to)
    programs = _read(file, split=split_input_file or verify_diagnostics)
    results, wrong = [], []
    for number, (line, program) in enumerate(programs):
        dump = None if dump_ir is None else dump_ir / (str(number) if len(programs) > 1 else "")
        try:
            found, refusal = _run(program, line, file, chosen, dump), None
        except PassError as error:
            found, refusal = "", error
        if not verify_diagnostics:
            if refusal is not None:
                raise refusal
            results.append(found)
        else:
            expected = _expectations(program, line) if isinstance(program, str) else []
            wrong += _compare(expected, refusal, file, line)
    if verify_diagnostics:
        print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
        return 1 if wrong else 0
    joined = "// -----\n".join(results)
    if output is None:
        sys.stdout.write(joined)
    else:
        try:
            output.write_text(joined, encoding="utf-8")
        except OSError as error:
            raise PassError(f"{output}: cannot be written ({error.strerror})") from error
    return 0


def select(passes: str | None, target: str | None, to: str | None) -> tuple[Pass | str, ...]:
    """The passes that the options name: of a target, those that run on the input of IREE.

    Raises PassError unless the options name one choice, and where `to` is a stage that runs later.
    """
    if (passes is None) == (target is None):
        raise PassError("give either --passes SPEC or --target TARGET [--to STAGE]")
    if passes is not None:
        if to is not None:
            raise PassError("--to names a stage of --target; it has no meaning with --passes")
        return parse(passes)
    assert target is not None
    stages = pipeline(target)
    if to is not None:
        stages = stages.until(to)
        phase = stages.stages[-1].phase
        if phase is not None:
            raise PassError(
                f"stage {to} runs after IREE's phase {phase}, not on a file: see it with "
                "mxc compile --dump-ir DIR, or give its passes with --passes"
            )
    return tuple(p for stage in stages.stages if stage.phase is None for p in stage.passes)


def _read(file: Path, *, split: bool) -> list[tuple[int, str | bytes]]:
    """(lines before it, program) of each program in the file."""
    try:
        data = sys.stdin.buffer.read() if str(file) == "-" else file.read_bytes()
    except OSError as error:
        raise PassError(f"{file}: cannot be read ({error.strerror})") from error
    if data.startswith(_BYTECODE):
        return [(0, data)]
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PassError(f"{file}: neither MLIR text nor bytecode ({error})") from error
    return [*_split(text)] if split else [(0, text)]


def _run(
    program: str | bytes, line: int, file: Path, passes: Sequence[Pass | str], dump: Path | None
) -> str:
    """Parse, run and print one program whose text begins after `line` lines of `file`."""
    try:
        with new_context():
            # Empty lines in front give every location its line in the file.
            before = "\n" * line
            module = ir.Module.parse(before + program if isinstance(program, str) else program)
            run(passes, module, dump_dir=dump)
            return str(module)
    except ir.MLIRError as error:
        found = "; ".join(f"{d.location}: {d.message}" for d in error.error_diagnostics)
        raise PassError(_placed(f"cannot parse the program: {found or error}", file)) from error
    except PassError as error:
        raise PassError(_placed(str(error), file)) from error


def _placed(message: str, file: Path) -> str:
    return _LOCATION.sub(lambda m: f"{file}:{m.group(1)}:{m.group(2)}", message)


def _split(text: str) -> list[tuple[int, str]]:
    """(lines before it, text) of each program."""
    programs, start = [], 0
    for end in [*(m.start() for m in _SEPARATOR.finditer(text)), len(text)]:
        programs.append((text.count("\n", 0, start), text[start:end]))
        start = end
    return programs


@dataclass(frozen=True)
class _Expected:
    line: int
    message: str


def _expectations(program: str, before: int) -> list[_Expected]:
    return [
        _Expected(before + number + int(match.group(1) or 0), match.group(2))
        for number, text in enumerate(program.splitlines(), start=1)
        for match in _EXPECTED.finditer(text)
    ]


def _compare(
    expected: list[_Expected], refusal: PassError | None, file: Path, line: int
) -> list[str]:
    """What is wrong with one program's refusal; a run stops at the first, so that one is all."""
    if refusal is None:
        return [
            f"{file}:{e.line}: expected a refusal: {e.message}; there was none" for e in expected
        ]
    message = str(refusal)
    if not expected:
        return [f"{file}:{line + 1}: refused, which nothing expected: {message}"]
    at = re.match(rf"{re.escape(str(file))}:(\d+):", message)
    placed = at is None or int(at.group(1)) == expected[0].line
    if len(expected) == 1 and placed and expected[0].message in message:
        return []
    wanted = " and ".join(f"line {e.line}: {e.message}" for e in expected)
    return [f"{file}:{line + 1}: expected {wanted}; got: {message}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """The same as a program of its own, which starts faster than the whole command line."""
    parser = argparse.ArgumentParser(prog="mxc opt", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--passes")
    parser.add_argument("--target")
    parser.add_argument("--to")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--split-input-file", action="store_true")
    parser.add_argument("--verify-diagnostics", action="store_true")
    parser.add_argument("--dump-ir", type=Path)
    try:
        return command(**vars(parser.parse_args(arguments)))
    except MxcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
