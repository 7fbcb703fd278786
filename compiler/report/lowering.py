"""The instruction that each contraction was lowered to, and why a better one was not used.

Facts about machines come from the record of the target.
"""

from __future__ import annotations

from collections.abc import Sequence

from mxc.compiler.report.assembly import KernelCode
from mxc.compiler.report.preparation import Preparation
from mxc.dialects.contraction import Contraction, OperandFormat
from mxc.dialects.contractions import FactorPair
from mxc.dialects.dispatches import Dispatch, tensor_bytes
from mxc.dialects.kernel_calls import reads_decoded
from mxc.targets.target import KINDS, Kind, Target

#: Reason of a contraction that no pass gave a reason for.
NO_REASON = "no pass has said why"
#: Fallback of a kernel of ours whose code is missing.
NO_CODE = "its kernel is not in the assembly"
#: Fallback of a kernel of ours where no assembly was requested.
UNLISTED = "compiled without a listing: the instructions of its kernel are not known"


def best_kind(kernel: KernelCode, target: Target) -> Kind | None:
    """The best kind of multiplication among the kernel's instructions, None if it has none."""
    found = {m.kind for name in kernel.instructions if (m := target.multiplier(name)) is not None}
    return next((kind for kind in KINDS if kind in found), None)


def lowering_of(kernel: KernelCode, target: Target, *, packed: bool) -> str:
    """Return the most frequent instruction of the best kind; for packed operands also the decoder.

    For instance "v_mfma_scale_f32_16x16x128_f8f6f4", "v_cvt_scalef32_pk_f32_fp4 + v_fmac_f32_e32",
    "vfmadd231ps zmm"; "no multiplication" for a kernel without any.
    """
    best = best_kind(kernel, target)
    if best is None:
        return "no multiplication"
    counts = kernel.instructions
    multiply = max(
        (n for n in counts if (m := target.multiplier(n)) is not None and m.kind == best),
        key=lambda n: counts[n],
    )
    decoders = [name for name in counts if packed and name.startswith(target.decoders)]
    if best == "scaled matrix" or not decoders:
        return multiply
    return f"{max(decoders, key=lambda n: counts[n])} + {multiply}"


def explain(
    contraction: FactorPair,
    formats: tuple[OperandFormat, OperandFormat],
    prepared: Preparation,
    kernel: KernelCode | None,
    target: Target,
    reason: str | None,
) -> str | None:
    """Return why no kernel of ours computes a contraction of packed operands, and what IREE's
    lacks.

    None for plain operands, unless they are decoded from packed ones in an unknown way. `reason` is
    that of the passes.
    """
    packed = any(format.is_packed for format in formats)
    if not packed and not reads_decoded(contraction.op.location):
        return None
    stock = _explain_stock(contraction, formats, prepared, kernel, target)
    why = f"no kernel of mxc computes it: {reason or NO_REASON}"
    return why if stock is None else f"{why}; {stock}"


def _explain_stock(
    contraction: FactorPair,
    formats: tuple[OperandFormat, OperandFormat],
    prepared: Preparation,
    kernel: KernelCode | None,
    target: Target,
) -> str | None:
    """Return what the kernel of IREE's code generator lacks; None if nothing."""
    if prepared.widened is not None:
        return (
            f"the dequantized operand goes through memory: @{prepared.widened.entry} writes "
            f"{_written(prepared.widened)} bytes that the contraction reads back"
        )
    if prepared.dispatches:
        largest = max(prepared.dispatches, key=_written)
        return (
            f"{1 + len(prepared.dispatches)} kernels where one is wanted: @{largest.entry} only "
            "prepares operands of the last"
        )
    if kernel is None:
        return "the kernel was not found in the assembly, so nothing is known of it"
    best = best_kind(kernel, target)
    if best == "scaled matrix":
        return None
    if target.scaled_instructions:
        return _no_scaled_matrix(contraction, *formats, target)
    if target.is_gpu and best != "matrix":
        return (
            f"{target.name} has no block-scaled instruction, and its matrix instructions are not "
            f"used either: {best or 'no multiplication'} on decoded elements"
        )
    return None


def explain_own(kernels: Sequence[KernelCode], target: Target, wanted: Kind) -> str | None:
    """Return why the kernels of ours are not as intended; None if they are.

    `wanted`: the kind of instruction that they were made to multiply by.
    """
    if not kernels:
        return NO_CODE
    for kernel in kernels:
        found = best_kind(kernel, target)
        if found is None:
            return "its kernel has no multiplication in it: the compiler has removed its body"
        if KINDS.index(found) > KINDS.index(wanted):
            return f"its kernel was meant to multiply by a {wanted}, and its assembly has a {found}"
    return None


def choice_of(call: Contraction, target: Target) -> str | None:
    """Return why a kernel of ours leaves a CPU instruction unused; None if it uses the best."""
    exact_in_bf16 = "f32" not in (call.lhs.element, call.rhs.element)
    found = [call.choice] if call.choice else []
    if call.kind == "multiply-add" and exact_in_bf16 and target.slow_bf16:
        found.append(f"taken as f32: {target.slow_bf16}")
    return "; ".join(found) or None


def _no_scaled_matrix(
    contraction: FactorPair, lhs: OperandFormat, rhs: OperandFormat, target: Target
) -> str:
    left, right = lhs.name, rhs.name
    if not lhs.scale or not rhs.scale:
        plain = right if lhs.scale else left
        return (
            f"no scaled matrix instruction: lhs is {plain}, a weight-only contraction; the "
            "elements are decoded in registers"
        )
    fitting = target.scaled_for(lhs.element, rhs.element, rhs.block)
    if not fitting:
        pair = f"{left} x {right}, block {rhs.block}"
        return f"{target.name} has no scaled matrix instruction for {pair}"
    smallest = min(mma.m for mma in fitting)
    sizes = {"M": contraction.m, "N": contraction.n, "K": contraction.k}
    dynamic = " and ".join(name for name, size in sizes.items() if size < 0)
    if dynamic:
        return f"no scaled matrix instruction was selected: {dynamic} not known when compiled"
    if contraction.m < smallest:
        return (
            f"no scaled matrix instruction: M={contraction.m} fills {contraction.m} of the "
            f"{smallest} rows of {fitting[0].mnemonic}"
        )
    if lhs.element != rhs.element:
        return (
            f"no scaled matrix instruction: none was selected for the mixed pair {left} x {right}"
        )
    return f"no scaled matrix instruction was selected although {fitting[0].mnemonic} fits"


def _written(dispatch: Dispatch) -> int:
    """Return the bytes of the static results."""
    return sum(tensor_bytes(result.type) or 0 for result in dispatch.op.results)
