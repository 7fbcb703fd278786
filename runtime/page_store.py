"""Page lists of sequences, for each kind of pages that a model has, and their shared prefixes.

Where layers have a sliding window, a sequence releases pages that no later token sees. A prefix can
then be shared if the pages in the window of its end are still held.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field

from mxc.errors import RequestError
from mxc.runtime.pages import PageCounts, PagePool
from mxc.runtime.steps import StepModel


@dataclass(eq=False)
class SequencePages:
    """The pages of one sequence, and its slot of recurrent states, if any.

    `lists`: the page list of each kind. `first`: for each kind, the index of the first entry that
    is still held.
    """

    lists: list[array[int]]
    first: list[int]
    state: int | None = None

    def held(self, kind: int) -> array[int]:
        """Return the held pages of a kind."""
        return self.lists[kind][self.first[kind] :]


@dataclass(frozen=True, kw_only=True)
class StoreCounts:
    """Page counts of each kind, and the number of state slots in use."""

    pages: tuple[PageCounts, ...] = field(default_factory=tuple)
    states_used: int = 0


class PageStore:
    """Allocates a model's pages and state slots to sequences."""

    def __init__(self, model: StepModel, step_tokens: int) -> None:
        """Create the pools, all pages free. Raises RequestError for a model without pages.

        step_tokens: the most tokens of a step, which bound the pages of a window.
        """
        self._model = model
        self._kinds = model.kinds
        self._size = size = model.page_size
        self._pools = [PagePool(kind.pages) for kind in model.kinds]
        self._stateful = bool(model.states)
        self._states = model.states
        self._free_states = list(reversed(range(model.states)))
        most: list[int] = []
        longest = model.context
        for kind in model.kinds:
            window = kind.window
            if window is None or -(-window // size) + 2 > kind.pages:
                longest = min(longest, kind.pages * size)
            seen = longest if window is None else window + step_tokens
            most.append(min(kind.pages, -(-seen // size) + 1))
        if longest < 1:
            raise RequestError("the model has no pages for its KV cache")
        #: The most pages of each kind that a sequence holds at once. For kinds with a window it
        #: does not grow with the sequence.
        self.most = tuple(most)
        #: The most tokens that one sequence may have.
        self.longest = longest

    @property
    def available(self) -> tuple[int, ...]:
        """Number of pages of each kind that can be allocated."""
        return tuple(pool.available for pool in self._pools)

    @property
    def counts(self) -> StoreCounts:
        """The pages and state slots in use."""
        return StoreCounts(
            pages=tuple(pool.counts for pool in self._pools),
            states_used=self._states - len(self._free_states),
        )

    @property
    def used(self) -> tuple[list[int], ...]:
        """The pages that sequences use, of each kind."""
        return tuple(pool.used for pool in self._pools)

    @property
    def free_states(self) -> int:
        """Number of free slots of recurrent states."""
        return len(self._free_states)

    def grow(self) -> None:
        """Grow to the number of pages and state slots that the model has now."""
        for pool, kind in zip(self._pools, self._model.kinds, strict=True):
            pool.grow(kind.pages)
        self._free_states[:0] = reversed(range(self._states, self._model.states))
        self._states = self._model.states

    def match(self, keys: Sequence[bytes]) -> int:
        """Return how many leading full pages of a sequence with these page keys are cached.

        Always 0 for models with recurrent states, which pages alone do not restore.
        """
        if self._stateful:
            return 0
        count = 0
        for key in keys:
            if any(
                kind.window is None and pool.find(key) is None
                for kind, pool in zip(self._kinds, self._pools, strict=True)
            ):
                break
            count += 1
        while count and any(None in self._found(keys, kind, count) for kind in self._each):
            count -= 1
        return count

    def unused(self, keys: Sequence[bytes], count: int) -> tuple[int, ...]:
        """Return how many of the first `count` pages, found by `match`, have no user, by kind."""
        return tuple(
            self._pools[kind].unused(_known(self._found(keys, kind, count))) for kind in self._each
        )

    def unshared(self, pages: SequencePages) -> tuple[int, ...]:
        """Return how many pages of each kind become available when a sequence is closed."""
        return tuple(pool.unshared(pages.held(kind)) for kind, pool in enumerate(self._pools))

    def open(self, keys: Sequence[bytes], count: int) -> SequencePages:
        """Open a sequence that begins with the first `count` pages, found by `match`."""
        lists, first = [], []
        for kind in self._each:
            found = _known(self._found(keys, kind, count))
            self._pools[kind].share(found)
            gone = count - len(found)
            lists.append(array("i", [0] * gone + found))
            first.append(gone)
        state = self._free_states.pop() if self._stateful else None
        return SequencePages(lists, first, state)

    def fork(self, pages: SequencePages, tokens: int) -> SequencePages:
        """Open a copy of a sequence, which has `tokens` tokens.

        Full pages are shared. The copy gets a new page in place of a partial last page, and a state
        slot of its own; the caller copies their contents. The caller makes sure that a page of each
        kind and a state slot are free.
        """
        full, partial = divmod(tokens, self._size)
        lists = []
        for pool, held, first in zip(self._pools, pages.lists, pages.first, strict=True):
            pool.share(held[first:full])
            own = held[:full]
            if partial:
                own.append(pool.new())
            lists.append(own)
        state = self._free_states.pop() if self._stateful else None
        return SequencePages(lists, list(pages.first), state)

    def needed(self, pages: SequencePages, tokens: int) -> int:
        """Return how many new pages of each kind `extend` allocates."""
        return max(0, -(-tokens // self._size) - len(pages.lists[0]))

    def extend(self, pages: SequencePages, tokens: int) -> None:
        """Allocate the pages that a sequence needs for `tokens` tokens in total."""
        for pool, held in zip(self._pools, pages.lists, strict=True):
            while len(held) * self._size < tokens:
                held.append(pool.new())

    def publish(self, pages: SequencePages, index: int, key: bytes) -> None:
        """Make the full page `index` of a sequence findable by `key`."""
        for kind, pool in enumerate(self._pools):
            if not self._stateful and index >= pages.first[kind]:
                pool.publish(pages.lists[kind][index], key)

    def trim(self, pages: SequencePages, computed: int) -> None:
        """Release the pages that no token after the first `computed` ones sees."""
        for number, kind in enumerate(self._kinds):
            seen = kind.first_seen(computed) // self._size
            gone = pages.lists[number][pages.first[number] : seen]
            self._pools[number].release(gone)
            pages.first[number] += len(gone)

    def close(self, pages: SequencePages) -> None:
        """Release all pages and the state slot of a sequence."""
        for kind, pool in enumerate(self._pools):
            pool.release(pages.held(kind))
        if pages.state is not None:
            self._free_states.append(pages.state)

    @property
    def _each(self) -> range:
        return range(len(self._pools))

    def _found(self, keys: Sequence[bytes], kind: int, count: int) -> list[int | None]:
        """Return the cached pages of a kind that the tokens after `count` full pages see."""
        first = self._kinds[kind].first_seen(count * self._size) // self._size
        return [self._pools[kind].find(key) for key in keys[first:count]]


def _known(pages: Sequence[int | None]) -> list[int]:
    return [page for page in pages if page is not None]
