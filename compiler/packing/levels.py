"""Assignment of weights to archives in an artifact with several levels of CPU features.

A weight that two levels read in the same layout is packed once. There is one archive for each set
of levels that shares weights: usually one for all levels, and one for each group of levels that
reads some weights in a layout of its own. A level maps every archive whose name includes it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mxc.artifact.manifest import ARCHIVE, WEIGHTS
from mxc.compiler.packing.items import PackItem

Levels = tuple[str, ...]


def share(plans: Mapping[str, Sequence[PackItem]]) -> dict[Levels, list[PackItem]]:
    """Return the items of each archive, by the levels that read it; `plans` is by level.

    Each level finds every key of its plan, in its layout, in exactly one of its archives.
    """
    readers: dict[tuple[object, ...], tuple[PackItem, list[str]]] = {}
    for level, items in plans.items():
        for item in items:
            layout = item.key, item.full_layout, item.panels and item.matrix
            readers.setdefault(layout, (item, []))[1].append(level)
    archives: dict[Levels, list[PackItem]] = {}
    for item, levels in readers.values():
        archives.setdefault(tuple(levels), []).append(item)
    return archives


def archive_name(levels: Levels, every: Levels) -> str:
    """Return the file name of the archive that `levels`, out of `every` level, share."""
    return WEIGHTS if levels == every else f"weights-{'+'.join(levels)}{ARCHIVE}"
