"""Fuzz checkpoint headers: each damaged file must be read or refused fast, in little memory.

    python benchmarks/fuzz_headers.py [--inputs 1000000] [--seconds 600] [--seed 0] [--commands]

Valid files are truncated, overwritten, spliced and given wrong numbers. The script counts outcomes
and prints the longest time and the most memory. Anything but a result or a CheckpointError ends the
run and keeps the input.

With --commands the inputs are whole command lines (hostile_cases.py): damaged artifacts, reports,
tokenizers, chat templates, arrays, options and programs. The script prints how a command mishandles
an input; the exit status is then 1.
"""

import argparse
import json
import random
import struct
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path

from mxc.compiler.checkpoints.dialects import open_checkpoint
from mxc.compiler.inspect.statistics import statistics
from mxc.errors import CheckpointError

#: Numbers at the limits of header fields and of what readers accept.
EDGES = (
    0, 0, 1, 7, 31, 32, 33, 127, 128, 255, 256, 65535, 1 << 31, (1 << 32) - 1, 1 << 32, 1 << 40,
    (1 << 62) - 1, 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1,
)  # fmt: skip

TYPES = (0, 1, 2, 8, 9, 12, 30, 39, 40, 777)


def text(raw: bytes) -> bytes:
    return struct.pack("<Q", len(raw)) + raw


def gguf(rng: random.Random) -> bytes:
    """Return a small GGUF file: some values, an array of strings, one of floats, two tensors."""
    values = [
        text(b"general.architecture") + struct.pack("<I", 8) + text(rng.choice(ARCHITECTURES)),
        text(b"general.alignment") + struct.pack("<II", 4, 32),
        text(b"tokens") + struct.pack("<IIQ", 9, 8, 3) + text(b"a") + text(b"bc") + text(b""),
        text(b"scores") + struct.pack("<IIQ", 9, 6, 4) + bytes(16),
        text(b"llama.attention.head_count") + struct.pack("<II", 4, 2),
    ]
    names = rng.sample(NAMES, 2)
    infos = [
        text(names[0]) + struct.pack("<IQQIQ", 2, 64, 4, 39, 0),
        text(names[1]) + struct.pack("<IQQIQ", 2, 32, 4, 0, 160),
    ]
    head = b"GGUF" + struct.pack("<IQQ", 3, len(infos), len(values)) + b"".join(values + infos)
    return head + bytes(-len(head) % 32 + 160 + 512)


ARCHITECTURES = (b"llama", b"qwen3moe", b"gpt-oss", b"other")
NAMES = (
    b"blk.0.attn_q.weight", b"blk.0.ffn_gate_exps.weight", b"blk.0.ffn_up_exps.weight",
    b"token_embd.weight", b"blk.0.attn_q.scale", b"blk.0.attn_k.bias",
)  # fmt: skip


def safetensors(rng: random.Random) -> bytes:
    """Return a small safetensors file in one of the dialects that need no config."""
    kind = rng.randrange(3)
    entries = {
        "model.layers.0.mlp.experts.down_proj_blocks": ("U8", [2, 4, 1, 16], 128),
        "model.layers.0.mlp.experts.down_proj_scales": ("U8", [2, 4, 1], 8),
        "model.norm.weight": ("BF16", [4], 8),
    }
    header: dict[str, object] = {}
    if kind == 1:
        entries = {"a._weight_qdata": ("U8", [4, 16], 64), "a._weight_scale": ("F8_E8M0", [4], 4)}
        attributes = {"elem_dtype": {"_type": "torch.dtype", "_data": "float4_e2m1fn_x2"},
                      "block_size": 32, "is_swizzled_scales": False}  # fmt: skip
        header["__metadata__"] = {
            "tensor_names": '["a.weight"]',
            "a.weight": json.dumps({"_type": "MXTensor", "_data": attributes}),
        }
    end = 0
    for name, (dtype, shape, size) in entries.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    raw = json.dumps(header).encode()
    return text(raw) + bytes(end)


def damaged(whole: bytes, rng: random.Random) -> bytes:
    """Return the file with one to four random changes."""
    data = bytearray(whole)
    for _ in range(rng.randint(1, 4)):
        if not data:
            break
        at = rng.randrange(len(data))
        what = rng.randrange(9)
        if what == 0:
            del data[at:]
        elif what == 1:
            data[at] = rng.randrange(256)
        elif what == 2:
            data[at] ^= 1 << rng.randrange(8)
        elif what == 3:
            data[at : at + 8] = struct.pack("<Q", rng.choice(EDGES))
        elif what == 4:
            data[at : at + 4] = struct.pack("<I", rng.choice((*TYPES, *EDGES[:13])))
        elif what == 5:
            size = rng.randint(1, 40)
            data[at:at] = data[at : at + size] * rng.randint(1, 3)
        elif what == 6:
            other = rng.randrange(len(data))
            data[at : at + 8] = data[other : other + 8]
        elif what == 7:
            digits = str(rng.choice(EDGES)).encode()
            number = data.find(b"0", at)
            data[number : number + 1] = digits if number >= 0 else b""
        else:
            del data[at : at + rng.randint(1, 16)]
    return bytes(data)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", action="store_true")
    chosen = parser.parse_args(arguments)
    if chosen.commands:
        sys.exit(run_commands(chosen.inputs, chosen.seconds, chosen.seed))
    rng = random.Random(chosen.seed)
    found: Counter[str] = Counter()
    slowest = largest = 0.0
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        done = 0
        while done < chosen.inputs and time.perf_counter() - start < chosen.seconds:
            kind = rng.choice(("gguf", "safetensors"))
            data = damaged(gguf(rng) if kind == "gguf" else safetensors(rng), rng)
            path = Path(folder) / f"a.{kind}"
            path.write_bytes(data)
            # Tracing costs more than reading, so memory is measured for one input of 64.
            traced = done % 64 == 0
            if traced:
                tracemalloc.start()
            begin = time.perf_counter()
            try:
                source = open_checkpoint(path)
                for tensor in source.tensors.values():
                    statistics(tensor)
                found[f"{kind}: read"] += 1
            except CheckpointError:
                found[f"{kind}: refused"] += 1
            except BaseException:
                Path(f"fuzz-{kind}-{done}.{kind}").write_bytes(data)
                print(f"input {done} is in fuzz-{kind}-{done}.{kind}", file=sys.stderr)
                raise
            slowest = max(slowest, time.perf_counter() - begin)
            if traced:
                largest = max(largest, tracemalloc.get_traced_memory()[1])
                tracemalloc.stop()
            done += 1
    for what, count in sorted(found.items()):
        print(f"{what:24} {count:>10,}")
    seconds = time.perf_counter() - start
    print(f"{done:,} inputs in {seconds:.0f} s; slowest {slowest:.3f} s, most memory seen "
          f"{largest / 2**10:.0f} KiB")  # fmt: skip


def run_commands(inputs: int, seconds: float, seed: int) -> int:
    """Run hostile command lines, print their faults, and return the exit status."""
    sys.path.append(str(Path(__file__).resolve().parents[1]))
    from hostile_cases import Runner, cases

    from tests.conftest import make_plain, make_toy

    faults = 0
    done: Counter[str] = Counter()
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        folder = Path(name)
        bases = {"plain": make_plain(folder / "plain.mxc"), "toy": make_toy(folder / "toy.mxc")}
        (folder / "run").mkdir()
        runner = Runner(folder / "run", bases)
        for case in cases(bases, seed):
            if done.total() == inputs or time.perf_counter() - start > seconds:
                break
            wrong = runner.wrong(case)
            done[case.kind] += 1
            faults += bool(wrong)
            for each in wrong:
                print(f"input {done.total()}, {case.name}: {each}")
    for what, count in sorted(done.items()):
        print(f"{what:24} {count:>10,}")
    exits = ", ".join(f"{count} with status {status}" for status, count in runner.exits.items())
    spent = time.perf_counter() - start
    print(f"{done.total():,} command lines in {spent:.0f} s: {exits}; {faults} faults")
    return 1 if faults else 0


def memory() -> Path | None:
    """Return /dev/shm, a folder in memory; None if there is none."""
    shared = Path("/dev/shm")
    return shared if shared.is_dir() else None


if __name__ == "__main__":
    main(sys.argv[1:])
