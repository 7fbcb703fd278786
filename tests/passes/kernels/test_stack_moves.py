"""Sums of 6-bit weights stay in the registers of AVX2, of which there are 16."""

CASES = ("mxfp6e2m3 int8 1x17x64x256", "mxfp6e2m3 int8 12x1x64x256 of 5")


def test_few_instructions_move_registers(kernels):
    made = kernels(*CASES, target="cpu:x86-64-v3").compiled.report["kernels"]
    found = [k["stack_moves"] for k in made if k["name"].startswith("mxc_mxfp6")]
    assert len(found) == len(CASES)
    assert all(each["moves"] <= each["instructions"] / 10 for each in found), found
