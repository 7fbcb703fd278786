"""Install the wheel and its dependencies for each supported Python that is found, and run it.

    python -m tests.installs

Needs the network. Each gets an environment of its own, in which `mxc demo` must run. Lines at the
end say which Pythons were tried and which were not found; one must be.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.test_packaging import PROJECT, built, copied

#: ">=3.11,<3.14"
_FIRST, _END = map(int, re.findall(r"3\.(\d+)", PROJECT["requires-python"]))
VERSIONS = [f"3.{minor}" for minor in range(_FIRST, _END)]


def python(version: str) -> str | None:
    """The command of a Python: on the path, of pyenv, or of uv."""
    places = sorted((Path.home() / ".pyenv/versions").glob(f"{version}.*/bin/python"))
    commands = [shutil.which(f"python{version}"), *map(str, places)]
    if uv := shutil.which("uv"):
        found = subprocess.run([uv, "python", "find", version], capture_output=True, text=True)
        commands.append(found.stdout.strip())
    for command in filter(None, commands):
        shown = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
        found = subprocess.run([command, "-c", shown], capture_output=True, text=True)
        if found.stdout.strip() == version:
            return command
    return None


def fault(command: str, wheel: Path, folder: Path) -> str | None:
    """Install the wheel for a Python, and run the demo; what failed."""
    new = folder / "environment"
    for words in (
        [command, "-m", "venv", "--clear", str(new)],
        [str(new / "bin/python"), "-m", "pip", "install", "--quiet", str(wheel)],
        [str(new / "bin/mxc"), "demo", "--directory", str(folder / "demo")],
    ):
        result = subprocess.run(words, cwd=folder, capture_output=True, text=True)
        if result.returncode:
            return f"{' '.join(words)}:\n{result.stdout}{result.stderr}"
    return None


def main() -> None:
    lines, tried, failed = [], 0, False
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        wheel = built(copied(folder / "source"), folder)
        for version in VERSIONS:
            command = python(version)
            if command is None:
                lines.append(f"Python {version}: NOT FOUND, and so not tried")
                continue
            found = fault(command, wheel, folder)
            lines.append(f"Python {version}: {found or 'installed, and the demo runs'}")
            tried, failed = tried + 1, failed or found is not None
    print("\n".join(lines))
    if failed or not tried:
        sys.exit(1)


if __name__ == "__main__":
    main()
