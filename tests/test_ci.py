"""`.ci/run` leaves nothing out without saying so."""

import os
import re
import shutil
import subprocess
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """Commands of a machine without Chromium, where apt fails and make says what it is asked."""
    for name in ("bash", "dirname", "tail"):
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    for name, body in (("apt-get", "echo no mirror; exit 100"), ("make", 'echo "make $*"')):
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    return tmp_path


def ci(machine: Path, **more: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": str(machine), **more}
    words = [str(machine / "bash"), str(ROOT / ".ci/run")]
    return subprocess.run(words, env=environment, capture_output=True, text=True)


def with_chromium(machine: Path) -> Path:
    """A machine that has it, and every Python."""
    for name in ("chromium", "python3.11", "python3.12", "python3.13"):
        (machine / name).write_text("#!/bin/bash\n")
        (machine / name).chmod(0o755)
    return machine


def test_a_browser_that_cannot_be_installed_is_a_failure(machine: Path) -> None:
    result = ci(machine)
    assert result.returncode == 1
    assert "Chromium cannot be installed" in result.stderr
    assert "no mirror" in result.stderr
    assert not result.stdout


def test_without_network_that_is_said(machine: Path) -> None:
    before = time.time()
    result = ci(machine, MXC_NO_NETWORK="1")
    assert result.returncode == 0
    asked = re.fullmatch(r"make test UNTIL=(\d+)\n", result.stdout)
    assert asked
    assert abs(int(asked[1]) - before - 4000) < 60
    assert "without network the wheel is not installed" in result.stderr


def test_that_no_time_is_left_to_install_is_said(machine: Path) -> None:
    result = ci(with_chromium(machine), SECONDS="4000")
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1].startswith("make test UNTIL=")
    assert "no time is left to install the wheel" in result.stderr


def test_where_time_is_left_the_wheel_is_installed(machine: Path) -> None:
    result = ci(with_chromium(machine))
    assert result.returncode == 0
    assert result.stdout.splitlines()[-1] == "make test-install"
