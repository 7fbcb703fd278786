"""Measure packing: MB/s and peak resident memory of a fresh process, for a checkpoint of any size.

    python benchmarks/pack.py [--gib 1] [--quantize-dense mxfp8|mxint8] [--folder DIR] [--json]

Writes a random checkpoint with the layers of gpt-oss-20b (about 0.4 GiB each) into DIR, packs it
in a separate process, and removes both. The file system cache is warm, as after a download. The
exit status is 1 if the peak memory is 1 GiB or more.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from mxc.compiler.checkpoints.synthetic.gpt_oss import GPT_OSS_20B, write_gpt_oss

#: Limit of the peak memory of packing in bytes, for a checkpoint of any size.
LIMIT = 1 << 30

#: Bytes of a layer: experts in mxfp4 (17 bytes for a block of 32), then q, k, v and o in bf16.
LAYER_BYTES = 32 * (5760 + 2880) * 90 * 17 + 2 * 2880 * 64 * (64 + 8 + 8 + 64)

PACK = """
import json, sys, time
from pathlib import Path
from mxc.compiler.models.model import open_model
from mxc.compiler.packing.pack import pack
start = time.perf_counter()
model = open_model(Path(sys.argv[1]), quantize_dense=sys.argv[3] or None)
path = Path(sys.argv[2])
packed = pack({path.name: model.pack_items({})}, path.parent, path)[path.name]
seconds = time.perf_counter() - start
# Not ru_maxrss: that survives exec and would count the pages of the parent.
status = Path("/proc/self/status").read_text()
peak = next(line for line in status.splitlines() if line.startswith("VmHWM:"))
print(json.dumps({
    "bytes": packed.file.bytes,
    "seconds": seconds,
    "mb_per_second": packed.file.bytes / seconds / 1e6,
    "peak_memory_bytes": int(peak.split()[1]) * 1024,
}))
"""


def measure(folder: Path, gib: float, dense: str) -> dict[str, float]:
    layers = max(1, round(gib * (1 << 30) / LAYER_BYTES))
    options = replace(GPT_OSS_20B, num_hidden_layers=layers, vocab_size=8193)
    start = time.perf_counter()
    write_gpt_oss(folder / "checkpoint", options, shards=2 * layers, tokenizer=False)
    print(f"{layers} layers written in {time.perf_counter() - start:.1f} s", file=sys.stderr)
    run = subprocess.run(
        [sys.executable, "-c", PACK, folder / "checkpoint", folder / "weights.irpa", dense],
        check=True,
        capture_output=True,
        text=True,
    )
    result: dict[str, float] = json.loads(run.stdout)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gib", type=float, default=1.0, help="size of the checkpoint")
    parser.add_argument("--quantize-dense", default="", help="mxfp8 or mxint8 (default: bf16)")
    parser.add_argument("--folder", type=Path, help="where to write (default: temporary)")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        result = measure(Path(folder), arguments.gib, arguments.quantize_dense)
    if arguments.json:
        print(json.dumps(result))
    else:
        print(
            f"{result['bytes'] / (1 << 30):.2f} GiB in {result['seconds']:.2f} s: "
            f"{result['mb_per_second']:.0f} MB/s, "
            f"peak memory {result['peak_memory_bytes'] / (1 << 20):.0f} MiB"
        )
    return int(result["peak_memory_bytes"] >= LIMIT)


if __name__ == "__main__":
    sys.exit(main())
