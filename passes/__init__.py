"""The rewrites, as a library: docs/passes.md. PASSES lists all passes in alphabetical order."""

from mxc.passes.base import Pass, Pipeline, Stage, Timing, run
from mxc.passes.canonical_accumulators import CanonicalAccumulators
from mxc.passes.canonical_operands import CanonicalOperands
from mxc.passes.check_contractions import CheckContractions
from mxc.passes.check_dispatches import CheckDispatches
from mxc.passes.check_operations import CheckOperations
from mxc.passes.choose_gpu_schedule import ChooseGpuSchedule
from mxc.passes.decode_elements import DecodeElements
from mxc.passes.drop_aliases import DropAliases
from mxc.passes.expand_blocks import ExpandBlocks
from mxc.passes.expand_fnuz import ExpandFnuz
from mxc.passes.expand_math import ExpandMath
from mxc.passes.expand_vectors import ExpandVectors
from mxc.passes.float_scales import FloatScales
from mxc.passes.fold_scale_broadcast import FoldScaleBroadcast
from mxc.passes.form_contraction_dispatches import FormContractionDispatches
from mxc.passes.fuse_dequantize import FuseDequantize
from mxc.passes.fuse_epilogues import FuseEpilogues
from mxc.passes.gather_packed import GatherPacked
from mxc.passes.group_experts import GroupExperts
from mxc.passes.hoist_scales import HoistScales
from mxc.passes.lower_dequantize_to_gpu_kernels import LowerDequantizeToGpuKernels
from mxc.passes.lower_named_operations_to_cpu_kernels import LowerNamedOperationsToCpuKernels
from mxc.passes.lower_named_operations_to_gpu_kernels import LowerNamedOperationsToGpuKernels
from mxc.passes.lower_plain_products import LowerPlainProducts
from mxc.passes.lower_quantize_to_cpu_kernels import LowerQuantizeToCpuKernels
from mxc.passes.lower_quantize_to_gpu_kernels import LowerQuantizeToGpuKernels
from mxc.passes.lower_sorts import LowerSorts
from mxc.passes.lower_to_cpu_kernels import LowerToCpuKernels
from mxc.passes.lower_to_gpu_kernels import LowerToGpuKernels
from mxc.passes.merge_loops import MergeLoops
from mxc.passes.propagate_nan import PropagateNan
from mxc.passes.raise_attention import RaiseAttention
from mxc.passes.raise_dequantize import RaiseDequantize
from mxc.passes.raise_experts import RaiseExperts
from mxc.passes.read_whole_tensors import ReadWholeTensors
from mxc.passes.round_constants import RoundConstants
from mxc.passes.round_to_bf16 import RoundToBf16
from mxc.passes.round_to_elements import RoundToElements
from mxc.passes.set_cpu_schedule import SetCpuSchedule
from mxc.passes.set_gpu_schedule import SetGpuSchedule
from mxc.passes.set_row_schedule import SetRowSchedule
from mxc.passes.slice_windows import SliceWindows
from mxc.passes.spec import parse, register
from mxc.passes.split_kernels import SplitKernels
from mxc.passes.unit_scales import UnitScales
from mxc.passes.unpack_before_gather import UnpackBeforeGather
from mxc.passes.verify_packed_weights import VerifyPackedWeights
from mxc.passes.verify_transients import VerifyTransients
from mxc.passes.widen_sums import WidenSums

__all__ = ["PASSES", "Pass", "Pipeline", "Stage", "Timing", "parse", "register", "run"]

PASSES: tuple[type[Pass], ...] = (
    CanonicalAccumulators,
    CanonicalOperands,
    CheckContractions,
    CheckDispatches,
    CheckOperations,
    ChooseGpuSchedule,
    DecodeElements,
    DropAliases,
    ExpandBlocks,
    ExpandFnuz,
    ExpandMath,
    ExpandVectors,
    FloatScales,
    FoldScaleBroadcast,
    FormContractionDispatches,
    FuseDequantize,
    FuseEpilogues,
    GatherPacked,
    GroupExperts,
    HoistScales,
    LowerDequantizeToGpuKernels,
    LowerNamedOperationsToCpuKernels,
    LowerNamedOperationsToGpuKernels,
    LowerPlainProducts,
    LowerQuantizeToCpuKernels,
    LowerQuantizeToGpuKernels,
    LowerSorts,
    LowerToCpuKernels,
    LowerToGpuKernels,
    MergeLoops,
    PropagateNan,
    RaiseAttention,
    RaiseDequantize,
    RaiseExperts,
    ReadWholeTensors,
    RoundConstants,
    RoundToBf16,
    RoundToElements,
    SetCpuSchedule,
    SetGpuSchedule,
    SetRowSchedule,
    SliceWindows,
    SplitKernels,
    UnitScales,
    UnpackBeforeGather,
    VerifyPackedWeights,
    VerifyTransients,
    WidenSums,
)
