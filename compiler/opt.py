"""`mxc opt`: run passes, or a target's pipeline up to a stage, over a file of IR.

The file may hold several programs separated by `// -----`. With `verify_diagnostics`, a comment in
each program states the error that it expects:

    // expected-error @+1 {{K=100 is not a multiple of the block size 32}}

The run fails if an expected error is missing or differs, or if an error was not expected.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from mxc.compiler.steps import OptRequest, StepRefused, require_timeout
from mxc.compiler.worker import run_passes
from mxc.errors import MxcError, PassError

#: The first bytes of MLIR bytecode (mlir/Bytecode/Encoding.h).
_BYTECODE = b"ML\xefR"
_SEPARATOR = re.compile(r"^// -----\s*$", re.MULTILINE)
_EXPECTED = re.compile(r"//\s*expected-error\s*(?:@([+-]\d+))?\s*\{\{(.*?)\}\}")


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
    phase_timeout: float | None = None,
    print_kernels: bool = False,
) -> int:
    """Run the passes and write the resulting programs to `output` or to standard output.

    `passes` is a spec (`mxc-a{x=1},canonicalize`); `target` and `to` name a pipeline and its last
    stage instead. The passes run in a worker process, each for at most `phase_timeout` seconds.
    `print_kernels`: write the kernels of the kernel language instead of the programs
    (docs/kernels.md). Returns the exit status: 1 if diagnostics do not match. Raises MxcError for
    an unknown pass, target or stage, if a pass refuses the program, and if the worker dies.
    """
    timeout = require_timeout(phase_timeout)
    programs = _read(file, split=split_input_file or verify_diagnostics)
    found = run_passes(
        OptRequest(
            programs=tuple(programs),
            place=str(file),
            passes=passes,
            target=target,
            to=to,
            dump_dir=None if dump_ir is None else dump_ir.absolute(),
            phase_timeout=timeout,
            print_kernels=print_kernels,
        )
    )
    if verify_diagnostics:
        return _verify(programs, found, file)
    for each in found:
        if isinstance(each, StepRefused):
            raise PassError(each.message)
    text = "// -----\n".join(map(str, found))
    if output is None:
        sys.stdout.write(text)
    else:
        try:
            output.write_text(text, encoding="utf-8")
        except OSError as error:
            raise PassError(f"{output}: cannot be written ({error.strerror})") from error
    return 0


def _read(file: Path, *, split: bool) -> list[tuple[int, str | bytes]]:
    """Return (number of lines before it, program) for each program in the file."""
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
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise PassError(f"{file}:{line}: a NUL byte: neither MLIR text nor bytecode")
    return [*_split(text)] if split else [(0, text)]


def _verify(
    programs: Sequence[tuple[int, str | bytes]], found: Sequence[str | StepRefused], file: Path
) -> int:
    """Print each mismatch between expected and raised errors; return the exit status."""
    wrong = []
    for (line, program), each in zip(programs, found, strict=True):
        expected = _expectations(program, line) if isinstance(program, str) else []
        wrong += _compare(expected, each if isinstance(each, StepRefused) else None, file, line)
    print("\n".join(wrong), file=sys.stderr, end="\n" if wrong else "")
    return 1 if wrong else 0


def _split(text: str) -> list[tuple[int, str]]:
    """Return (number of lines before it, text) for each program."""
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
    expected: list[_Expected], refusal: StepRefused | None, file: Path, line: int
) -> list[str]:
    """Return the mismatches for one program. A run stops at its first error, so at most one
    matches.
    """
    if refusal is None:
        return [
            f"{file}:{e.line}: expected a refusal: {e.message}; there was none" for e in expected
        ]
    message = refusal.message
    if not expected:
        return [f"{file}:{line + 1}: refused, which nothing expected: {message}"]
    at = re.match(rf"{re.escape(str(file))}:(\d+):", message)
    placed = at is None or int(at.group(1)) == expected[0].line
    if len(expected) == 1 and placed and expected[0].message in message:
        return []
    wanted = " and ".join(f"line {e.line}: {e.message}" for e in expected)
    return [f"{file}:{line + 1}: expected {wanted}; got: {message}"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run as a separate program, which starts faster than the whole command line."""
    parser = argparse.ArgumentParser(prog="mxc opt", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--passes")
    parser.add_argument("--target")
    parser.add_argument("--to")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--split-input-file", action="store_true")
    parser.add_argument("--verify-diagnostics", action="store_true")
    parser.add_argument("--dump-ir", type=Path)
    parser.add_argument("--phase-timeout", type=float)
    parser.add_argument("--print-kernels", action="store_true")
    try:
        return command(**vars(parser.parse_args(arguments)))
    except MxcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
