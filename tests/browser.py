"""Chromium without a window: a page after its scripts, and one of the test, have run."""

import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

#: Where Debian, Ubuntu and others install it.
COMMANDS = ("chromium", "chromium-browser", "google-chrome")
MISSING = "left out: tests in a browser; install Chromium (Debian and Ubuntu: apt install chromium)"
#: Set where a browser must be there, as continuous integration does.
REQUIRED = "MXC_REQUIRE_BROWSER"
_OPTIONS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr",
    "--disable-background-networking", "--virtual-time-budget=10000",
)  # fmt: skip


def command() -> str | None:
    """The browser of this machine."""
    return next((found for name in COMMANDS if (found := shutil.which(name))), None)


@dataclass(frozen=True)
class Seen:
    """The page's elements as text, and what its scripts wrote to the console."""

    dom: str
    console: tuple[str, ...]


def see(page: Path, script: str, folder: Path) -> Seen:
    """Open a copy of `page`, in `folder`, that ends with `script`.

    The script may be asynchronous, and has `later(condition)`, which waits for it, and
    `tell(text)`, which writes a line that `Seen.console` has.
    """
    chosen = command()
    assert chosen is not None, MISSING
    added = f"""<script>
const tell = (text) => console.log("told: " + text);
const later = async (condition) => {{
  for (let turn = 0; turn < 400; turn += 1) {{
    const found = condition();
    if (found) return found;
    await new Promise((done) => setTimeout(done, 10));
  }}
  throw new Error("waited for nothing: " + condition);
}};
(async () => {{ {script} }})().catch((error) => console.error(String(error)));
</script>"""
    copy = folder / "seen.html"
    copy.write_text(page.read_text(encoding="utf-8").replace("</body>", f"{added}</body>"))
    result = subprocess.run(
        [chosen, *_OPTIONS, f"--user-data-dir={folder / 'profile'}", "--dump-dom", copy.as_uri()],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HOME": str(folder)},
    )
    console = re.findall(r'CONSOLE[^"]*"(.*)", source:', result.stderr)
    return Seen(result.stdout, tuple(console))
