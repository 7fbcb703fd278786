"""One plan packed to one archive."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from mxc.compiler.packing.items import PackItem
from mxc.compiler.packing.pack import Packed, pack


def packed_file(plan: Sequence[PackItem], path: Path, **options: Any) -> Packed:
    return pack({path.name: plan}, path.parent, path, **options)[path.name]
