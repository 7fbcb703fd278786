"""Programs whose contractions are tiles, on a CPU that has them; elsewhere the interpreter.

What runs on tiles is compared with the interpreter to the bit: the order of all sums is that of the
schedule. `test_where_there_are_no_tiles..` says what a machine without them checks.
"""

from mxc.compiler.iree import resolve
from mxc.dialects.targets import target
from mxc.passes.kernels.cpu.isa import AMX_FEATURES

HOST = resolve(target("cpu"))
HAS_TILES = set(HOST.features) >= AMX_FEATURES

CASES = {
    "mxfp4": (37, 40, 288),
    "mxfp6e3m2": (20, 17, 64),
    "mxfp8e4m3": (20, 17, 64),
    "mxint8": (3, 32, 320),
    "nvfp4": (33, 24, 96),
}
