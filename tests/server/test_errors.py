"""What goes wrong, each with its status, in the shape that the client knows."""

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable

import httpx2
import openai
import pytest

from mxc.errors import RequestError
from mxc.server.settings import Settings
from tests.runtime.engine.paged_model import PagedModel
from tests.runtime.engine.scripted_model import ScriptedModel
from tests.server.running import FINAL, Running

USER = [{"role": "user", "content": "Hello"}]
CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"


def post(running: Running, path: str, body: object, **headers: str) -> httpx2.Response:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"content-type": "application/json", **headers}
    return httpx2.post(running.url + path, content=data, headers=head, timeout=60)


def chat(**fields: object) -> dict[str, object]:
    return {"model": "tiny", "messages": USER, **fields}


TOOL = {"type": "function", "function": {"name": "f"}}
BAD = [
    (CHAT, b"{", "not JSON", None),
    (CHAT, b"[1]", "must be an object", None),
    (CHAT, b'{"model": NaN}', "not JSON", None),
    (CHAT, b"\xff\xfe", "not UTF-8", None),
    (CHAT, b"[" * 100_000, "nested too deeply", None),
    (CHAT, {"messages": USER}, "missing required parameter: model", "model"),
    (CHAT, {"model": 3}, "must be a string", "model"),
    (CHAT, {"model": "tiny"}, "at least one message", "messages"),
    (CHAT, chat(messages="hello"), "must be a list", "messages"),
    (CHAT, chat(messages=["x"]), "must be an object", "messages[0]"),
    (CHAT, chat(messages=[{"role": "user"}]), "content", "messages[0].content"),
    (CHAT, chat(messages=[{"content": "x"}]), "role", "messages[0].role"),
    (CHAT, chat(messages=[{"role": "boss", "content": "x"}]), "one of", "messages[0].role"),
    (CHAT, chat(messages=[{"role": "user", "content": 3}]), "list of parts", "messages[0].content"),
    (
        CHAT,
        chat(messages=[{"role": "user", "content": [{"type": "image_url"}]}]),
        "text alone",
        "messages[0].content[0].type",
    ),
    (CHAT, chat(temperature="hot"), "must be a number", "temperature"),
    (CHAT, chat(temperature=3), "from 0 to 2", "temperature"),
    (CHAT, chat(temperature=int("9" * 400)), "from 0 to 2", "temperature"),
    (CHAT, chat(top_p=-int("9" * 400)), "from 0 to 1", "top_p"),
    (CHAT, chat(temperature=True), "must be a number", "temperature"),
    (CHAT, chat(top_p=-0.1), "from 0 to 1", "top_p"),
    (CHAT, chat(presence_penalty=9), "from -2 to 2", "presence_penalty"),
    (CHAT, chat(max_tokens=0), "at least 1", "max_tokens"),
    (CHAT, chat(max_tokens=1.5), "whole number", "max_tokens"),
    (CHAT, chat(n=99), "from 1 to 16", "n"),
    (CHAT, chat(stop=["a"] * 5), "at most 4", "stop"),
    (CHAT, chat(stop=[1]), "list of strings", "stop"),
    (CHAT, chat(stop=""), "must not be empty", None),
    (CHAT, chat(logit_bias={"x": 1}), "by token id", "logit_bias"),
    (CHAT, chat(logit_bias={"5": 101}), "-100 to 100", "logit_bias"),
    (CHAT, chat(logit_bias={"48400": 1}), "outside of the vocabulary", None),
    (CHAT, chat(logprobs=1), "true or false", "logprobs"),
    (CHAT, chat(top_logprobs=2), "needs logprobs", "top_logprobs"),
    (CHAT, chat(logprobs=True, top_logprobs=21), "from 0 to 20", "top_logprobs"),
    (CHAT, chat(stream_options={"include_usage": True}), "needs stream", "stream_options"),
    (CHAT, chat(tools=[{"type": "web"}]), "only functions", "tools[0].type"),
    (CHAT, chat(tools=[{"type": "function", "function": {"name": "a b"}}]), "letters", None),
    (CHAT, chat(tool_choice="required"), "no tools", "tool_choice"),
    (
        CHAT,
        chat(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "g"}}),
        "does not have",
        "tool_choice",
    ),
    (CHAT, chat(response_format={"type": "xml"}), "must be text", "response_format.type"),
    (
        CHAT,
        chat(response_format={"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}),
        "not supported",
        None,
    ),
    (CHAT, chat(response_format={"type": "regex", "regex": "(["}), "not supported", None),
    (CHAT, chat(wings=2), "unrecognized request argument", "wings"),
    (CHAT, chat(chat_template_kwargs={"messages": []}), "without messages", None),
    (CHAT, chat(max_tokens=100_000), "maximum context length", None),
    (CHAT, chat(messages=[{"role": "user", "content": "x" * 9000}]), "maximum context", None),
    (CHAT, chat(messages=[{"role": "user", "content": "\ud800"}]), "not Unicode", None),
    (TEXT, {"model": "tiny"}, "missing required parameter: prompt", "prompt"),
    (TEXT, {"model": "tiny", "prompt": []}, "must be a string", "prompt"),
    (TEXT, {"model": "tiny", "prompt": ""}, "no token", None),
    (TEXT, {"model": "tiny", "prompt": [9999]}, "outside of the vocabulary", None),
    (TEXT, {"model": "tiny", "prompt": ["x"] * 17}, "takes 16", "prompt"),
    (TEXT, {"model": "tiny", "prompt": "x", "best_of": 3}, "not supported", "best_of"),
    (TEXT, {"model": "tiny", "prompt": "x", "suffix": "y"}, "not supported", "suffix"),
    ("/v1/responses", {"model": "tiny"}, "missing required parameter: input", "input"),
    (
        "/v1/responses",
        {"model": "tiny", "input": "x", "previous_response_id": "r"},
        "nothing is stored",
        "previous_response_id",
    ),
    ("/v1/responses", {"model": "tiny", "input": [{"type": "x"}]}, "not supported", None),
]


@pytest.mark.parametrize(("path", "body", "said", "param"), BAD, ids=range(len(BAD)))
def test_bad_requests(
    scripted: Running, path: str, body: object, said: str, param: str | None
) -> None:
    scripted.says(FINAL + "Hello")
    found = post(scripted, path, body)
    assert found.status_code == 400, found.text
    error = found.json()["error"]
    assert said in error["message"]
    assert error["type"] == "invalid_request_error"
    if param is not None:
        assert error["param"] == param


def test_classes_of_the_client(scripted: Running) -> None:
    create = scripted.client().chat.completions.create
    with pytest.raises(openai.BadRequestError):
        create(model="tiny", messages=[])
    with pytest.raises(openai.NotFoundError) as missing:
        create(model="large", messages=USER)
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.NotFoundError):
        scripted.client().models.retrieve("large")
    assert scripted.client().models.retrieve("tiny").id == "tiny"
    assert [model.id for model in scripted.client().models.list()] == ["tiny"]


def test_paths_methods_and_types(scripted: Running) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", CHAT, 405),
        ("GET", "/v1/../etc/passwd", 404),
    ):
        found = httpx2.request(method, scripted.url + path)
        assert found.status_code == status
        assert found.json()["error"]["type"] == "invalid_request_error"
    assert httpx2.post(scripted.url + CHAT, content=b"{}").status_code == 415
    # What a page of another site may send without being asked.
    found = post(scripted, CHAT, chat(), **{"content-type": "text/plain"})
    assert found.status_code == 415


def test_templates_tell_nothing(scripted: Running) -> None:
    refused = post(scripted, CHAT, chat(messages=[{"role": "user", "content": "refuse"}]))
    assert (refused.status_code, "I will not" in refused.text) == (400, True)
    failed = post(scripted, CHAT, chat(messages=[{"role": "user", "content": "fail"}]))
    assert failed.status_code == 400
    assert "secret_name" not in failed.text
    assert "jinja" not in failed.text.lower()
    scripted.says(FINAL + "fine")
    assert post(scripted, CHAT, chat()).status_code == 200


def test_keys(start: Callable[..., Running]) -> None:
    made = start(ScriptedModel(vocabulary=484), Settings(api_keys=("one", "two")))
    made.says(FINAL + "yes")
    with pytest.raises(openai.AuthenticationError):
        made.client("three").models.list()
    assert made.client("two").models.list().data
    assert httpx2.get(made.url + "/metrics").status_code == 401
    assert httpx2.get(made.url + "/v1/models").status_code == 401
    assert httpx2.get(made.url + "/health").status_code == 200
    assert httpx2.get(made.url + "/").status_code == 200


@pytest.mark.parametrize("key", ["", " ", "key\n"])
def test_a_key_that_no_request_can_have_is_refused(key: str) -> None:
    with pytest.raises(RequestError, match="an API key must not be empty"):
        Settings(api_keys=("one", key))


@pytest.mark.parametrize("field", ["top_k", "max_tokens", "seed", "n", "top_logprobs"])
def test_huge_integers_are_no_failures(scripted: Running, field: str) -> None:
    scripted.says(FINAL + "yes")
    for sign in (1, -1):
        found = post(scripted, CHAT, chat(logprobs=True, **{field: sign * int("9" * 400)}))
        assert found.status_code == (200 if (field, sign) == ("top_k", 1) else 400), found.text


def test_limits_of_bodies(start: Callable[..., Running]) -> None:
    settings = Settings(body_bytes=1000, body_seconds=2.0, prompt_tokens=30)
    made = start(ScriptedModel(vocabulary=484), settings)
    assert post(made, CHAT, chat(user="x" * 2000)).status_code == 413
    # Chunks without a length, and a length without a body.
    chunks = (b"x" * 500 for _ in range(5))
    head = {"content-type": "application/json"}
    assert httpx2.post(made.url + CHAT, content=chunks, headers=head).status_code == 413
    connection = http.client.HTTPConnection("127.0.0.1", made.port, timeout=30)
    connection.putrequest("POST", CHAT)
    for name, value in (("content-type", "application/json"), ("content-length", "100")):
        connection.putheader(name, value)
    connection.endheaders(b'{"model"')
    assert connection.getresponse().status == 408
    long = post(made, TEXT, {"model": "tiny", "prompt": "x" * 100})
    assert (long.status_code, long.json()["error"]["code"]) == (400, "context_length_exceeded")


def test_a_full_queue_and_a_slow_answer(start: Callable[..., Running]) -> None:
    model = PagedModel(vocabulary=484, seconds=0.02, full_pages=300, window_pages=60, context=500)
    made = start(model, Settings(request_seconds=3.0), queue=1, sequences=1)
    never = {str(token): -100 for token in made.model.ends}
    body = {"model": "tiny", "prompt": "x", "max_tokens": 400, "logit_bias": never}
    found: list[httpx2.Response] = []

    def ask() -> None:
        found.append(post(made, TEXT, body))

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread, counted in zip(threads, ("running", "waiting"), strict=True):
        thread.start()
        while not getattr(made.model.engine.counts, counted):
            time.sleep(0.01)
    for _ in range(2):
        ask()
    for thread in threads:
        thread.join()
    assert [response.status_code for response in found] == [429, 429, 504, 504]
    turned_away = next(response for response in found if response.status_code == 429)
    assert int(turned_away.headers["retry-after"]) >= 1
    assert made.all_pages_are_free()
    with pytest.raises(openai.APIError, match="too long"):
        list(made.client().completions.create(**body, stream=True))
    assert made.all_pages_are_free()


def test_clients_that_leave(start: Callable[..., Running]) -> None:
    model = PagedModel(vocabulary=484, seconds=0.01, full_pages=300, window_pages=60, context=500)
    made = start(model)
    body = {"model": "tiny", "prompt": "x", "max_tokens": 450, "temperature": 0}
    for stream in (True, False):
        data = json.dumps({**body, "stream": stream}).encode()
        with socket.create_connection(("127.0.0.1", made.port)) as connection:
            head = f"POST {TEXT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            connection.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            if stream:
                connection.recv(100)
            while made.model.engine.counts.running == 0:
                time.sleep(0.01)
        before = made.model.engine.counts.generated_tokens
        assert made.all_pages_are_free()
        assert made.model.engine.counts.generated_tokens - before < 100
    # The middle of a stream, by the client's own way of leaving.
    stream = made.client().completions.create(**body, stream=True)
    next(iter(stream))
    stream.close()
    assert made.all_pages_are_free()


def test_a_model_that_fails(start: Callable[..., Running], monkeypatch: pytest.MonkeyPatch) -> None:
    model = ScriptedModel(vocabulary=484)
    made = start(model)
    made.says(FINAL + "yes")
    assert post(made, CHAT, chat()).status_code == 200

    def broken(plan: object) -> None:
        raise RuntimeError("at /secret/place")

    monkeypatch.setattr(model, "step", broken)
    failed = post(made, CHAT, chat())
    assert failed.status_code == 500
    assert "secret" not in failed.text
    assert post(made, CHAT, chat()).status_code == 503
    assert httpx2.get(made.url + "/health").status_code == 503


def test_metrics(scripted: Running) -> None:
    scripted.says(FINAL + "yes")
    assert post(scripted, CHAT, chat()).status_code == 200
    assert scripted.all_pages_are_free()
    lines = httpx2.get(scripted.url + "/metrics").text.splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    assert float(values['mxc_answers_total{model="tiny",reason="stop"}']) >= 1
    assert float(values['mxc_generated_tokens_total{model="tiny"}']) > 0
    assert float(values['mxc_pages{kind="0",model="tiny",use="used"}']) == 0
    assert float(values['mxc_time_to_first_token_seconds_count{model="tiny"}']) >= 1
    assert float(values['mxc_http_responses_total{status="200"}']) >= 1
    assert float(values["process_resident_memory_bytes"]) > 1 << 20


def test_answers_on_their_way_end_before_the_server_does(start: Callable[..., Running]) -> None:
    model = PagedModel(vocabulary=484, seconds=0.01, full_pages=300, window_pages=60, context=500)
    made = start(model)
    stream = made.client().completions.create(
        model="tiny", prompt="x", max_tokens=60, stream=True, temperature=0
    )
    chunks = iter(stream)
    next(chunks)
    stopping = threading.Thread(target=made.stop)
    stopping.start()
    rest = list(chunks)
    stopping.join()
    assert rest[-1].choices[0].finish_reason == "length"
    with pytest.raises(httpx2.ConnectError):
        httpx2.get(made.url + "/health")
