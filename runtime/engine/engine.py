"""The engine: one thread that runs a model for many requests at a time.

Each iteration takes in new requests and cancellations, asks the schedule for the next step,
computes it, draws a token for every sequence whose known tokens are all computed, and calls the
listeners. The tokens of a request do not depend on the other requests: the rows of a step are
independent of each other, and each request has a random generator of its own.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from mxc.errors import MxcError, RequestError
from mxc.runtime.engine.choice import Choice
from mxc.runtime.engine.job import Job, step_plan
from mxc.runtime.engine.request import CANCELLED, ERROR, LENGTH, STOP, Outcome, Request
from mxc.runtime.engine.schedule import PageLimits, RequestWork, StepLimits, schedule
from mxc.runtime.option_checks import whole, whole_number
from mxc.runtime.page_store import PageStore, SequencePages, StoreCounts
from mxc.runtime.pages import next_key, page_keys
from mxc.runtime.steps import StepModel

#: Results of `Engine._wait`: there is work, there was none for a while, the engine is closing.
_WORK, _IDLE, _CLOSED = "work", "idle", "closed"
#: Seconds without a request after which the thread ends.
_IDLE_SECONDS = 2.0


class QueueFull(RequestError):
    """The queue of waiting requests is full; try again later."""


class EngineStopped(MxcError):
    """The engine was closed, or a step of its model failed."""


@dataclass(frozen=True, kw_only=True)
class EngineCounts:
    """Counters of the engine.

    `running`, `waiting` and `store` are current; the others are totals since the start.
    `prompt_tokens` counts the prompt tokens that were computed, `cached_tokens` those that the
    prefix cache had.
    """

    running: int
    waiting: int
    store: StoreCounts
    steps: int
    prompt_tokens: int
    generated_tokens: int
    cached_tokens: int
    preemptions: int


class Engine:
    """Runs requests on a model until it is closed. Its methods may be called from any thread."""

    def __init__(
        self, model: StepModel, limits: StepLimits | None = None, queue: int = 1024
    ) -> None:
        """Create an engine; its thread starts with the first request.

        queue: how many requests may wait; further ones raise QueueFull. The thread ends after
        _IDLE_SECONDS without a request, so that an unused engine is freed with its model.
        """
        self.model = model
        asked = limits or StepLimits()
        self.limits = replace(
            asked,
            tokens=min(asked.tokens, model.rows),
            sequences=min(asked.sequences, model.states or asked.sequences, model.rows),
        )
        self._queue = queue
        self._store = PageStore(model, self.limits.tokens)
        self._pages = PageLimits(page_size=model.page_size, most=self._store.most)
        self._changed = threading.Condition()
        self._inbox: list[Job] = []
        self._running: list[Job] = []
        self._waiting: list[Job] = []
        self._numbers = 0
        self._closing = False
        self._failure: BaseException | None = None
        self._steps = self._computed = self._generated = self._cached = self._preemptions = 0
        self._thread: threading.Thread | None = None

    @property
    def longest(self) -> int:
        """The most tokens of a sequence, as limited by the model and by its pages."""
        return self._store.longest

    @property
    def failure(self) -> BaseException | None:
        """The exception that ended the engine; None if there was none."""
        return self._failure

    @property
    def counts(self) -> EngineCounts:
        """The current counters."""
        with self._changed:
            return EngineCounts(
                running=len(self._running),
                waiting=len(self._waiting) + len(self._inbox),
                store=self._store.counts,
                steps=self._steps,
                prompt_tokens=self._computed,
                generated_tokens=self._generated,
                cached_tokens=self._cached,
                preemptions=self._preemptions,
            )

    def submit(self, request: Request) -> Handle:
        """Queue a request, whose listener is called with its tokens and its outcome.

        Raises RequestError for a prompt or options that the model cannot take, QueueFull where too
        many requests wait, and EngineStopped after `close` or a failure.
        """
        prompt = self._checked(request)
        choice = Choice(request.sampling, request.grammar, self.model.vocabulary)
        keys = page_keys(prompt, self.model.page_size)
        with self._changed:
            if self._closing or self._failure is not None:
                raise EngineStopped("the engine has stopped; it takes no more requests")
            if len(self._waiting) + len(self._inbox) >= self._queue:
                raise QueueFull(f"{self._queue} requests wait already; try again later")
            self._numbers += 1
            job = Job(self._numbers, request, choice, prompt, keys, time.monotonic())
            self._inbox.append(job)
            self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="mxc-engine", daemon=True)
                self._thread.start()
        return Handle(self, job)

    def close(self) -> None:
        """End all requests with EngineStopped, and end the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
            thread = self._thread
        if thread is not None:
            thread.join()

    def cancel(self, job: Job) -> None:
        """Mark a request as cancelled; no effect on a request that has ended."""
        with self._changed:
            job.cancelled = True
            self._changed.notify()

    def _checked(self, request: Request) -> list[int]:
        prompt, vocabulary = list(request.prompt), self.model.vocabulary
        if not prompt:
            raise RequestError("the prompt has no token; there is nothing to continue")
        other = next((token for token in prompt if whole(token) is None), None)
        if other is not None:
            raise RequestError(f"wanted whole numbers as tokens of the prompt, found {other!r}")
        outside = next((token for token in prompt if not 0 <= token < vocabulary), None)
        if outside is not None:
            raise RequestError(
                f"token {outside} of the prompt is outside of the vocabulary, 0 to {vocabulary - 1}"
            )
        whole_number("the number of new tokens", request.max_tokens, 1)
        # The last token is never fed.
        if len(prompt) + request.max_tokens - 1 > self.longest:
            raise RequestError(
                f"a prompt of {len(prompt)} tokens and {request.max_tokens} new ones are more than "
                f"the {self.longest} tokens that a sequence may have"
            )
        return prompt

    def _run(self) -> None:
        try:
            while (there := self._wait()) == _WORK:
                self._iterate()
            if there == _IDLE:
                return
            error: BaseException = EngineStopped("the engine was closed")
        except BaseException as failure:
            # A step that failed leaves the pages in an unknown state.
            self._failure = error = failure
        with self._changed:
            self._closing = True
            left = self._running + self._waiting + self._inbox
            self._inbox = []
        for job in left:
            self._end(job, ERROR, error)

    def _wait(self) -> str:
        """Wait for work; move new requests to the waiting ones and end cancelled ones."""
        with self._changed:
            while not (self._inbox or self._running or self._waiting or self._closing):
                if not self._changed.wait(_IDLE_SECONDS):
                    self._thread = None
                    return _IDLE
            self._waiting += self._inbox
            self._inbox = []
            if self._closing:
                return _CLOSED
        for job in [job for job in self._running + self._waiting if job.cancelled]:
            self._end(job, CANCELLED)
        return _WORK

    def _iterate(self) -> None:
        chosen = schedule(
            [self._work(job) for job in self._running],
            self._candidates(),
            self._store.available,
            self._pages,
            self.limits,
        )
        for number in chosen.preempted:
            self._preempt(number)
        if not chosen.chunks:
            return
        known = {job.number: job for job in self._running + self._waiting}
        chunks = [(known[chunk.number], chunk) for chunk in chosen.chunks]
        # Shared pages are taken first, because allocating a new page may evict an unused one.
        opened = [job.pages or self._admit(job) for job, _ in chunks]
        for pages, (job, chunk) in zip(opened, chunks, strict=True):
            self._store.extend(pages, job.computed + chunk.count)
        logits = self.model.step(step_plan(chunks, self.model))
        self._steps += 1
        row = 0
        for job, chunk in chunks:
            job.computed += chunk.count
            if not job.generated:
                self._computed += chunk.count
            self._publish(job)
            if job.computed == len(job.tokens):
                self._draw(job, logits[row])
                row += 1

    def _work(self, job: Job) -> RequestWork:
        assert job.pages is not None
        return RequestWork(
            number=job.number,
            tokens=len(job.tokens),
            computed=job.computed,
            unshared=self._store.unshared(job.pages),
            unused=(0,) * len(self.model.kinds),
        )

    def _candidates(self) -> Iterator[RequestWork]:
        """Yield waiting requests, except those whose next page another request is computing."""
        if not self._waiting:
            return
        soon = {key for job in self._running for key in job.keys[job.published :]}
        for job in self._waiting:
            keys = self._shareable(job)
            found = self._store.match(keys)
            if found < len(keys) and keys[found] in soon and not self.model.states:
                continue
            soon.update(keys[found:])
            yield RequestWork(
                number=job.number,
                tokens=len(job.tokens),
                computed=found * self.model.page_size,
                unshared=(0,) * len(self.model.kinds),
                unused=self._store.unused(keys, found),
            )

    def _shareable(self, job: Job) -> list[bytes]:
        """Return the keys of the full pages that may come from the prefix cache.

        The page with the last token is left out: that token is always computed, for its logits.
        """
        return job.keys[: (len(job.tokens) - 1) // self.model.page_size]

    def _admit(self, job: Job) -> SequencePages:
        keys = self._shareable(job)
        found = self._store.match(keys)
        job.pages = self._store.open(keys, found)
        job.published = found
        job.computed = found * self.model.page_size
        if job.started is None:
            job.started = time.monotonic()
            job.cached = job.computed
            self._cached += job.cached
        self._waiting.remove(job)
        self._running.append(job)
        self._running.sort(key=_number)
        return job.pages

    def _preempt(self, number: int) -> None:
        job = next(job for job in self._running if job.number == number)
        self._release(job)
        self._running.remove(job)
        self._waiting.append(job)
        self._waiting.sort(key=_number)
        self._preemptions += 1

    def _publish(self, job: Job) -> None:
        """Publish the keys of full pages, and release the pages that no window reaches any more."""
        assert job.pages is not None
        size = self.model.page_size
        while (job.published + 1) * size <= job.computed:
            at = job.published
            if at == len(job.keys):
                before = job.keys[-1] if job.keys else b""
                job.keys.append(next_key(before, job.tokens[at * size : (at + 1) * size]))
            self._store.publish(job.pages, at, job.keys[at])
            job.published += 1
        self._store.trim(job.pages, job.computed)

    def _draw(self, job: Job, logits: NDArray[np.float32]) -> None:
        request = job.request
        try:
            drawn = job.choice(logits)
            job.tokens.append(drawn.token)
            job.generated += 1
            self._generated += 1
            if job.first_token is None:
                job.first_token = time.monotonic()
            reason = request.listener.drawn(drawn)
        except Exception as error:  # ends this request only; the others continue
            self._end(job, ERROR, error)
            return
        if reason is None and (drawn.token in request.ends or job.choice.complete):
            reason = STOP
        if reason is None and job.generated >= request.max_tokens:
            reason = LENGTH
        if reason is not None:
            self._end(job, reason)

    def _release(self, job: Job) -> None:
        if job.pages is not None:
            self._store.close(job.pages)
        job.pages, job.computed, job.published = None, 0, 0

    def _end(self, job: Job, reason: str, error: BaseException | None = None) -> None:
        self._release(job)
        with self._changed:
            for jobs in (self._running, self._waiting):
                if job in jobs:
                    jobs.remove(job)
        job.request.listener.ended(
            Outcome(
                reason=reason,
                prompt_tokens=len(job.request.prompt),
                generated_tokens=job.generated,
                cached_tokens=job.cached,
                submitted=job.submitted,
                started=job.started,
                first_token=job.first_token,
                ended=time.monotonic(),
                error=error,
            )
        )


class Handle:
    """A submitted request, which can be cancelled."""

    def __init__(self, engine: Engine, job: Job) -> None:
        """Created by Engine.submit."""
        self._engine, self._job = engine, job

    def cancel(self) -> None:
        """End the request after the running step; no effect on a request that has ended."""
        self._engine.cancel(self._job)


def _number(job: Job) -> int:
    return job.number
