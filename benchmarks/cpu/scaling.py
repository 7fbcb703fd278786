"""Measure speed by threads, sequence length and number of sequences, and compare with llama.cpp.

    python benchmarks/cpu/scaling.py [--quick] [--layers 2] [--activations bf16]
        [--quantize-dense mxint8|none] [--threads 1,2] [--lengths 128,..,8192] [--batches 1,..,16]
        [--generate 32] [--rounds 2] [--no-peer] [--folder DIR] [--json] [-- words for mxc compile]

There is a line for each number of threads and length, with tokens per second of a prompt of that
length and of the tokens after it. Then there is a line for each number of sequences that are
decoded together after short prompts, with tokens per second of all. The best round counts; mxc and
the peer alternate.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from artifacts import bench_model, compile_model
from ggml import PeerMissing, folder
from gguf_model import write_model
from limits import numbers
from model import dimensions
from serving import Served, serving

from mxc.compiler.checkpoints.synthetic.gpt_oss import write_gpt_oss
from mxc.runtime.other_load import OtherLoad

LENGTHS = (128, 256, 512, 1024, 2048, 4096, 8192)
BATCHES = (1, 2, 4, 8, 16)

#: Prompt of each sequence of a batch, in tokens.
SHORT = 32


@dataclass(frozen=True)
class Line:
    """Tokens a second of all sequences in one setting; None: not measured."""

    threads: int
    length: int
    batch: int
    prompt: float | None
    generation: float | None
    peer_prompt: float | None
    peer_generation: float | None


@dataclass(frozen=True)
class Setting:
    """Number of threads, prompt tokens of a sequence, and number of sequences."""

    threads: int
    length: int
    batch: int = 1


def settings(threads: list[int], lengths: list[int], batches: list[int]) -> list[Setting]:
    """Return the settings: each length with one sequence, then each batch with short prompts."""
    found = [Setting(count, length) for count in threads for length in lengths]
    return found + [Setting(count, SHORT, batch) for count in threads for batch in batches]


def measure(options: argparse.Namespace, place: Path) -> Iterator[Line]:
    """Write the models, compile mxc's, and yield lines as they are measured.

    Raises PeerMissing, and SystemExit if a command of mxc fails.
    """
    shape = dimensions(options.layers, options.tiny)
    model = None
    if not options.no_peer:
        folder()
        model = place / "peer.gguf"
        write_model(model, shape)
    checkpoint = place / "checkpoint"
    write_gpt_oss(checkpoint, shape, tokenizer=False)
    longest = max(*options.lengths, SHORT) + options.generate
    words = ["--max-sequence-length", str(longest), *options.words]
    dense = None if options.quantize_dense == "none" else options.quantize_dense
    built = compile_model(checkpoint, place / "model.mxc", options.activations, dense, words)
    for setting in settings(options.threads, options.lengths, options.batches):
        room = setting.length + options.generate
        with serving(model, setting.threads, room, setting.batch) as served:
            yield _best(built.path, served, setting, options.generate, options.rounds)


def _best(
    artifact: Path, served: Served | None, setting: Setting, generate: int, rounds: int
) -> Line:
    ours: list[tuple[float, float]] = []
    peers: list[tuple[float, float]] = []
    batch, length = setting.batch, setting.length
    for _ in range(rounds):
        if served is not None:
            run = served.run(length, generate, batch)
            peers.append(
                (
                    batch * length / run["prompt_seconds"],
                    batch * generate / run["generate_seconds"],
                )
            )
        found = bench_model(artifact, length, generate, setting.threads, batch)
        ours.append((found["prompt_tokens_per_second"], found["generate_tokens_per_second"]))
    return Line(setting.threads, length, batch, *_maxima(ours), *_maxima(peers))


def _maxima(pairs: list[tuple[float, float]]) -> tuple[float | None, float | None]:
    if not pairs:
        return None, None
    first, second = (max(values) for values in zip(*pairs, strict=True))
    return first, second


HEADER = (
    f"{'threads':>7}{'sequences':>10}{'tokens':>8}{'prompt/s':>10}{'peer':>10}{'ratio':>7}"
    f"{'generated/s':>12}{'peer':>10}{'ratio':>7}"
)


def show(line: Line) -> None:
    """Print one line of the table."""
    cells = ""
    for width, ours, peer in (
        (10, line.prompt, line.peer_prompt),
        (12, line.generation, line.peer_generation),
    ):
        ratio = None if ours is None or peer is None else ours / peer
        cells += _cell(ours, width, 1) + _cell(peer, 10, 1) + _cell(ratio, 7, 2)
    print(f"{line.threads:7}{line.batch:10}{line.length:8}{cells}", flush=True)


def _cell(value: float | None, width: int, digits: int) -> str:
    return f"{'-':>{width}}" if value is None else f"{value:{width}.{digits}f}"


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few lengths and batches, one round")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="small dimensions: a trial, no figures")
    parser.add_argument("--activations", default="bf16")
    parser.add_argument("--quantize-dense", default="mxint8", help="mxint8, mxfp8 or none")
    parser.add_argument("--threads", type=numbers, default=[1, 2], help="separated by commas")
    parser.add_argument("--lengths", type=numbers, help="prompt tokens, separated by commas")
    parser.add_argument("--batches", type=numbers, help="sequences, separated by commas")
    parser.add_argument("--generate", type=int, default=32, help="tokens of each sequence")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--no-peer", action="store_true", help="measure without llama.cpp")
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("words", nargs="*", help="further words for mxc compile, after --")
    options = parser.parse_args(arguments)
    options.lengths = options.lengths or ([128, 1024] if options.quick else list(LENGTHS))
    options.batches = options.batches or ([1, 4] if options.quick else list(BATCHES))
    options.rounds = options.rounds or (1 if options.quick else 2)
    return options


def main() -> int:
    options = parse()
    others = OtherLoad()
    lines: list[dict[str, Any]] = []
    try:
        with tempfile.TemporaryDirectory(dir=options.folder) as place:
            for line in measure(options, Path(place)):
                lines.append(asdict(line))
                if not options.json:
                    if len(lines) == 1:
                        print(HEADER)
                    show(line)
    except PeerMissing as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(json.dumps({"lines": lines, "other_cores": others.cores()}))
    else:
        print(others)
    return 0


if __name__ == "__main__":
    sys.exit(main())
