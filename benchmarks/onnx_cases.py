"""Compile and run the test cases of ONNX on this CPU, and compare with the results beside them.

    python benchmarks/onnx_cases.py --output cases.jsonl [--kind node] [--only NAME]

The cases are those of the package `onnx`: a model, inputs, and what its reference implementation
computes. Each runs in a process of its own. A line for each case, with one of:

    right      the numbers are within the bound of the case
    refused    an error of mxc in a line, with its text
    skipped    an input or a result is no tensor, or of strings
    wrong      other numbers, sizes or types
    fault      any other exception, a crash, or more than 300 s

A second run continues the file. The exit status is 1 where a case is wrong or has a fault.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import tempfile
import traceback
from collections import Counter
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx.backend.test.loader import load_model_tests

import mxc
from mxc.errors import MxcError

SECONDS = 300
FAILED = ("wrong", "fault")


def main() -> int:
    """Run the cases that the output does not have."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, required=True, help="a line of JSON each")
    parser.add_argument("--kind", default="node", help="folder of cases: node, simple, ...")
    parser.add_argument("--only", default="", help="cases whose name contains this")
    words = parser.parse_args()
    known = words.output.read_text().splitlines() if words.output.exists() else []
    rows = {row["name"]: row for row in map(json.loads, known)}
    for case in load_model_tests(kind=words.kind):
        if words.only in case.name and case.name not in rows:
            outcome, text = _apart(case)
            rows[case.name] = {"name": case.name, "outcome": outcome, "text": text}
            with words.output.open("a") as file:
                file.write(json.dumps(rows[case.name]) + "\n")
            print(f"{case.name}: {outcome} {text.splitlines()[-1] if text else ''}", flush=True)
    counts = Counter(row["outcome"] for row in rows.values())
    print(", ".join(f"{count} {outcome}" for outcome, count in counts.most_common()))
    return int(any(counts[outcome] for outcome in FAILED))


def _apart(case: Any) -> tuple[str, str]:
    """The outcome of a case in a process of its own, and its text."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_child, args=(case, there), daemon=False)
    process.start()
    there.close()
    try:
        found: tuple[str, str] = here.recv() if here.poll(SECONDS) else ("fault", "too long")
    except EOFError:
        process.join()
        found = ("fault", f"the process ended with {process.exitcode}")
    process.kill()
    process.join()
    return found


def _child(case: Any, to: Connection) -> None:
    try:
        to.send(_outcome(Path(case.model_dir), case.rtol, case.atol))
    except MxcError as error:
        to.send(("refused", str(error)))
    except BaseException:
        to.send(("fault", traceback.format_exc()))


def _outcome(folder: Path, rtol: float, atol: float) -> tuple[str, str]:
    """Compile the model of a folder, and compare each of its sets of data."""
    graph = onnx.load(folder / "model.onnx").graph
    outputs = [each.name for each in graph.output]
    if any(
        not each.type.HasField("tensor_type")
        or each.type.tensor_type.elem_type == onnx.TensorProto.STRING
        for each in (*graph.input, *graph.output)
    ):
        return "skipped", ""
    with tempfile.TemporaryDirectory() as made:
        artifact = mxc.compile(folder / "model.onnx", output=Path(made) / "case.mxc")
        model = mxc.load(artifact.path, threads=1)
        (function,) = artifact.manifest.functions
        for data in sorted(folder.glob("test_data_set_*")):
            given, wanted = (_tensors(data, kind) for kind in ("input", "output"))
            found = model.call(function, *given)
            for name, one, other in zip(outputs, found, wanted, strict=True):
                text = difference(one, other, rtol, atol)
                if text:
                    return "wrong", f"{name}: {text}"
    return "right", ""


def _tensors(folder: Path, kind: str) -> list[np.ndarray[Any, Any]]:
    files = sorted(folder.glob(f"{kind}_*.pb"), key=lambda file: int(file.stem.split("_")[1]))
    protos = [onnx.TensorProto.FromString(file.read_bytes()) for file in files]
    return [onnx.numpy_helper.to_array(proto) for proto in protos]


def difference(
    found: np.ndarray[Any, Any], wanted: np.ndarray[Any, Any], rtol: float, atol: float
) -> str:
    """How a result differs from the wanted one; empty where it is within the bound."""
    if found.shape != wanted.shape:
        return f"wants {wanted.shape}, found {found.shape}"
    if found.dtype != wanted.dtype and found.dtype.itemsize == wanted.dtype.itemsize:
        # Results are arrays of signed integers, or of bytes, of the same bits.
        found = found.view(wanted.dtype)
    if found.dtype != wanted.dtype:
        return f"wants {wanted.dtype}, found {found.dtype}"
    with np.errstate(all="ignore"):
        one, other = (each.astype(np.float64) for each in (found, wanted))
        wrong = ~np.isclose(one, other, rtol=rtol, atol=atol, equal_nan=True)
    if not wrong.any():
        return ""
    place = tuple(int(i) for i in np.argwhere(wrong)[0])
    return (
        f"{wrong.sum()} of {wrong.size} differ, first at {list(place)}: wants {wanted[place]}, "
        f"found {found[place]}"
    )


if __name__ == "__main__":
    sys.exit(main())
