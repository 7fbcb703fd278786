"""Choice of the level (set of CPU features) of an artifact that runs on this machine.

An artifact holds the program for one target, or for several levels of CPU features. An instruction
that the CPU lacks would end the process, and so would an AMX tile without the kernel's permission;
choosing a level with tiles requests that permission. Imports no IREE, because `mxc inspect` uses
this module too.
"""

from __future__ import annotations

from mxc.artifact.manifest import Manifest
from mxc.errors import ArtifactError, RequestError
from mxc.runtime.machine import obstacle, relevant
from mxc.targets.tile_permission import TILES

#: The drivers of IREE that run CPU code on this machine's own threads.
CPU_DRIVERS = ("local-task", "local-sync")

_CURE = "compile the model with --target cpu on this machine"


def choose_level(manifest: Manifest, wanted: str | None, place: str) -> str:
    """Return the name of the level to run: `wanted`, or the best that may run here.

    The best level is the first whose features are not a proper subset of those of another level
    that may run here. Levels for a GPU are not checked. Raises RequestError for a level that the
    artifact does not have, and ArtifactError, which names `place`, the missing features and the
    remedy, where no level, or not `wanted`, may run.
    """
    levels = manifest.every_level
    if wanted is not None and wanted not in levels:
        raise RequestError(f"{place}: no level {wanted!r}; it has: {', '.join(levels)}")
    if manifest.target.device not in CPU_DRIVERS:
        return next(iter(levels))
    reasons = obstacles(manifest)
    if wanted is not None:
        reasons = {wanted: reasons[wanted]}
    fit = {name: relevant(levels[name].target.features) for name in reasons if not reasons[name]}
    if not fit:
        raise ArtifactError(f"{place}: {_refusal(reasons, len(levels))}")
    return next(name for name in fit if not any(fit[name] < other for other in fit.values()))


def obstacles(manifest: Manifest) -> dict[str, str | None]:
    """Return for each level of a CPU artifact why it must not run here, or None."""
    return {
        name: obstacle(level.target.architecture, level.target.features)
        for name, level in manifest.every_level.items()
    }


def passed_over(manifest: Manifest, taken: str) -> str | None:
    """Return why levels with AMX tiles cannot run here, as clauses, where `taken` runs instead.

    None where there is no such level. Levels without tiles are not reported: there may be many, and
    their speeds differ little.
    """
    every = manifest.every_level
    with_tiles = [name for name in every if TILES in every[name].target.features and name != taken]
    reasons = obstacles(manifest) if with_tiles else {}
    found = [f"{name} {reasons[name]}" for name in with_tiles if reasons[name] is not None]
    return "; ".join(found) or None


def _refusal(reasons: dict[str, str | None], levels: int) -> str:
    if levels == 1:
        return f"the code {next(iter(reasons.values()))}; {_CURE}"
    listed = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
    if len(reasons) == 1:
        return f"level {listed}; leave --level out, or {_CURE}"
    return f"none of its levels may run here: {listed}; {_CURE}"
