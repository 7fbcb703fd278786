"""The stages of each target: tuples of passes, each with the invariant that holds after it."""

from __future__ import annotations

from mxc.compiler import iree
from mxc.errors import TargetError
from mxc.passes.base import Pass, Pipeline, Stage
from mxc.passes.check_dispatches import CheckDispatches
from mxc.passes.choose_gpu_schedule import ChooseGpuSchedule
from mxc.passes.decode_elements import DecodeElements
from mxc.passes.drop_aliases import DropAliases
from mxc.passes.expand_fnuz import ExpandFnuz
from mxc.passes.expand_math import ExpandMath
from mxc.passes.form_contraction_dispatches import FormContractionDispatches
from mxc.passes.group_experts import GroupExperts
from mxc.passes.kernels.cpu.isa import best_isa
from mxc.passes.lower_dequantize_to_gpu_kernels import LowerDequantizeToGpuKernels
from mxc.passes.lower_named_operations_to_cpu_kernels import LowerNamedOperationsToCpuKernels
from mxc.passes.lower_named_operations_to_gpu_kernels import LowerNamedOperationsToGpuKernels
from mxc.passes.lower_plain_products import LowerPlainProducts
from mxc.passes.lower_quantize_to_cpu_kernels import LowerQuantizeToCpuKernels
from mxc.passes.lower_quantize_to_gpu_kernels import LowerQuantizeToGpuKernels
from mxc.passes.lower_sorts import LowerSorts
from mxc.passes.lower_to_cpu_kernels import LowerToCpuKernels
from mxc.passes.lower_to_gpu_kernels import LowerToGpuKernels
from mxc.passes.normalize import NORMALIZE
from mxc.passes.propagate_nan import PropagateNan
from mxc.passes.read_whole_tensors import ReadWholeTensors
from mxc.passes.round_to_bf16 import RoundToBf16
from mxc.passes.round_to_elements import RoundToElements
from mxc.passes.set_cpu_schedule import SetCpuSchedule
from mxc.passes.set_gpu_schedule import SetGpuSchedule
from mxc.passes.set_row_schedule import SetRowSchedule
from mxc.passes.split_kernels import SplitKernels
from mxc.passes.verify_packed_weights import VerifyPackedWeights
from mxc.passes.verify_transients import VerifyTransients
from mxc.targets.target import Target
from mxc.targets.target import target as target_record

_NORMALIZE = Stage(
    name="normalize",
    invariant="Every scaled contraction is canonical; no tensor holds a broadcast scale or a "
    "dequantized weight.",
    passes=NORMALIZE,
)

_FORM_DISPATCHES = Stage(
    name="form-dispatches",
    invariant="Each scaled contraction, the gathers that feed it and its elementwise epilogue are "
    "one dispatch.",
    passes=(FormContractionDispatches(),),
)

_VERIFY_WEIGHTS = Stage(
    name="verify-weights",
    invariant="No dispatch reads or writes a dequantized weight or a broadcast scale, or it is "
    "marked and reported.",
    passes=(VerifyPackedWeights(strict=False),),
    phase="flow",
)

_ROW_SCHEDULES = Stage(
    name="row-schedules",
    invariant="A dispatch that reduces rows of a dynamic number takes one at a time.",
    passes=(SetRowSchedule(),),
    phase="flow",
)

_LOOKUPS = Stage(
    name="lookups",
    invariant="No element is looked up in a part of a buffer.",
    passes=(ReadWholeTensors(),),
    phase="flow",
)

_ALIASES = Stage(
    name="aliases",
    invariant="A result takes the memory of an argument only where nothing reads that later.",
    passes=(DropAliases(),),
    phase="flow",
)

_SPLIT_KERNELS = Stage(
    name="split-kernels",
    invariant="No kernel of ours is a switch on its workload: the host program chooses.",
    passes=(SplitKernels(),),
    phase="executable-sources",
)

_CHECK_DISPATCHES = Stage(
    name="check-dispatches",
    invariant="No kernel takes more arguments than IREE's runtime passes.",
    passes=(CheckDispatches(),),
    phase="executable-sources",
)

_VERIFY_TRANSIENTS = Stage(
    name="verify-transients",
    invariant="Nothing is prepared at load and no weight is copied, or it is marked and reported.",
    passes=(VerifyTransients(strict=False),),
    phase="stream",
)


def pipeline(target: str, *, schedules: str = "") -> Pipeline:
    """Return the pipeline for the target of this name. `schedules` is the path of a schedule file.

    Raises TargetError if the name is unknown, or if the target takes no schedules.
    """
    record = iree.resolve(target_record(target))
    before = (_NORMALIZE, _kernels(record, schedules), _FORM_DISPATCHES, _lower(record))
    after = _SPLIT_KERNELS if record.is_gpu else _ROW_SCHEDULES
    verify = (_VERIFY_WEIGHTS, _VERIFY_TRANSIENTS)
    last = (_LOOKUPS, _ALIASES, after, _CHECK_DISPATCHES)
    return Pipeline(record.name, (*before, *verify, *last))


#: Number of f32 lanes of the widest registers with multiply-add, by the CPU feature they need.
_F32_LANES = ((16, "avx512bw"), (8, "fma"), (4, "neon"))


def _kernels(target: Target, schedules: str) -> Stage:
    found: list[Pass] = []
    lanes = [n for n, feature in _F32_LANES if target.has_any((feature,))]
    isa = best_isa(target)
    if lanes:
        tiles = isa == "amx-bf16"
        found.append(LowerNamedOperationsToCpuKernels(lanes=lanes[0], tiles=tiles))
    gpu = target.gpu
    if schedules and gpu is None and isa is None:
        raise TargetError(
            f"--schedule {schedules}: no kernel for {target.name} takes a schedule; leave it out"
        )
    if gpu is not None:
        # Contractions that quantize their own operand come before the passes for quantization.
        found += [
            GroupExperts(target=target.name),
            ChooseGpuSchedule(file=schedules, target=target.name),
            LowerToGpuKernels(target=target.name),
        ]
        # Before dequantization: a quantization that reads blocks needs no dequantized copy of them.
        found.append(LowerQuantizeToGpuKernels(target=target.name))
        if gpu.matrix.converts:
            found.append(LowerDequantizeToGpuKernels())
        found.append(LowerNamedOperationsToGpuKernels(target=target.name))
        found.append(LowerPlainProducts(target=target.name))
    if isa is not None:
        found += [LowerToCpuKernels(isa=isa, file=schedules), LowerQuantizeToCpuKernels(isa=isa)]
    found.append(LowerSorts(wave=gpu.matrix.lanes if gpu else 0))
    return Stage(
        name="kernels",
        invariant="Each contraction that a kernel of ours computes on this target, attention over "
        "a cache among them, is a dispatch of it, and parameters have the layout that it reads; "
        "the others go on below.",
        passes=tuple(found),
    )


def _lower(target: Target) -> Stage:
    passes: tuple[Pass, ...] = (
        ExpandMath(fma=best_isa(target) not in (None, "portable")),
        RoundToElements(),
        SetCpuSchedule(),
        RoundToBf16(),
        DecodeElements(),
    )
    if target.gpu is not None:
        selected = [each.m for each in target.scaled_instructions if each.selected]
        matrix_rows = min(selected, default=0)
        schedule = SetGpuSchedule(
            # Without scaled matrix instructions IREE decodes with integer operations, whose
            # registers leave room for fewer rows.
            rows=8 if matrix_rows else 2,
            subgroup=target.gpu.unit.wave,
            matrix_rows=matrix_rows,
            f8=target.gpu.extends_f8,
        )
        rounding = RoundToElements(gpu=True, scales=target.gpu.matrix.converts)
        passes = (PropagateNan(), rounding, schedule, ExpandFnuz())
    return Stage(
        name="lower",
        invariant="Each scaled contraction carries the schedule that its code generator needs, and "
        "no function, maximum, minimum or rounding is left that it computes wrongly.",
        passes=passes,
    )
