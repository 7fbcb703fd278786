"""The report as one self-contained HTML file.

The page shows the contractions, the kernels with their nests and their assembly, the weights with
their scales, and the IR after each pass with the difference between any two of them. It needs no
server, no network and no other file. Large texts are compressed in the page and decompressed when
they are opened.
"""

from __future__ import annotations

import base64
import gzip
import json
import os
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path

from mxc.compiler.page.contents import KernelTexts as KernelTexts
from mxc.compiler.page.contents import contents
from mxc.errors import ArtifactError

#: Largest size of one text in bytes; a longer one is cut, and the page says so.
LONGEST = 32 << 20


def write_page(
    page: Path,
    artifact: Path,
    *,
    code: Mapping[str, KernelTexts] | None = None,
    dump: Path | None = None,
    name: str | None = None,
) -> None:
    """Write the page of the artifact folder `artifact`, under the folder's name or `name`.

    code: the texts of kernels by level. dump: a folder that --dump-ir has filled. A missing
    part is left out, and the page says how to get it. Raises ArtifactError if the artifact cannot
    be read or the page cannot be written.
    """
    found, texts = contents(artifact, name or artifact.name, code or {}, dump)
    blobs = "\n".join(
        f'<script type="text/plain" id="text-{number}">{_packed(text)}</script>'
        for number, text in enumerate(texts)
    )
    # "</" would end the script that holds the data.
    data = json.dumps(found, separators=(",", ":")).replace("</", "<\\/")
    parts = files("mxc.compiler.page")
    html = (parts / "page.html").read_text(encoding="utf-8")
    for name, text in (
        ("{{style}}", (parts / "page.css").read_text(encoding="utf-8")),
        ("{{chart}}", (parts / "chart.js").read_text(encoding="utf-8")),
        ("{{script}}", (parts / "page.js").read_text(encoding="utf-8")),
        ("{{texts}}", blobs),
        ("{{data}}", data),
    ):
        html = html.replace(name, text, 1)
    temporary = page.with_name(f".{page.name}.partial")
    try:
        temporary.write_text(html, encoding="utf-8")
        os.replace(temporary, page)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise ArtifactError(
            f"{page}: cannot be written ({error.strerror}); give another --html"
        ) from error


def _packed(text: str) -> str:
    raw = text.encode()
    if len(raw) > LONGEST:
        kept = raw[:LONGEST].decode(errors="ignore")
        raw = f"{kept}\n... {len(raw) - LONGEST} more bytes are not in this page\n".encode()
    return base64.b64encode(gzip.compress(raw, mtime=0)).decode()
