"""Make the recorded vectors of libraries again, and compare them with those of the repository.

    python -m tests.oracles [NAME ..] [--changed] [--write]

The libraries are too large, or need too much beside them, to be installed for every test run: what
they compute is recorded. Each gets an environment in build/oracles/ that sees the packages of this
one. `--changed` leaves out what was recorded or compared since its inputs and its script changed
last (oracles.json has their digests, and test_oracles.py compares them). `--write` replaces
vectors.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file

from tests.vectors.mx_vectors import ELEMENTS

ROOT = Path(__file__).resolve().parents[1]
DIGESTS = Path(__file__).with_suffix(".json")
CHECKPOINTS = "tests/compiler/checkpoints/vectors"


@dataclass(frozen=True)
class Oracle:
    """`module` writes files that match `outputs`, a glob in `folder`, to the folder it is given.

    `requires` is what pip installs, `inputs` what the files depend on beside the module, and `hub`
    a repository of the Hugging Face hub and what the module reads of it.
    """

    name: str
    module: str
    folder: str
    outputs: str
    requires: tuple[str, ...]
    inputs: tuple[str, ...] = ()
    hub: tuple[str, ...] = ()

    def digest(self) -> str:
        """What identifies the module, its inputs and the versions of libraries."""
        found = hashlib.sha256(" ".join((*self.requires, *self.hub)).encode())
        for path in (f"{self.module.replace('.', '/')}.py", *self.inputs):
            found.update((ROOT / path).read_bytes())
        return found.hexdigest()


ORACLES = (
    Oracle(
        "quark-bits",
        "tests.vectors.quark_vectors",
        "tests/vectors",
        "quark.npz",
        ("amd-quark==0.13",),
        tuple(f"tests/vectors/{name}.npz" for name in ELEMENTS if name != "mxint8"),
    ),
    Oracle(
        "quark-checkpoints",
        f"{CHECKPOINTS}.write_quark".replace("/", "."),
        CHECKPOINTS,
        "quark-*/*",
        ("amd-quark==0.13",),
        (f"{CHECKPOINTS}/tiny_experts.py",),
    ),
    Oracle(
        "modelopt-checkpoints",
        f"{CHECKPOINTS}.write_modelopt".replace("/", "."),
        CHECKPOINTS,
        "modelopt-*/*",
        ("nvidia-modelopt==0.47.0",),
        (f"{CHECKPOINTS}/tiny_experts.py",),
    ),
    Oracle(
        "kimi-k3",
        "tests.models.architectures.kimi_k3_vectors",
        "tests/models/architectures",
        "kimi_k3.npz",
        ("einops==0.8.2",),
        ("tests/models/architectures/kimi_k3.py",),
        ("moonshotai/Kimi-K3", "configuration_kimi_k3.py", "modeling_kimi_linear.py"),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("names", nargs="*", choices=[[], *(each.name for each in ORACLES)])
    parser.add_argument("--changed", action="store_true")
    parser.add_argument("--write", action="store_true")
    arguments = parser.parse_args()
    failed = []
    for oracle in ORACLES:
        if arguments.names and oracle.name not in arguments.names:
            continue
        if arguments.changed and digests().get(oracle.name) == oracle.digest():
            print(f"{oracle.name}: its inputs have not changed")
            continue
        with tempfile.TemporaryDirectory() as folder:
            fault = renewed(oracle, Path(folder), write=arguments.write)
        print(f"{oracle.name}: {fault or 'the same'}", flush=True)
        if fault:
            failed.append(oracle.name)
        else:
            known = {**digests(), oracle.name: oracle.digest()}
            DIGESTS.write_text(json.dumps(known, indent=1, sort_keys=True) + "\n")
    if failed:
        sys.exit(f"not compared, or not the same: {', '.join(failed)}")


def digests() -> dict[str, str]:
    """The digests of the oracles when their vectors were compared last."""
    return dict(json.loads(DIGESTS.read_text()))


def renewed(oracle: Oracle, folder: Path, *, write: bool) -> str | None:
    """Make the vectors in `folder`; why they are not those of the repository, if they are not."""
    python = environment(oracle)
    if python is None:
        return f"pip cannot install {' '.join(oracle.requires)} here"
    arguments: list[Path] = [folder]
    if oracle.hub:
        from huggingface_hub import hf_hub_download

        try:
            [source, *_] = [
                Path(hf_hub_download(oracle.hub[0], each)).parent for each in oracle.hub[1:]
            ]
        except Exception as error:  # of the library, its HTTP client or the system
            return f"{oracle.hub[0]} cannot be downloaded here ({type(error).__name__})"
        arguments.insert(0, source)
    if subprocess.run([python, "-m", oracle.module, *arguments], cwd=ROOT).returncode:
        return f"{oracle.module} failed"
    recorded = ROOT / oracle.folder
    found, wanted = (
        {p.relative_to(top) for p in top.glob(oracle.outputs)} for top in (folder, recorded)
    )
    different = sorted(map(str, found ^ wanted))
    different += [f"{p}" for p in sorted(found & wanted) if not same(folder / p, recorded / p)]
    if write:
        for path in found:
            (recorded / path).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / path, recorded / path)
        return None
    return f"other than recorded: {', '.join(different)}" if different else None


def environment(oracle: Oracle) -> str | None:
    """The Python of an environment with the libraries; None where they cannot be installed."""
    folder = ROOT / "build/oracles" / "+".join(oracle.requires)
    if not (folder / "complete").exists():
        venv.create(folder, clear=True, with_pip=True)
        [packages] = folder.glob("lib/python*/site-packages")
        (packages / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        install = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", *oracle.requires]
        if subprocess.run(install).returncode:
            return None
        (folder / "complete").touch()
    return str(folder / "bin/python")


def same(found: Path, wanted: Path) -> bool:
    """Whether two files hold the same, but for last bits of floats, which a machine may change."""
    first, second = dict(contents(found)), dict(contents(wanted))
    return first.keys() == second.keys() and all(
        np.array_equal(value, second[name])
        or (
            np.asarray(value).dtype.kind == "f"
            and np.allclose(value, second[name], rtol=1e-5, atol=1e-6)
        )
        for name, value in first.items()
    )


def contents(path: Path) -> Iterator[tuple[str, Any]]:
    """The parts of a file by name."""
    if path.suffix == ".npz":
        with np.load(path) as file:
            yield from file.items()
    elif path.suffix == ".safetensors":
        for name, tensor in load_file(path).items():
            narrow = tensor.dtype not in (torch.float32, torch.float64)
            bits = tensor.reshape(-1).view(torch.uint8) if narrow else tensor
            yield f"{name} {tensor.dtype} {list(tensor.shape)}", bits.numpy()
    else:
        yield "text", path.read_text()


if __name__ == "__main__":
    main()
