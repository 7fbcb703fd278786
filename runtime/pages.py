"""Pages of KV cache: how many sequences use each, and what the full ones hold.

A full page is known by a hash of all tokens up to its end, so that another sequence that begins
with the same tokens uses it instead of computing it again. Full pages are never written again,
which is why sharing them needs no copy. A page that no sequence uses any more keeps what it holds
until its place is wanted; the one that was used longest ago goes first.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class PageCounts:
    """How many pages are in use, kept for their contents alone, and empty."""

    used: int
    cached: int
    free: int


class PagePool:
    """The pages 0 to `count` - 1 of one kind."""

    def __init__(self, count: int) -> None:
        """All pages are free."""
        self._free = list(reversed(range(count)))
        self._users = [0] * count
        self._key: dict[int, bytes] = {}
        self._page: dict[bytes, int] = {}
        #: Pages without users that hold something, the longest unused first.
        self._cached: OrderedDict[int, None] = OrderedDict()

    @property
    def available(self) -> int:
        """How many pages `new` can give."""
        return len(self._free) + len(self._cached)

    @property
    def counts(self) -> PageCounts:
        """Pages by what becomes of them."""
        unused = self.available
        return PageCounts(
            used=len(self._users) - unused, cached=len(self._cached), free=len(self._free)
        )

    @property
    def used(self) -> list[int]:
        """The pages that sequences use, ascending."""
        return [page for page, count in enumerate(self._users) if count]

    def grow(self, count: int) -> None:
        """Have `count` pages: those that are new are free."""
        known = len(self._users)
        self._free[:0] = reversed(range(known, count))
        self._users += [0] * (count - known)

    def new(self) -> int:
        """An empty page with one user; IndexError where `available` is 0."""
        if self._free:
            page = self._free.pop()
        elif self._cached:
            page, _ = self._cached.popitem(last=False)
            del self._page[self._key.pop(page)]
        else:
            raise IndexError("no page is available")
        self._users[page] = 1
        return page

    def find(self, key: bytes) -> int | None:
        """The page that holds what `key` says."""
        return self._page.get(key)

    def unused(self, pages: Iterable[int]) -> int:
        """How many of `pages` no sequence uses."""
        return sum(self._users[page] == 0 for page in pages)

    def unshared(self, pages: Iterable[int]) -> int:
        """How many of `pages` have one user."""
        return sum(self._users[page] == 1 for page in pages)

    def share(self, pages: Iterable[int]) -> None:
        """Note one more user of each of `pages`, which are in use or were found."""
        for page in pages:
            self._users[page] += 1
            self._cached.pop(page, None)

    def publish(self, page: int, key: bytes) -> None:
        """Note what a full page holds. Of two that hold the same, the first is known."""
        if key not in self._page and page not in self._key:
            self._page[key] = page
            self._key[page] = key

    def release(self, pages: Sequence[int]) -> None:
        """Note one user less of each of `pages`, the pages of one sequence in their order.

        The last goes first where places are wanted: without the pages before it, it is no use.
        """
        for page in reversed(pages):
            self._users[page] -= 1
            if self._users[page]:
                continue
            if page in self._key:
                self._cached[page] = None
            else:
                self._free.append(page)


def next_key(before: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a full page that holds `tokens`, after the page whose key is `before`."""
    return hashlib.blake2b(before + np.asarray(tokens, np.int32).tobytes(), digest_size=16).digest()


def page_keys(tokens: Sequence[int], page_size: int) -> list[bytes]:
    """The keys of all full pages of a sequence that begins with `tokens`."""
    keys: list[bytes] = []
    for end in range(page_size, len(tokens) + 1, page_size):
        keys.append(next_key(keys[-1] if keys else b"", tokens[end - page_size : end]))
    return keys
