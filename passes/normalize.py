"""The stage *normalize*: contractions become canonical, and nothing is dequantized or broadcast."""

from mxc.passes.base import Pass
from mxc.passes.canonical_accumulators import CanonicalAccumulators
from mxc.passes.canonical_operands import CanonicalOperands
from mxc.passes.check_contractions import CheckContractions
from mxc.passes.check_operations import CheckOperations
from mxc.passes.expand_blocks import ExpandBlocks
from mxc.passes.expand_vectors import ExpandVectors
from mxc.passes.float_scales import FloatScales
from mxc.passes.fold_scale_broadcast import FoldScaleBroadcast
from mxc.passes.fuse_dequantize import FuseDequantize
from mxc.passes.fuse_epilogues import FuseEpilogues
from mxc.passes.gather_packed import GatherPacked
from mxc.passes.hoist_scales import HoistScales
from mxc.passes.merge_loops import MergeLoops
from mxc.passes.raise_attention import RaiseAttention
from mxc.passes.raise_dequantize import RaiseDequantize
from mxc.passes.raise_experts import RaiseExperts
from mxc.passes.round_constants import RoundConstants
from mxc.passes.slice_windows import SliceWindows
from mxc.passes.unit_scales import UnitScales
from mxc.passes.unpack_before_gather import UnpackBeforeGather
from mxc.passes.widen_sums import WidenSums

NORMALIZE: tuple[Pass | str, ...] = (
    CheckOperations(),
    SliceWindows(),
    RoundConstants(),
    # Arithmetic on whole tensors becomes generic operations, which later passes read.
    "convert-elementwise-to-linalg",
    RaiseAttention(),
    WidenSums(),
    RaiseDequantize(),
    RaiseExperts(),
    FoldScaleBroadcast(),
    GatherPacked(),
    UnpackBeforeGather(),
    FuseDequantize(),
    # Move scales out of sums that start from zero.
    CanonicalAccumulators(),
    HoistScales(),
    FloatScales(),
    UnitScales(),
    ExpandBlocks(),
    MergeLoops(),
    ExpandVectors(),
    CanonicalOperands(),
    CanonicalAccumulators(),
    FuseEpilogues(),
    # Sizes of results become sizes of the operands that they come from.
    "resolve-ranked-shaped-type-result-dims",
    # Cancel reshapes that undo reshapes of the frontend.
    "canonicalize",
    CheckContractions(),
)
