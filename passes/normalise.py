"""*normalise*: every scaled contraction is canonical, nothing is dequantised or broadcast."""

from mxc.passes.base import Pass
from mxc.passes.canonical_operands import CanonicalOperands
from mxc.passes.check_contractions import CheckContractions
from mxc.passes.check_operations import CheckOperations
from mxc.passes.expand_blocks import ExpandBlocks
from mxc.passes.expand_vectors import ExpandVectors
from mxc.passes.fold_scale_broadcast import FoldScaleBroadcast
from mxc.passes.fuse_dequantize import FuseDequantize
from mxc.passes.gather_packed import GatherPacked
from mxc.passes.unpack_before_gather import UnpackBeforeGather

NORMALISE: tuple[Pass | str, ...] = (
    CheckOperations(),
    # Arithmetic on whole tensors becomes generic operations, as what follows reads it.
    "convert-elementwise-to-linalg",
    FoldScaleBroadcast(),
    GatherPacked(),
    UnpackBeforeGather(),
    FuseDequantize(),
    ExpandBlocks(),
    ExpandVectors(),
    CanonicalOperands(),
    # Sizes of results become those of what they are computed from.
    "resolve-ranked-shaped-type-result-dims",
    # A reshape of what a frontend had reshaped the other way cancels.
    "canonicalize",
    CheckContractions(),
)
