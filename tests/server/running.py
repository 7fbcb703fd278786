"""A server that a test talks to."""

import time
from collections.abc import Callable
from dataclasses import dataclass

import openai

from mxc.runtime.completions.text_model import TextModel
from tests.runtime.engine.scripted_model import script_of

#: How answers of gpt-oss begin: the answer itself, and a thought before it.
FINAL = "<|channel|>final<|message|>"
THOUGHT = "<|channel|>analysis<|message|>Let me see.<|end|><|start|>assistant"

#: A template that shows what it was given: tools, calls, results, effort.
TEMPLATE = """\
{%- for message in messages -%}
  {%- if message.role not in ('system', 'developer', 'user', 'assistant', 'tool') -%}
    {{- raise_exception('unknown role ' ~ message.role) -}}
  {%- endif -%}
  {%- if message.content == 'fail' -%}{{- message.nothing.secret_name() -}}{%- endif -%}
  {%- if message.content == 'refuse' -%}{{- raise_exception('I will not') -}}{%- endif -%}
  {{- '<|start|>' ~ message.role -}}
  {%- for call in message.tool_calls or [] -%}
    {{- ' to=functions.' ~ call.function.name ~ '<|message|>' -}}
    {{- call.function.arguments | tojson ~ '<|call|>' -}}
  {%- endfor -%}
  {{- '<|message|>' ~ message.content ~ '<|end|>' -}}
{%- endfor -%}
{%- if tools -%}{{- tools | tojson -}}{%- endif -%}
{%- if reasoning_effort -%}{{- 'effort ' ~ reasoning_effort -}}{%- endif -%}
{{- '<|start|>assistant' -}}
"""


@dataclass
class Running:
    """A server that runs."""

    port: int
    models: dict[str, TextModel]
    stop: Callable[[], None]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, key: str = "any") -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=key, max_retries=0, timeout=60)

    @property
    def model(self) -> TextModel:
        return self.models["tiny"]

    def says(self, answer: str) -> None:
        """What the scripted model answers from now on."""
        text = self.model.text
        script_of(self.model).answer = text.encode(answer) + text.encode("<|return|>")

    def all_pages_are_free(self) -> bool:
        """Whether no request holds a page, which a cancelled one may for another step."""
        for _ in range(200):
            counts = [each.engine.counts for each in self.models.values()]
            if all(c.running + c.waiting == 0 for c in counts):
                break
            time.sleep(0.02)
        return all(
            pages.used == 0
            for each in self.models.values()
            for pages in each.engine.counts.store.pages
        )
