"""Compile one program, or one for each level of CPU features, into an artifact.

targets -> compile_level for each -> pack_shared once for all -> report_of, level_records
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from mxc.artifact.manifest import MODULE, LevelRecord, TargetRecord, level_name
from mxc.compiler.models.model import BoundModel
from mxc.compiler.packing.levels import archive_name, share
from mxc.compiler.packing.pack import Packed, pack
from mxc.compiler.packing.quantized import Loss
from mxc.compiler.pieces.workers import Workers
from mxc.compiler.programs.imported import ImportedProgram
from mxc.compiler.steps import Compiled, CompileRequest, CompileStep, Progress, Recorder
from mxc.compiler.worker import compile_program
from mxc.errors import TargetError
from mxc.targets.matrix_unit import MatrixUnit
from mxc.targets.target import Target
from mxc.targets.target import target as target_record


@dataclass(frozen=True, kw_only=True)
class LevelProgram:
    """The result of one target; its code is the file `module` of the artifact."""

    target: Target
    module: str
    compiled: Compiled
    steps: tuple[CompileStep, ...]


@dataclass(frozen=True, kw_only=True)
class LevelArchives:
    """Packed archives by file name, and the names of the levels that read each archive."""

    packed: dict[str, Packed]
    readers: dict[str, tuple[str, ...]]

    @property
    def losses(self) -> dict[str, Loss]:
        """Loss of quantized weights, by the key of the elements."""
        return {key: loss for each in self.packed.values() for key, loss in each.losses.items()}


def targets_of(given: str | Sequence[str]) -> dict[str, Target]:
    """Return target records by level name, in the order given.

    Raises TargetError for no target, an unknown or repeated one, and for a GPU among several.
    """
    names = [given] if isinstance(given, str) else list(given)
    if not names:
        raise TargetError("no target was given; `mxc list targets` has them all")
    records: dict[str, Target] = {}
    for name in names:
        each = target_record(name)
        level = level_name(each.name)
        if level in records:
            raise TargetError(f"target {name!r} is given twice; leave one out")
        if len(names) > 1 and each.is_gpu:
            raise TargetError(
                f"{', '.join(names)}: several targets make one artifact of CPU levels, and {name} "
                "is a GPU; compile it by itself"
            )
        records[level] = each
    return records


def unit_of(targets: Iterable[Target]) -> MatrixUnit | None:
    """Return the matrix instructions of the GPU among `targets`; None for CPUs."""
    return next((each.gpu.matrix for each in targets if each.gpu is not None), None)


def compile_level(
    request: CompileRequest, level: str, target: Target, recorder: Recorder, *, several: bool
) -> LevelProgram:
    """Compile for one target. With `several`, the module is in a folder of the level's name."""
    module, dumped, own = MODULE, request.dump_dir, recorder
    if several:
        module, own = f"{level}/{MODULE}", Recorder(_naming(recorder.progress, level))
        (request.module / level).mkdir()
        if dumped is not None:
            dumped = dumped / level
            dumped.mkdir(exist_ok=True)
    asked = replace(request, target=target.name, module=request.module / module, dump_dir=dumped)
    compiled = compile_program(asked, own.saw)
    steps = tuple(own.done) if several else ()
    return LevelProgram(target=target, module=module, compiled=compiled, steps=steps)


def _naming(progress: Progress, level: str) -> Progress:
    """Return a Progress that adds the name of the level to the name of each step."""
    return Progress(
        step=lambda step: progress.step(replace(step, name=f"{step.name}, {level}")),
        packed=progress.packed,
    )


def pack_shared(
    model: BoundModel | ImportedProgram,
    programs: Mapping[str, LevelProgram],
    folder: Path,
    output: Path,
    allow_nan_scales: bool,
    workers: Workers | None,
    recorder: Recorder,
) -> LevelArchives:
    """Pack the weights into `folder`; levels that read a weight in the same layout share it.

    `output` is the path that `folder` will be renamed to.
    """
    plans = {
        level: model.pack_items(each.compiled.panels, each.compiled.matrices)
        for level, each in programs.items()
    }
    found = share(plans)
    shared = {archive_name(levels, tuple(programs)): levels for levels in found}
    with recorder.step("packing"):
        packed = pack(
            {name: found[levels] for name, levels in shared.items()},
            folder,
            output,
            allow_nan_scales=allow_nan_scales,
            workers=workers,
            progress=recorder.progress.packed,
        )
    return LevelArchives(packed=packed, readers=shared)


def report_of(
    programs: Mapping[str, LevelProgram], archives: LevelArchives | None, recorder: Recorder
) -> dict[str, Any]:
    """Return the content of report.json: one report, or one for each level with the sizes of the
    archives.
    """
    steps = [asdict(step) for step in recorder.done]
    if len(programs) == 1:
        (only,) = programs.values()
        return {**only.compiled.report, "steps": steps}
    levels = {
        level: {**each.compiled.report, "steps": [asdict(step) for step in each.steps]}
        for level, each in programs.items()
    }
    listed = [
        {"name": name, "bytes": archives.packed[name].file.bytes, "levels": list(readers)}
        for name, readers in (archives.readers if archives else {}).items()
        if archives is not None
    ]
    return {"levels": levels, "archives": listed, "steps": steps}


def target_of(program: LevelProgram) -> TargetRecord:
    """Return the manifest's record of one target, with the chip and features found for it."""
    return TargetRecord(
        name=program.target.name,
        device=program.target.device,
        architecture=program.target.architecture,
        chip=program.compiled.chip,
        features=program.compiled.features,
    )


def common_target(targets: Sequence[TargetRecord]) -> TargetRecord:
    """Return the record of one target; for several, their names and the features common to all."""
    first = targets[0]
    return TargetRecord(
        name=", ".join(each.name for each in targets),
        device=first.device,
        architecture=", ".join(dict.fromkeys(each.architecture for each in targets)),
        chip=", ".join(each.chip for each in targets),
        features=tuple(f for f in first.features if all(f in each.features for each in targets)),
    )


def level_records(
    model: BoundModel | ImportedProgram | None,
    programs: Mapping[str, LevelProgram],
    archives: LevelArchives | None,
) -> dict[str, LevelRecord]:
    """Return the record of each level: its files, and the layouts that differ from the first's."""
    weights = [
        {} if model is None else model.weights(each.compiled.panels) for each in programs.values()
    ]
    readers = archives.readers if archives else {}
    return {
        level: LevelRecord(
            target=target_of(each),
            module=each.module,
            archives=tuple(name for name, levels in readers.items() if level in levels),
            layouts={
                name: (one.layout, one.scale_layout)
                for name, one in own.items()
                if one != weights[0][name]
            },
        )
        for (level, each), own in zip(programs.items(), weights, strict=True)
    }
