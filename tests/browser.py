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

#: Where Debian, Ubuntu and others install it.
COMMANDS = ("chromium", "chromium-browser", "google-chrome", "chrome")
MISSING = "left out: tests in a browser; install Chromium (Debian and Ubuntu: apt install chromium)"
#: Set where a browser must be there, as continuous integration does.
REQUIRED = "MXC_REQUIRE_BROWSER"


def command() -> str | None:
    """The browser of this machine."""
    return next((found for name in COMMANDS if (found := shutil.which(name))), None)


_TOLD = """
const told = [];
const tell = (value) => told.push(value);
const later = async (condition) => {
  for (let turn = 0; turn < 4000; turn += 1) {
    const found = condition();
    if (found) return found;
    await new Promise((done) => setTimeout(done, 10));
  }
  throw new Error("waited for nothing: " + condition);
};"""


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

        chosen = command()
        assert chosen is not None, MISSING
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                 "--remote-debugging-pipe", f"--user-data-dir={self._profile}"]  # fmt: skip
        self._process = subprocess.Popen(
            [chosen, *flags, "about:blank"],
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
        """The value of some JavaScript, or of the promise that it makes."""
        found = self.call(
            "Runtime.evaluate", expression=program, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def told(self, script: str) -> list[Any]:
        """What a script tells by `tell(value)`. It may wait: `await later(condition)`."""
        return self.run(f"(async () => {{ {_TOLD} {script}; return told; }})()")

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
        code: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": 13, "text": "\r"}
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
        """What the browser has against the page: its log, and exceptions that nobody caught."""
        found = [e["params"]["entry"] for e in self.events if e.get("method") == "Log.entryAdded"]
        thrown = [e for e in self.events if e.get("method") == "Runtime.exceptionThrown"]
        return [
            entry["text"]
            for entry in found
            if entry["level"] in ("warning", "error") and "favicon" not in entry.get("url", "")
        ] + [json.dumps(each["params"]["exceptionDetails"]) for each in thrown]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.wait()
        for handle in (self._read, self._write):
            os.close(handle)
        shutil.rmtree(Path(self._profile), ignore_errors=True)
