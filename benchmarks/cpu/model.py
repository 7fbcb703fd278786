"""Compare a model with the dimensions of gpt-oss-20b with llama.cpp: prompt, generation, memory.

    python benchmarks/cpu/model.py [--quick] [--layers 2] [--activations bf16,i8]
        [--quantize-dense mxint8|none] [--prompts 128,512] [--generate 32] [--rounds 5]
        [--threads 2] [--no-peer] [--peer-no-mmap] [--folder DIR] [--json]
        [-- words for mxc compile]

Both models are random, with mxfp4 experts and 8-bit dense layers. The peer runs like llama-bench,
mxc with `mxc bench`. They alternate, and the best run of each counts. DRAM reads, which bound
generation, are measured in between: the median of mxc's generation rates is compared with the bound
by the median read rate. The exit status is 1 if a wanted figure is missed.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from artifacts import Built, bench_model, compile_model
from ggml import PeerMissing, folder, version
from gguf_model import write_model
from limits import numbers, read_limit
from serving import serving

from mxc.compiler.checkpoints.synthetic.gpt_oss import GPT_OSS_20B, GptOssOptions, write_gpt_oss
from mxc.runtime.other_load import OtherLoad

#: Wanted figures: ratio to the peer's rate of reading prompts, ratio to its rate of generation,
#: share of the bound of generation, and seconds of compilation without packing.
PROMPT, GENERATION, BOUND, COMPILE_SECONDS = 3.0, 1.0, 0.9, 30.0

#: Tokens of the vocabulary. With the published number, the LM head would dominate two layers.
VOCABULARY = 32768


@dataclass
class Best:
    """The best of several runs, in tokens a second, and the largest resident set in bytes."""

    prompt: dict[int, float] = field(default_factory=dict)
    generations: list[float] = field(default_factory=list)
    memory: int = 0

    @property
    def generate(self) -> float:
        """The best rate of generation."""
        return max(self.generations)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for --json."""
        return {**vars(self), "generate": self.generate}

    def add(self, tokens: int, prompt: float, generate: float, memory: int) -> None:
        """Add a run with a prompt of `tokens` tokens."""
        self.prompt[tokens] = max(self.prompt.get(tokens, 0.0), prompt)
        self.generations.append(generate)
        self.memory = max(self.memory, memory)


@dataclass(frozen=True)
class Check:
    """A wanted figure: `found` must be at least `wanted`, or at most if `at_most`."""

    name: str
    found: float
    wanted: float
    at_most: bool = False

    @property
    def passes(self) -> bool:
        """Whether `found` is as wanted."""
        return self.found <= self.wanted if self.at_most else self.found >= self.wanted

    def to_dict(self) -> dict[str, Any]:
        """Return the fields for --json."""
        return {
            "name": self.name,
            "found": self.found,
            "wanted": self.wanted,
            "passes": self.passes,
        }


def checks(mode: str, built: Built, ours: Best, peer: Best | None, dram: float) -> list[Check]:
    """Return the checks of one artifact. `dram`: median rate of DRAM reads, 1e9 bytes a second.

    A generation lasts for some tenths of a second, in which the rate of DRAM reads changes. So the
    median rate of generation is compared with the bound by the median rate of reads.
    """
    bound = dram * 1e9 / built.bytes_per_token
    usual = median(ours.generations)
    found = [
        Check(f"{mode}: generation, of the bound {bound:.0f}/s", usual / bound, BOUND),
        Check(f"{mode}: compile, s without packing", built.compile_seconds, COMPILE_SECONDS, True),
    ]
    if peer is not None:
        found += [
            Check(f"{mode}: prompt of {tokens}, of the peer", rate / peer.prompt[tokens], PROMPT)
            for tokens, rate in ours.prompt.items()
        ]
        found += [
            Check(f"{mode}: generation, of the peer", ours.generate / peer.generate, GENERATION),
            Check(f"{mode}: peak memory, of the peer", ours.memory / peer.memory, 1.0, True),
        ]
    return found


@dataclass(frozen=True)
class Result:
    """Result of the script: artifacts by activation mode, and the best rates of each and of the
    peer. `dram`: median rate of DRAM reads in 1e9 bytes a second."""

    built: dict[str, Built]
    ours: dict[str, Best]
    peer: Best | None
    dram: float

    def checks(self) -> list[Check]:
        """Return the checks of all artifacts."""
        return [
            check
            for mode, built in self.built.items()
            for check in checks(mode, built, self.ours[mode], self.peer, self.dram)
        ]


def measure(options: argparse.Namespace, place: Path) -> Result:
    """Write the models, compile mxc's, and measure both alternately.

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
    longest = max(options.prompts) + options.generate
    words = ["--max-sequence-length", str(longest), *options.words]
    dense = None if options.quantize_dense == "none" else options.quantize_dense
    built = {
        mode: compile_model(checkpoint, place / f"{mode}.mxc", mode, dense, words)
        for mode in options.activations
    }
    ours = {mode: Best() for mode in built}
    peer = None if model is None else Best()
    readings = []
    with serving(model, options.threads, longest, mmap=not options.peer_no_mmap) as served:
        for _ in range(options.rounds):
            readings.append(read_limit(options.threads))
            for prompt in options.prompts:
                if served is not None and peer is not None:
                    run = served.run(prompt, options.generate)
                    peer.add(
                        prompt,
                        prompt / run["prompt_seconds"],
                        options.generate / run["generate_seconds"],
                        run["peak_memory_bytes"],
                    )
                for mode, each in built.items():
                    found = bench_model(each.path, prompt, options.generate, options.threads)
                    ours[mode].add(
                        prompt,
                        found["prompt_tokens_per_second"],
                        found["generate_tokens_per_second"],
                        found["peak_memory_bytes"],
                    )
    return Result(built, ours, peer, median(readings))


def dimensions(layers: int, tiny: bool) -> GptOssOptions:
    """Return the published dimensions, but for layers and vocabulary; `tiny`: small dimensions."""
    if tiny:
        return GptOssOptions(num_hidden_layers=layers)
    return replace(GPT_OSS_20B, num_hidden_layers=layers, vocab_size=VOCABULARY)


def show(result: Result) -> None:
    """Print what was measured, then the checks."""
    lengths = list(next(iter(result.ours.values())).prompt)
    head = "".join(f"{f'prompt {tokens}':>13}" for tokens in lengths)
    print(f"{'best, tokens/s':<18}{head}{'generation':>13}{'peak MiB':>10}")
    rows = {**{f"ours, {mode}": best for mode, best in result.ours.items()}}
    if result.peer is not None:
        rows["llama.cpp"] = result.peer
    for name, best in rows.items():
        cells = "".join(f"{best.prompt[tokens]:13.1f}" for tokens in lengths)
        print(f"{name:<18}{cells}{best.generate:13.1f}{best.memory / (1 << 20):10.0f}")
    print(f"DRAM read {result.dram:.1f} GB/s (median of all rounds)")
    for mode, built in result.built.items():
        print(
            f"{mode}: {built.bytes_per_token / 1e6:.0f} MB of weights a token, compiled in "
            f"{built.compile_seconds:.1f} s and {built.packing_seconds:.1f} s of packing"
        )
    for check in result.checks():
        sign, verdict = ("<=" if check.at_most else ">="), "pass" if check.passes else "FAIL"
        print(f"{check.name:<44}{check.found:8.2f} {sign} {check.wanted:<6g}{verdict}")


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one prompt length, two rounds")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--tiny", action="store_true", help="small dimensions: a trial, no figures")
    parser.add_argument("--activations", default="bf16,i8", help="separated by commas")
    parser.add_argument("--quantize-dense", default="mxint8", help="mxint8, mxfp8 or none")
    parser.add_argument("--prompts", type=numbers, help="tokens, separated by commas")
    parser.add_argument("--generate", type=int, default=32, help="tokens")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--no-peer", action="store_true", help="measure without llama.cpp")
    parser.add_argument(
        "--peer-no-mmap", action="store_true", help="the peer reads its file: less memory"
    )
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("words", nargs="*", help="further words for mxc compile, after --")
    options = parser.parse_args(arguments)
    options.prompts = options.prompts or ([128] if options.quick else [128, 512])
    options.rounds = options.rounds or (2 if options.quick else 5)
    options.activations = options.activations.split(",")
    return options


def main() -> int:
    options = parse()
    others = OtherLoad()
    try:
        with tempfile.TemporaryDirectory(dir=options.folder) as place:
            result = measure(options, Path(place))
    except PeerMissing as error:
        print(error, file=sys.stderr)
        return 1
    if options.json:
        print(
            json.dumps(
                {
                    "peer": None if result.peer is None else result.peer.to_dict(),
                    "ours": {mode: best.to_dict() for mode, best in result.ours.items()},
                    "dram_read": result.dram,
                    "built": {
                        mode: {**vars(built), "path": built.path.name}
                        for mode, built in result.built.items()
                    },
                    "checks": [check.to_dict() for check in result.checks()],
                    "other_cores": others.cores(),
                }
            )
        )
    else:
        print(f"peer: llama-cpp-python {'none' if options.no_peer else version()}")
        show(result)
        print(others)
    return int(not all(check.passes for check in result.checks()))


if __name__ == "__main__":
    sys.exit(main())
