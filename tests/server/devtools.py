"""Chromium without a window, driven by its DevTools protocol over a pair of pipes."""

import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def chromium() -> str:
    """The program; AssertionError says what to install."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"none of {', '.join(NAMES)}: install one (Debian: apt-get install chromium)"
    return found


class Browser:
    """One page of a browser of its own."""

    def __init__(self) -> None:
        self._profile = tempfile.mkdtemp(prefix="chromium-")
        from_parent, self._write = os.pipe()
        self._read, to_parent = os.pipe()

        def pipes() -> None:  # the protocol reads descriptor 3 and writes 4
            ours, theirs = os.dup(from_parent), os.dup(to_parent)
            os.dup2(ours, 3)
            os.dup2(theirs, 4)

        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", f"--user-data-dir={self._profile}"]  # fmt: skip
        self._process = subprocess.Popen(
            [chromium(), *flags, "about:blank"],
            preexec_fn=pipes,
            close_fds=False,
            env={**os.environ, "TMPDIR": self._profile},  # what it leaves there goes, too
            stderr=subprocess.DEVNULL,
        )
        os.close(from_parent)
        os.close(to_parent)
        self._number, self._held = 0, b""
        self.events: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", session=None, url="about:blank")["targetId"]
        attached = self.call("Target.attachToTarget", session=None, targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, session: str | None = "", **parameters: object) -> Any:
        """One command, and its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            found = self._message()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return found["result"]
            self.events.append(found)

    def _message(self) -> dict[str, Any]:
        until = time.monotonic() + 60
        while b"\0" not in self._held:
            assert select.select([self._read], [], [], until - time.monotonic())[0], "no answer"
            piece = os.read(self._read, 1 << 16)
            assert piece, "the browser has ended"
            self._held += piece
        first, _, self._held = self._held.partition(b"\0")
        return json.loads(first)

    def run(self, program: str) -> Any:
        """The value of some JavaScript."""
        found = self.call("Runtime.evaluate", expression=program, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, program: str, seconds: float = 60) -> Any:
        """Until some JavaScript is true."""
        until = time.monotonic() + seconds
        while not (value := self.run(program)):
            assert time.monotonic() < until, f"still not: {program}"
            time.sleep(0.05)
        return value

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        # The page that was there before is complete, too.
        self.wait(f"location.href === '{url}' && document.readyState === 'complete'")

    def type(self, text: str, key: str = "Enter") -> None:
        """Type into the field that has the focus, then a key."""
        self.call("Input.insertText", text=text)
        code = {"key": key, "code": key, "windowsVirtualKeyCode": 13, "text": "\r"}
        self.call("Input.dispatchKeyEvent", type="keyDown", **code)
        self.call("Input.dispatchKeyEvent", type="keyUp", **code)

    def requested(self) -> list[str]:
        """Where the page sent requests."""
        return [
            event["params"]["request"]["url"]
            for event in self.events
            if event.get("method") == "Network.requestWillBeSent"
        ]

    def complaints(self) -> list[str]:
        """What the browser's log has against the page."""
        found = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        return [
            entry["text"]
            for entry in found
            if entry["level"] in ("warning", "error") and "favicon" not in entry.get("url", "")
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for handle in (self._read, self._write):
            os.close(handle)
        shutil.rmtree(Path(self._profile), ignore_errors=True)
