"""Wait states: one too few is reported, exactly enough is not, and code of compilers has enough."""

from collections.abc import Callable
from typing import Any

import pytest

from mxc.simulator.assembly.kernels import read_assembly
from mxc.simulator.run.translate import TranslatedKernel
from mxc.simulator.watch import hazards as module
from mxc.simulator.watch.facts import InstructionFacts, Registers
from mxc.simulator.watch.hazards import hazards

F4 = "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[8:11], v[16:19], v[0:3], v30, v31 cbsz:4 blgp:4"
FAR = "v_mfma_f32_16x16x32_f16 v[0:3], v[32:35], v[36:39], {}"
F8 = "v_mfma_scale_f32_16x16x128_f8f6f4 v[0:3], v[8:15], v[16:23], v[0:3], v30, v31"
F16 = "v_mfma_f32_16x16x32_f16 a[0:3], v[8:11], v[12:15], {}"
LONG = "v_mfma_f32_32x32x16_f16 v[0:15], v[16:19], v[20:23], {}"
F32 = "v_mfma_f32_16x16x4_f32 v[0:3], v8, v9, {}"
F64 = "v_mfma_f64_16x16x4_f64 v[0:7], v[8:9], v[10:11], v[0:7]"
SMALL = "v_mfma_f32_4x4x4_16b_f16 v[0:3], v[8:9], v[10:11], {}"
SMALL64 = "v_mfma_f64_4x4x4_4b_f64 v[0:1], v[8:9], v[10:11], {}"
STORE = "global_store_dwordx4 v[20:21], {}, off"

#: An instruction, one that depends on it, the wait states that must be between them, and a part of
#: the message.
PAIRS = [
    # The result of a matrix instruction is read: passes + 2, one more for wide ones and for those
    # of gfx950.
    (F4, "buffer_store_dword v0, off, s[0:3], 0", 8, "a matrix result is read"),
    (F8, "v_add_f32 v40, v3, v3", 12, "a matrix result is read"),
    (F16.format("0"), STORE.format("a[0:3]"), 8, "a matrix result is read"),
    (LONG.format("0"), "ds_write_b32 v50, v15", 12, "a matrix result is read"),
    (F32.format("0"), "v_mov_b32 v40, v3", 10, "a matrix result is read"),
    (SMALL.format("0"), "v_mov_b32 v40, v3", 5, "a matrix result is read"),
    (F64, STORE.format("v[4:7]"), 18, "a matrix result is read"),
    (F64, "v_mov_b32 v40, v7", 19, "a matrix result is read"),
    (SMALL64.format("0"), "v_mov_b32 v40, v1", 6, "a matrix result is read"),
    # The result is a factor, or a part of it is the accumulator; the whole result may be the
    # accumulator of the next instruction at once.
    (F4, F16.format("0").replace("v[8:11]", "v[0:3]"), 8, "a matrix result is a factor"),
    (F32.format("0"), F16.format("0").replace("v[8:11]", "v[0:3]"), 10, "a matrix result is a fac"),
    (F64, F64.replace("v[8:9]", "v[4:5]"), 19, "a matrix result is a factor"),
    (LONG.format("0"), FAR.format("v[2:5]"), 10, "is added to"),
    (F32.format("0"), F32.format("v[2:5]"), 8, "is added to"),
    (SMALL.format("0"), SMALL.format("v[0:3]"), 2, "is added to"),
    (SMALL64.format("0"), SMALL64.format("v[0:1]"), 4, "is added to"),
    # A register of a matrix instruction is overwritten: of its result, or of its accumulator, which
    # it still reads.
    (F4, "v_mov_b32 v3, 0", 8, "a matrix result is overwritten"),
    (F64, "v_mov_b32 v3, 0", 11, "a matrix result is overwritten"),
    (LONG.format("v[32:47]"), "v_mov_b32 v40, 0", 7, "adds to is overwritten"),
    # Scalar registers that vector instructions write.
    ("v_readfirstlane_b32 s4, v1", "buffer_load_dword v2, off, s[4:7], 0", 5, "by memory"),
    ("v_readfirstlane_b32 s4, v1", "global_load_dword v2, v3, s[4:5]", 5, "by memory"),
    ("v_readfirstlane_b32 s4, v1", "v_add_u32 v2, s4, v3", 2, "a scalar register"),
    ("v_cmp_eq_u32 vcc, v1, v2", "v_cndmask_b32 v3, v4, v5, vcc", 2, "a scalar register"),
    ("v_readfirstlane_b32 s4, v1", "v_readlane_b32 s5, v2, s4", 4, "a lane is selected"),
    ("v_cmp_eq_u32 vcc, v1, v2", "v_div_fmas_f32 v3, v4, v5, v6", 4, "VCC is read by v_div_fmas"),
    # EXEC, and lanes of registers.
    ("v_cmpx_eq_u32 vcc, v1, v2", "v_readlane_b32 s5, v3, 0", 4, "EXEC has changed"),
    ("v_cmpx_eq_u32 vcc, v1, v2", "v_mov_b32_dpp v3, v4 row_shr:1", 5, "EXEC has changed"),
    ("v_cmpx_eq_u32 vcc, v1, v2", "v_permlane32_swap_b32 v3, v4", 4, "EXEC has changed"),
    ("v_cmpx_eq_u32 vcc, v1, v2", F16.format("0"), 4, "EXEC has changed"),
    ("v_mov_b32 v1, 0", "v_mov_b32_dpp v3, v1 row_shr:1", 2, "read across lanes"),
    ("v_mov_b32 v1, 0", "v_permlane16_swap_b32 v3, v1", 2, "read across lanes"),
    ("v_mov_b32 v1, 0", "v_readfirstlane_b32 s4, v1", 1, "is read by lane"),
    ("v_mov_b32 v9, 0", F16.format("0"), 2, "an operand of a matrix instruction"),
    # Units with results that come later.
    ("v_exp_f32 v1, v2", "v_add_f32 v3, v1, v1", 1, "transcendental"),
    ("v_add_u16_sdwa v1, v2, v3 dst_sel:WORD_1", "v_mov_b32 v4, v1", 1, "a part of a register"),
    ("v_mad_i16 v1, v2, v3, v4 op_sel:[0,0,0,1]", "v_mov_b32 v4, v1", 1, "a part of a register"),
    ("v_dot4_i32_i8 v1, v2, v3, v4", "v_mov_b32 v4, v1", 3, "a dot product is read"),
    ("v_dot4_i32_i8 v1, v2, v3, v4", "v_dot4_i32_i8 v5, v1, v3, v4", 3, "a dot product is read"),
    ("v_dot4_i32_i8 v1, v2, v3, v4", "v_mov_b32 v1, 0", 3, "a dot product is overwritten"),
    # Data of wide stores, M0, hardware registers.
    (STORE.format("v[4:7]"), "v_mov_b32 v6, 0", 2, "data of a store is overwritten"),
    ("buffer_store_dwordx3 v[4:6], off, s[0:3], 0", "v_mov_b32 v6, 0", 2, "data of a store"),
    ("s_mov_b32 m0, 0", "buffer_load_dword v1, s[0:3], 0 offen lds", 1, "M0 is read"),
    ("s_mov_b32 m0, 0", "global_load_lds_dwordx4 v1, s[2:3]", 1, "M0 is read"),
    ("s_setreg_imm32_b32 hwreg(1, 4, 4), 0", "s_getreg_b32 s4, hwreg(1)", 2, "hardware register"),
]
#: Similar pairs that need no wait state.
SAFE = [
    # Products of f32 have already read their accumulator; other types have not.
    (F32.format("v[32:35]"), "v_mov_b32 v33, 0"),
    (F4, F4),
    (F64, F64),
    (F4, "s_add_u32 s4, s5, s6"),
    ("s_mov_b32 s4, 0", "buffer_load_dword v2, off, s[4:7], 0"),
    ("v_exp_f32 v1, v2", "v_exp_f32 v3, v1"),
    ("v_dot4_i32_i8 v1, v2, v3, v4", "v_dot4_i32_i8 v1, v5, v6, v1"),
    ("buffer_store_dwordx3 v[4:6], off, s[0:3], s8", "v_mov_b32 v6, 0"),
    (STORE.format("v[4:5]").replace("x4", "x2"), "v_mov_b32 v4, 0"),
    ("v_add_u16_sdwa v1, v2, v3 dst_sel:DWORD", "v_mov_b32 v4, v1"),
    ("v_readfirstlane_b32 s4, v1", "s_add_u32 s5, s4, 1"),
]


def found(*lines: str) -> list[str]:
    """Return the text of every hazard in a kernel of these lines."""
    (kernel,) = read_assembly("\n".join([*lines, "s_endpgm"]), "t.s", workgroup=(64, 1, 1)).values()
    return [
        text for each in hazards(TranslatedKernel(kernel).instructions).values() for text in each
    ]


def filler(wait_states: int) -> list[str]:
    """Return instructions that take `wait_states` wait states."""
    whole, left = divmod(wait_states, 8)
    return ["s_nop 7"] * whole + ([f"s_nop {left - 1}"] if left else [])


@pytest.mark.parametrize(("earlier", "later", "wanted", "why"), PAIRS)
def test_one_wait_state_too_few(earlier: str, later: str, wanted: int, why: str) -> None:
    early = found(earlier, *filler(wanted - 1), later)
    assert any(why in text and text.endswith(f"wanted {wanted}") for text in early), early
    assert not found(earlier, *filler(wanted), later)


@pytest.mark.parametrize(("earlier", "later"), SAFE)
def test_what_needs_none(earlier: str, later: str) -> None:
    assert not found(earlier, later)


def test_every_path_is_looked_at() -> None:
    lines = ["s_cbranch_scc1 1f", F4, "s_nop 5", "1:", "s_nop 0", "v_add_f32 v40, v0, v0"]
    # On the path where the branch is not taken, there are seven wait states.
    assert len(found(*lines)) == 1
    assert not found(*lines[:3], "s_nop 0", *lines[3:])
    # From the end of a loop to its beginning.
    assert found("1:", "v_add_f32 v40, v0, v0", *filler(6), F4, "s_cbranch_scc0 1b")
    assert not found("1:", *filler(7), "v_add_f32 v40, v0, v0", F4, "s_cbranch_scc0 1b")


def test_the_nearest_matrix_instruction_counts() -> None:
    # The 12 wait states of the longer instruction are not over, but the shorter one has written v0
    # since; v15 is still a result of the longer one.
    lines = [LONG.format("0"), SMALL.format("0").replace("v[8:9], v[10:11]", "v[32:33], v[34:35]")]
    assert not found(*lines, *filler(5), "v_mov_b32 v40, v0")
    assert found(*lines, *filler(5), "v_mov_b32 v40, v15")


@pytest.mark.parametrize("shape", [(128, 256, 512), (100, 96, 2880)])
def test_stock_code_has_exactly_enough(
    shape: tuple[int, ...], scaled: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """None is found in what LLVM emits, and with one more wait state wanted some would be."""
    instructions = TranslatedKernel(scaled(*shape).kernel).instructions
    assert not hazards(instructions)
    rules = module._rules

    def stricter(earlier: InstructionFacts, later: InstructionFacts, hidden: Registers) -> Any:
        return [(n + 1, why) for n, why in rules(earlier, later, hidden) if n > 0]

    monkeypatch.setattr(module, "_rules", stricter)
    texts = [text for each in hazards(instructions).values() for text in each]
    assert texts
