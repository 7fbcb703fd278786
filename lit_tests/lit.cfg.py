"""IR in, IR out: lit tests never run a program. `lit lit_tests` from the root of the tree."""

import os
import sys
from importlib import import_module
from pathlib import Path

import lit.formats
from lit.TestingConfig import TestingConfig

config: TestingConfig = globals()["config"]  # lit puts it there

config.name = "mxc"
config.test_format = lit.formats.ShTest(execute_external=False)
config.suffixes = [".mlir", ".py", ".test"]
config.excludes = ["lit.cfg.py"]
config.test_source_root = str(Path(__file__).parent)
config.test_exec_root = str(Path(__file__).parent / "Output")

# The tools of the environment that runs lit, whatever the PATH says.
tools = Path(sys.executable).parent
config.environment["PATH"] = f"{tools}:{config.environment['PATH']}"
# A pass that uses an operation which it has erased fails (passes/rewriting/sanitizer.py).
config.environment["MXC_SANITIZE_PASSES"] = "1"
# A second checkout is tested by the environment of the first one.
for name in ("PYTHONPATH", "PYTHONSAFEPATH"):
    if name in os.environ:
        config.environment[name] = os.environ[name]
# Commands are forks of one process that has imported the compiler.
sys.path.insert(0, str(Path(__file__).parents[1]))
forked = import_module("tests.forked")

server = forked.SERVERS.setdefault("lit", forked.Server())  # it lives as long as the module
fork = f"{sys.executable} -I -S {forked.__file__} {server.place}"
config.substitutions += [
    ("%python", fork),
    # The same program without the start of the whole command line.
    ("mxc opt", f"{fork} mxc.compiler.opt:main"),
    ("mxc (?=compile|report)", f"{fork} mxc.compiler.cli:main "),
    (r"\bfilecheck\b", f"{fork} filecheck.main:main"),
]
