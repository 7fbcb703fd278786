"""Run a model in llama.cpp the way llama-bench does: a whole prompt, then token by token.

    python benchmarks/cpu/llama.py MODEL.gguf [--prompt 128] [--generate 32] [--threads 2]
        [--batch 1] [--repeat 3] [--no-mmap] [--serve] [--json]

Settings are the defaults of llama-bench: batches of 2048, micro-batches of 512, weights repacked,
logits of the last token only. Tokens are random, and nothing is sampled. With --serve, each line
"PROMPT GENERATE BATCH" on standard input is answered by a line of JSON, until the input ends.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib
import json
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from ggml import PACKAGE, PeerMissing, folder

#: `LLAMA_LOAD_MODE_NONE` (llama.h): the file is read, not mapped. The default maps it, and then
#: holds the pages that were read beside the repacked copies.
_LOAD_MODE_NONE = 0

#: llama-bench's --batch-size and --ubatch-size.
BATCH, MICRO_BATCH = 2048, 512


@dataclass(frozen=True)
class Run:
    """One run of `batch` sequences.

    `prompt_seconds`: time of the prompts, of `prompt` tokens each. `generate_seconds`: time of
    `generate` steps, each of one token of every sequence. `peak_memory_bytes`: the largest resident
    set of the process so far.
    """

    prompt: int
    generate: int
    batch: int
    prompt_seconds: float
    generate_seconds: float
    peak_memory_bytes: int


class Llama:
    """A model and a context for `length` tokens of each of `sequences` sequences."""

    def __init__(
        self, file: Path, threads: int, length: int, sequences: int = 1, *, mmap: bool = True
    ) -> None:
        """Load the file. Raises PeerMissing if the package is not there or does not load it."""
        folder()
        try:
            api: Any = importlib.import_module("llama_cpp.llama_cpp")
        except (ImportError, OSError, RuntimeError) as error:
            raise PeerMissing(f"{PACKAGE}: cannot be imported ({error})") from error
        self._api = api
        self._silent = api.llama_log_callback(lambda level, text, data: None)
        api.llama_log_set(self._silent, ctypes.c_void_p(0))
        api.llama_backend_init()
        model = api.llama_model_default_params()
        if not mmap:
            model.load_mode = _LOAD_MODE_NONE
        self._model = api.llama_model_load_from_file(str(file).encode(), model)
        if not self._model:
            raise PeerMissing(f"{PACKAGE}: does not load {file}")
        parameters = api.llama_context_default_params()
        parameters.n_ctx = length * sequences
        parameters.n_seq_max = sequences
        parameters.n_batch, parameters.n_ubatch = BATCH, MICRO_BATCH
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.swa_full = False
        self._context = api.llama_init_from_model(self._model, parameters)
        if not self._context:
            raise PeerMissing(f"{PACKAGE}: makes no context of {length} tokens for {file}")
        self._vocabulary = api.llama_vocab_n_tokens(api.llama_model_get_vocab(self._model))
        self._rng = np.random.default_rng(0)

    def run(self, prompt: int, generate: int, batch: int = 1) -> Run:
        """Run once from an empty context. Raises RuntimeError if a token is not decoded."""
        api = self._api
        api.llama_memory_clear(api.llama_get_memory(self._context), False)
        tokens = self._tokens(prompt)
        start = time.perf_counter()
        for sequence in range(batch):
            for first in range(0, prompt, BATCH):
                part = tokens[first : first + BATCH]
                self._decode(part, range(first, first + len(part)), [sequence] * len(part))
        middle = time.perf_counter()
        for step in range(generate):
            self._decode(self._tokens(batch), [prompt + step] * batch, range(batch), every=True)
        end = time.perf_counter()
        return Run(prompt, generate, batch, middle - start, end - middle, _peak_memory_bytes())

    def _tokens(self, count: int) -> list[int]:
        tokens: list[int] = self._rng.integers(0, self._vocabulary, count).tolist()
        return tokens

    def _decode(self, tokens: Any, positions: Any, sequences: Any, every: bool = False) -> None:
        """Decode tokens, each at a position of a sequence.

        `every`: whether the logits of every token are computed, or only those of the last.
        """
        api = self._api
        batch = api.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, (token, position, sequence) in enumerate(
            zip(tokens, positions, sequences, strict=True)
        ):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = every or i == len(tokens) - 1
        status = api.llama_decode(self._context, batch)
        api.llama_synchronize(self._context)
        api.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode of {len(tokens)} tokens: status {status}")


def _peak_memory_bytes() -> int:
    # Not ru_maxrss: that survives exec and would count the pages of the parent.
    status = Path("/proc/self/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path, help="a .gguf file")
    parser.add_argument("--prompt", type=int, default=128, help="tokens read at once")
    parser.add_argument("--generate", type=int, default=32, help="tokens read one by one")
    parser.add_argument("--batch", type=int, default=1, help="sequences decoded together")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--no-mmap", action="store_true", help="read the file, do not map it")
    parser.add_argument("--serve", action="store_true", help="answer lines of standard input")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    try:
        length = options.prompt + options.generate
        mmap = not options.no_mmap
        model = Llama(options.model, options.threads, length, options.batch, mmap=mmap)
    except PeerMissing as error:
        print(error, file=sys.stderr)
        return 1
    if options.serve:
        print("{}", flush=True)
        for line in sys.stdin:
            print(json.dumps(asdict(model.run(*map(int, line.split())))), flush=True)
        return 0
    model.run(options.prompt, options.generate, options.batch)
    for _ in range(options.repeat):
        run = model.run(options.prompt, options.generate, options.batch)
        if options.json:
            print(json.dumps(asdict(run)))
            continue
        print(
            f"prompt {options.batch * run.prompt / run.prompt_seconds:.1f} tokens/s, "
            f"generation {options.batch * run.generate / run.generate_seconds:.1f} tokens/s, "
            f"peak memory {run.peak_memory_bytes / (1 << 20):.0f} MiB"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
