"""One plan packed to one archive, and which tensors it has of a checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.pack import Packed, pack


def packed_file(plan: Sequence[PackItem], path: Path, **options: Any) -> Packed:
    return pack({path.name: plan}, path.parent, path, **options)[path.name]


def with_one_qkv(tensors: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
    """The tensors of a checkpoint, but queries, keys and values below one another, as programs read
    them: qkv_proj."""
    found = dict(tensors)
    for name in (name for name in tensors if ".q_proj." in name):
        parts = [found.pop(name.replace("q_proj", f"{part}_proj")) for part in "qkv"]
        found[name.replace("q_proj", "qkv_proj")] = np.concatenate(parts)
    return found
