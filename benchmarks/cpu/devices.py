"""Compare a model on several CPU devices with the same model on one device, with equal threads.

    python benchmarks/cpu/devices.py [--devices 2] [--threads 2] [--layers 2] [--tiny]
        [--prompt 128] [--seconds 30] [--activations bf16] [--quantize-dense mxint8|none]
        [--folder DIR] [--json] [-- words for mxc compile]

The layers have the dimensions of gpt-oss-20b. Both models alternate in one process: a step of a
prompt, then steps of one token. Each line has the minimum time of both models and their ratio, in
wall time and in processor time, which other load on the machine does not change.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from artifacts import compile_model
from model import dimensions

import mxc
from mxc.compiler.checkpoints.synthetic.gpt_oss import write_gpt_oss
from mxc.runtime.other_load import OtherLoad
from mxc.runtime.sequence import Sequence

#: Steps of one token in a repetition.
GENERATED = 4


@dataclass(frozen=True)
class Line:
    """One line of the table.

    `wall`, `processor`: least wall time and least processor time of a repetition in seconds, each
    as (on one device, on several devices).
    """

    name: str
    wall: tuple[float, float]
    processor: tuple[float, float]
    repetitions: int


def alternately(
    name: str, call: Callable[[Sequence], None], sequences: list[Sequence], seconds: float
) -> Line:
    """Time a call of both sequences alternately, for `seconds` and at least four rounds.

    The order is reversed in each round. The first round does not count.
    """
    taken: list[list[tuple[float, float]]] = [[], []]
    end, iteration = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or iteration < 4:
        for which in (0, 1) if iteration % 2 else (1, 0):
            wall, processor = time.perf_counter(), time.process_time()
            call(sequences[which])
            times = (time.perf_counter() - wall, time.process_time() - processor)
            taken[which].append(times)
        iteration += 1
    least = [[min(each) for each in zip(*rounds[1:], strict=True)] for rounds in taken]
    return Line(name, (least[0][0], least[1][0]), (least[0][1], least[1][1]), iteration - 1)


def measure(options: argparse.Namespace, place: Path) -> list[Line]:
    shape = dimensions(options.layers, options.tiny)
    write_gpt_oss(place / "checkpoint", shape, tokenizer=False)
    dense = None if options.quantize_dense == "none" else options.quantize_dense
    length, sequences = str(options.prompt + GENERATED), []
    for devices in (1, options.devices):
        words = ["--max-sequence-length", length, "--devices", str(devices), *options.words]
        name = place / f"{devices}.mxc"
        compile_model(place / "checkpoint", name, options.activations, dense, words)
        model = mxc.load(name, threads=options.threads // devices)
        sequences.append(model.sequence())
    tokens = np.random.default_rng(0).integers(0, shape.vocab_size, options.prompt).tolist()

    def prompt(sequence: Sequence) -> None:
        sequence.reset()
        sequence.feed(tokens, last_only=True)

    def generate(sequence: Sequence) -> None:
        sequence.reset()
        for token in tokens[:GENERATED]:
            sequence.feed([token], last_only=True)

    return [
        alternately(name, call, sequences, options.seconds)
        for name, call in (
            (f"prompt of {options.prompt}", prompt),
            (f"{GENERATED} tokens", generate),
        )
    ]


def show(line: Line) -> None:
    cells = ""
    for one, several in (line.wall, line.processor):
        cells += f"{1e3 * one:10.2f}{1e3 * several:10.2f}{one / several:7.2f}"
    print(f"{line.name:14}{cells}{line.repetitions:7}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--threads", type=int, default=2, help="of all devices together")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="small dimensions: a trial, no figures")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=30.0, help="for each line")
    parser.add_argument("--activations", default="bf16")
    parser.add_argument("--quantize-dense", default="mxint8", help="mxint8, mxfp8 or none")
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("words", nargs="*", help="further words for mxc compile, after --")
    options = parser.parse_args()
    others = OtherLoad()
    with tempfile.TemporaryDirectory(dir=options.folder) as place:
        lines = measure(options, Path(place))
    if options.json:
        found = [asdict(line) for line in lines]
        print(json.dumps({"lines": found, "other_cores": others.cores()}))
        return 0
    print(f"{'ms':14}{'one':>10}{'several':>10}{'ratio':>7}{'one, cpu':>10}{'several':>10}")
    for line in lines:
        show(line)
    print(others)
    return 0


if __name__ == "__main__":
    sys.exit(main())
