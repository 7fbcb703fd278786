"""The documentation site builds without a warning, names every command, and needs no network."""

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mxc.compiler.cli import app
from mxc.passes import PASSES

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )
    assert result.returncode == 0, result.stderr
    return folder


def headings(page: Path, level: int) -> list[str]:
    found = re.findall(rf"<h{level} id=[^>]*>(.*?)<a", page.read_text(), re.DOTALL)
    return [re.sub(r"<[^>]*>", "", heading).strip() for heading in found]


def test_the_reference_is_whole(site: Path) -> None:
    command: Any = typer.main.get_command(app)
    commands = command.commands
    assert headings(site / "reference/commands.html", 2) == [f"mxc {name}" for name in commands]
    assert headings(site / "reference/passes.html", 2) == [cls.name for cls in PASSES]
    shapes = sorted(path.stem for path in (ROOT / "dialects").glob("[!_]*.py"))
    assert headings(site / "reference/dialects.html", 2) == shapes
    assert "mxc.contraction" in (site / "reference/dialects.html").read_text()


def test_each_page_has_a_title(site: Path) -> None:
    untitled = [page for page in site.rglob("*.html") if "404" not in page.name]
    untitled = [page for page in untitled if len(headings(page, 1)) != 1]
    assert not untitled


def test_blocks_are_blocks(site: Path) -> None:
    assert not [page for page in site.rglob("*.html") if "<p>```" in page.read_text()]


def test_nothing_comes_from_elsewhere(site: Path) -> None:
    """No script, style, picture or font of another server."""
    wanted = re.compile(
        r"<(?:script|img|iframe)[^>]*src=[\"']?(https?:[^\"' >]+)|"
        r"<link[^>]*rel=[\"']?(?:stylesheet|preconnect)[^>]*(https?:[^\"' >]+)"
    )
    found = {
        str(page.relative_to(site)): wanted.findall(page.read_text())
        for page in site.rglob("*.html")
    }
    assert not {page: each for page, each in found.items() if each}
