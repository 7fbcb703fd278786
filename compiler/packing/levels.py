"""Which archive holds which weights, where an artifact has several levels of CPU features.

A weight that two levels read in one layout is packed once. The archives are therefore not those of
the levels but of what they share: one for all levels, and one for each group of levels that reads
some weights alike and unlike the others. A level maps every archive that has its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mxc.artifact.manifest import ARCHIVE, WEIGHTS
from mxc.compiler.packing.items import PackItem

Levels = tuple[str, ...]


def share(plans: Mapping[str, Sequence[PackItem]]) -> dict[Levels, list[PackItem]]:
    """The items of each archive, by the levels that read it; `plans` by level.

    Each level finds every key of its plan, in its layout, in exactly one of its archives.
    """
    readers: dict[tuple[str, str], tuple[PackItem, list[str]]] = {}
    for level, items in plans.items():
        for item in items:
            readers.setdefault((item.key, item.full_layout), (item, []))[1].append(level)
    archives: dict[Levels, list[PackItem]] = {}
    for item, levels in readers.values():
        archives.setdefault(tuple(levels), []).append(item)
    return archives


def archive_name(levels: Levels, every: Levels) -> str:
    """The file of the weights that `levels` share, of `every` level of the artifact."""
    return WEIGHTS if levels == every else f"weights-{'+'.join(levels)}{ARCHIVE}"
