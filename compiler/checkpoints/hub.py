"""Checkpoints by their name on the Hugging Face hub: `ORG/NAME`, or `ORG/NAME/FILE.gguf`.

  openai/gpt-oss-20b -> ~/.cache/huggingface/hub/models--openai--gpt-oss-20b/snapshots/6cee5e8..

huggingface_hub finds the files in its cache, or downloads them and shows progress. Files in the
cache are used without asking the hub for newer ones; --revision selects another branch, tag or
commit. Only files that a reader of mxc opens are downloaded: no pickles, no code, no copies for
other libraries.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mxc.errors import CheckpointError, RequestError

__all__ = ["located", "origin"]

#: Files of a repository that are downloaded: tensors, configs and tokenizers.
FILES = ("*.safetensors", "*.json", "*.jinja", "*.txt", "*.model")
#: Files that are left out: copies for other libraries in subfolders (gpt-oss has original/ and
#: metal/), and those for Mistral's own library.
LEFT_OUT = ("*/*", "consolidated*")

_PART = r"[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?"
_NAME = re.compile(rf"(?P<repository>{_PART}/{_PART})(?:/(?P<file>[\w./-]+\.gguf))?")
#: A name with one of these suffixes is a file, never a repository.
_FILES_HERE = (".mlir", ".mlirbc", ".stablehlo", ".pt2", ".safetensors", ".gguf", ".json")


def located(source: str | Path, revision: str | None = None) -> Path:
    """Return the path of a checkpoint: `source` if it exists, else a snapshot of the hub.

    A `source` that is neither is returned for its reader to refuse. Raises RequestError for a
    revision of something that is no repository, and if huggingface_hub is not installed;
    CheckpointError, which names the repository, if it is neither in the cache nor can be
    downloaded.
    """
    path = Path(source)
    named = None if path.exists() else _NAME.fullmatch(path.as_posix())
    if named is not None and named["file"] is None and path.suffix in _FILES_HERE:
        named = None
    if named is None:
        if revision is not None:
            raise RequestError(
                f"--revision {revision}: {source} is no repository of the hub (ORG/NAME); "
                "leave --revision out"
            )
        return path
    hub = _library(str(source))
    try:
        return Path(_cached_or_downloaded(hub, named["repository"], named["file"], revision))
    except hub.errors.GatedRepoError:
        raise CheckpointError(
            f"{source}: the owner grants access to this repository one by one; ask for it on its "
            "page on huggingface.co, then log in with `hf auth login`"
        ) from None
    except hub.errors.RepositoryNotFoundError:
        raise CheckpointError(
            f"{source}: no such folder here, and no such repository on the hub, or none that you "
            "may read; check the name, or log in with `hf auth login`"
        ) from None
    except hub.errors.RevisionNotFoundError:
        raise CheckpointError(
            f"{source}: the repository has no revision {revision!r}; give a branch, tag or commit"
        ) from None
    except hub.errors.RemoteEntryNotFoundError:
        raise CheckpointError(
            f"{source}: the repository has no file {named['file']}; its page lists them"
        ) from None
    except (hub.errors.EntryNotFoundError, hub.errors.HfHubHTTPError, OSError) as error:
        raise CheckpointError(
            f"{source}: no such folder here, not whole in the cache of the hub "
            f"({hub.constants.HF_HUB_CACHE}), and it cannot be downloaded ({_first_line(error)}); "
            "download it where there is a network (`hf download`), or give a folder"
        ) from None


def origin(path: Path) -> tuple[str, str] | None:
    """Return the name (see `located`) and the commit of a path in the cache of the hub; None for
    other paths."""
    for snapshots in path.absolute().parents:
        if snapshots.name == "snapshots" and snapshots.parent.name.startswith("models--"):
            repository = snapshots.parent.name.removeprefix("models--").replace("--", "/")
            commit, *file = path.absolute().relative_to(snapshots).parts
            return "/".join([repository, *file]), commit
    return None


def _cached_or_downloaded(hub: Any, repository: str, file: str | None, revision: str | None) -> str:
    """Return the path in the cache. A complete snapshot there is used without a request to
    the hub."""
    try:
        found: str = _get(hub, repository, file, revision, local_files_only=True)
    except hub.errors.LocalEntryNotFoundError:
        return str(_get(hub, repository, file, revision, local_files_only=False))
    if file is None and not any(Path(found).glob("*.safetensors")):
        # If only a config was requested before, the cache may not know the list of files.
        return str(_get(hub, repository, file, revision, local_files_only=False))
    return found


def _get(hub: Any, repository: str, file: str | None, revision: str | None, **options: Any) -> Any:
    if file is not None:
        return hub.hf_hub_download(repository, file, revision=revision, **options)
    return hub.snapshot_download(
        repository,
        revision=revision,
        allow_patterns=list(FILES),
        ignore_patterns=list(LEFT_OUT),
        **options,
    )


def _library(source: str) -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.errors
    except ImportError:
        raise RequestError(
            f"{source}: no such folder here; to have it from the Hugging Face hub install "
            "huggingface_hub (pip install 'mxc[hub]')"
        ) from None
    return huggingface_hub


def _first_line(error: BaseException) -> str:
    """Return the first line of an error. Further lines are advice for callers of the library."""
    return (str(error).strip() or type(error).__name__).splitlines()[0][:200]
