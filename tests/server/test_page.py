"""The chat page in a browser: it streams, stops, shows speed, and asks nobody else."""

from collections.abc import Callable

import pytest

from mxc.server.settings import Settings
from tests.browser import Browser
from tests.runtime.engine.paged_model import PagedModel
from tests.runtime.engine.scripted_model import ScriptedModel, script_of
from tests.server.running import FINAL, THOUGHT, Running

pytestmark = pytest.mark.browser
LAST = "document.querySelector('#log article.assistant:last-of-type')"


def test_a_conversation(scripted: Running) -> None:
    scripted.says(THOUGHT + FINAL + "It is <b>Paris</b>.")
    with Browser() as browser:
        browser.open(scripted.url + "/")
        assert browser.wait("document.getElementById('model').value") == "tiny"
        browser.run("document.getElementById('text').focus()")
        browser.type("What is it?")
        browser.wait("document.querySelector('#send').disabled === false && messages.length === 2")
        # What a model writes is text, whatever it looks like.
        assert browser.run("messages[1].content") == "It is <b>Paris</b>."
        assert browser.run(f"{LAST}.querySelector('b')") is None
        assert "It is <b>Paris</b>." in browser.run(f"{LAST}.innerText")
        assert browser.run(f"{LAST}.querySelector('details').textContent").endswith("Let me see.")
        figures = browser.run(f"{LAST}.querySelector('small').textContent")
        count = len(script_of(scripted.model).answer)
        assert figures.startswith(f"{count} tokens, first after")
        assert "tokens/s" in figures
        browser.type("And then?")
        browser.wait("messages.length === 4")
        assert browser.run("messages[2].content") == "And then?"
        browser.run("document.getElementById('reset').click()")
        assert browser.run("document.getElementById('log').children.length") == 0
        assert {url.split("/")[2] for url in browser.requested() if url != "about:blank"} == {
            f"127.0.0.1:{scripted.port}"
        }
        assert browser.complaints() == []


def test_stopping(start: Callable[..., Running]) -> None:
    model = PagedModel(vocabulary=484, seconds=0.02, full_pages=300, window_pages=60, context=500)
    made = start(model)
    with Browser() as browser:
        browser.open(made.url + "/")
        browser.wait("document.getElementById('model').value")
        browser.run("document.getElementById('text').focus()")
        browser.type("Go on for ever")
        browser.wait("document.querySelector('#log small')?.textContent.includes('tokens')")
        browser.run("document.getElementById('stop').click()")
        browser.wait("document.querySelector('#send').disabled === false")
        assert made.all_pages_are_free()
        counts = made.model.engine.counts
        assert counts.generated_tokens < 400


def test_a_key_and_an_error(start: Callable[..., Running]) -> None:
    made = start(ScriptedModel(vocabulary=484), Settings(api_keys=("secret",)))
    made.says(FINAL + "Hello.")
    with Browser() as browser:
        browser.open(made.url + "/")
        browser.run("document.getElementById('text').focus()")
        browser.type("Hello")
        browser.wait("!!document.querySelector('article.error')")
        assert "API key" in browser.run("document.querySelector('article.error').textContent")
        assert browser.run("messages.length") == 0, "what was not answered is not history"
        browser.run("document.getElementById('key').value = 'secret'")
        browser.run("document.getElementById('key').dispatchEvent(new Event('change'))")
        browser.wait("document.getElementById('model').value")
        browser.run("document.getElementById('text').focus()")
        browser.type("Hello")
        browser.wait("messages.at(-1).content === 'Hello.'")
