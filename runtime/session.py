"""Load an artifact and call its functions with numpy arrays.

All files are mapped and nothing is converted, because the weights are packed for the target
already. The artifact is checked (versions, files, CPU features) before any of its code runs, so
that a defect is reported as an error and not by a crash.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Items
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from iree import runtime as rt

from mxc.artifact.manifest import SCOPE, Function, Manifest, read_manifest
from mxc.artifact.parameter_archive import read_archive
from mxc.errors import ArtifactError, RequestError
from mxc.runtime import arrays
from mxc.runtime.device import device_uris, driver_of, open_devices, without_preempting
from mxc.runtime.entries import Entry
from mxc.runtime.integrity import check_files, check_model, check_version
from mxc.runtime.levels import CPU_DRIVERS, choose_level
from mxc.runtime.machine import physical_cores

if TYPE_CHECKING:
    from mxc.runtime.batch import Batch
    from mxc.runtime.completions.generate import OnePrompt
    from mxc.runtime.completions.stream import AnswerStream, Completion
    from mxc.runtime.completions.text_model import TextModel
    from mxc.runtime.sequence import Sequence
    from mxc.runtime.shared_pages import SharedPages
    from mxc.runtime.stateful import Stateful


def load(
    path: str | os.PathLike[str],
    *,
    device: str | None = None,
    threads: int | None = None,
    level: str | None = None,
    verify: bool = False,
) -> Model:
    """Map the artifact folder `path` and return it as a Model.

    device: an IREE device URI of the artifact's kind ("local-sync", "hip://1"), by default the
    first device. For an artifact for several devices, as many URIs, separated by ",". "simulator"
    runs an artifact for gfx950 or gfx942 on the simulator, without `threads` and `level`. threads:
    CPU worker threads of each device, by default all physical cores divided among the devices;
    results do not depend on it. level: the level of CPU features to run, by default the best that
    this machine may run. verify: checksum large weights too. The SHA-256 of all other files, and
    of weights up to 64 MiB, is always checked; of larger weights only the size.

    Raises ArtifactError for an artifact that is incomplete, altered, without its weights, written
    by another version, or not for this machine; RequestError for an unknown device or level, or a
    number of threads below 1.
    """
    folder = Path(path)
    if device == "simulator":
        from mxc.runtime.simulated import load as simulated

        return simulated(folder, verify=verify)
    manifest = read_manifest(folder)
    place = str(folder)
    check_version(manifest, place)
    if not manifest.weights_present:
        raise ArtifactError(
            f"{place}: compiled with --weights none: it can be inspected but not run; "
            "compile it again with its weights"
        )
    uris = device_uris(device, manifest, place)
    if threads is not None and threads < 1:
        raise RequestError(f"threads must be at least 1, got {threads}")
    chosen = choose_level(manifest, level, place)
    check_model(manifest, place)
    check_files(folder, manifest, verify=verify)
    # local-sync has no workers: the calling thread does the work.
    count = threads or max(1, physical_cores() // len(uris))
    if driver_of(uris[0]) == "local-sync":
        count = 1
    return Model(folder, manifest, chosen, open_devices(uris, count, place), count, ",".join(uris))


class Model:
    """A loaded artifact. Calls from several threads wait for each other.

    `manifest`: the artifact's manifest at the `level` that runs. `threads`: number of CPU worker
    threads of each device. `devices`: the iree.runtime.HalDevices that `uri` names, separated by
    ","; `device`: the first of them.
    """

    def __init__(
        self,
        path: Path,
        manifest: Manifest,
        level: str,
        devices: Items[Any],
        threads: int,
        uri: str,
    ) -> None:
        """Map module and weights; use `load` instead of calling this directly."""
        self._describe(path, manifest, level, devices, threads, uri)
        instance = rt.VmInstance()
        try:
            parameters = load_parameters(self.archives)
            self._module = rt.VmModule.wrap_buffer(instance, _mapped(self.module_file))
            self._context = rt.VmContext(
                instance,
                [
                    rt.create_hal_module(instance, devices=list(devices)),
                    rt.create_io_parameters_module(
                        instance, parameters.create_provider(scope=SCOPE)
                    ),
                    self._module,
                ],
            )
        except (RuntimeError, ValueError, IndexError) as error:
            raise ArtifactError(
                f"{path}: IREE cannot load it for {manifest.target.name} "
                f"({' '.join(str(error).split())}); compile the artifact again"
            ) from error
        self._entries = {
            name: Entry(self._module, name, function, self.module_file)
            for name, function in manifest.functions.items()
        }

    def _describe(
        self,
        path: Path,
        manifest: Manifest,
        level: str,
        devices: Items[Any],
        threads: int,
        uri: str,
    ) -> None:
        self.path = path
        self.manifest = manifest.at(level)
        self.level = level
        self.devices = tuple(devices)
        self.device = self.devices[0]
        self.threads = threads
        self.uri = uri
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self._text_model: TextModel | None = None
        # A weak reference, so that the pages are freed with the last sequence.
        self._shared_pages: weakref.ref[SharedPages] | None = None
        #: Called with the inputs of linear layers that a function returned, by their names in the
        #: manifest, as HalBufferViews; see mxc.runtime.observed.
        self.observer: Callable[[dict[str, Any]], None] | None = None
        self._process = os.getpid()

    @property
    def module_file(self) -> Path:
        """The compiled module of the level that runs."""
        return self.path / self.manifest.every_level[self.level].module

    @property
    def archives(self) -> tuple[Path, ...]:
        """The archives of the level's parameters."""
        return tuple(self.path / name for name in self.manifest.every_level[self.level].archives)

    @property
    def functions(self) -> dict[str, Function]:
        """The functions that may be called, with the types of arguments and results."""
        return self.manifest.functions

    @property
    def runs_on_cpu(self) -> bool:
        """Whether the device's buffers are in this process's memory."""
        return self.manifest.target.device in CPU_DRIVERS

    def call(self, name: str, *values: object) -> tuple[arrays.Array, ...]:
        """Call function `name` with arrays (numbers for rank 0); return a tuple of arrays.

        Arguments are never converted: shape and dtype must be those of `functions[name]`, where
        -1 is any extent, bf16 and f8 are the dtypes of ml_dtypes, and unsigned integers count as
        signless. Arguments and results are copies, so that the caller's arrays are not changed.
        Raises RequestError for an unknown function or an argument that does not fit.
        """
        entry = self.entry(name)
        wanted = entry.function.inputs
        if len(values) != len(wanted):
            raise RequestError(
                f"{name}: takes {len(wanted)} arguments "
                f"({', '.join(map(arrays.describe, wanted)) or 'none'}), got {len(values)}"
            )
        arguments = [
            entry.argument(self.device, index, value) for index, value in enumerate(values)
        ]
        return tuple(
            entry.result(self.device, index, value)
            for index, value in enumerate(self.invoke(name, arguments))
        )

    def stateful(self, name: str = "main", states: Mapping[str, Any] | None = None) -> Stateful:
        """Return function `name` as one that keeps the arguments which it changes in place.

        `states`: what these begin with, by name; zeros by default. Raises RequestError for a
        function that changes none, and for what does not fit.
        """
        from mxc.runtime.stateful import Stateful

        return Stateful(self, name, states or {})

    def invoke(self, name: str, arguments: Items[Any]) -> list[Any]:
        """Call function `name` with HalBufferViews and Python numbers, without checks.

        Results are HalBufferViews and numbers. A buffer that the program updates is changed in
        place and returned as a result; pages of keys and values are updated so. Raises RequestError
        in a process that was forked after the model was loaded.
        """
        entry = self.entry(name)
        if os.getpid() != self._process:
            # fork() copies no threads, so that the call would wait for missing workers forever.
            raise RequestError(
                f"{self.path}: was loaded before this process was forked; load it in this process"
            )
        inputs = rt.VmVariantList(len(arguments))
        for value in arguments:
            if isinstance(value, int):
                inputs.push_int(value)
            elif isinstance(value, float):
                inputs.push_float(value)
            else:
                inputs.push_ref(value)
        outputs = rt.VmVariantList(len(entry.output_is_tensor))
        with self._lock, without_preempting():
            self._context.invoke(entry.code, inputs, outputs)
        results = [
            outputs.get_as_object(index, rt.HalBufferView) if tensor else outputs.get_variant(index)
            for index, tensor in enumerate(entry.output_is_tensor)
        ]
        own = entry.function.own_results
        if own < len(results) and self.observer is not None:
            names = entry.function.output_names[own:]
            self.observer(dict(zip(names, results[own:], strict=True)))
        return results[:own]

    def sequence(self) -> Sequence:
        """Return a new, empty sequence; RequestError where this is not a language model."""
        from mxc.runtime.sequence import Sequence

        return Sequence(self)

    def batch(self) -> Batch:
        """Return a Batch, which decodes sequences together; RequestError as `sequence`."""
        from mxc.runtime.batch import Batch

        return Batch(self)

    def shared_pages(self) -> SharedPages:
        """Return the shared pages of its sequences, which live as long as a caller keeps them."""
        from mxc.runtime.shared_pages import SharedPages

        with self._opening:
            known = None if self._shared_pages is None else self._shared_pages()
            if known is None:
                known = SharedPages(self)
                self._shared_pages = weakref.ref(known)
            return known

    @overload
    def generate(
        self, prompt: OnePrompt, *, stream: Literal[True], **options: Any
    ) -> AnswerStream: ...

    @overload
    def generate(
        self,
        prompt: OnePrompt | Items[OnePrompt],
        *,
        stream: Literal[False] = False,
        **options: Any,
    ) -> Completion | list[Completion]: ...

    def generate(
        self, prompt: OnePrompt | Items[OnePrompt], *, stream: bool = False, **options: Any
    ) -> Completion | list[Completion] | AnswerStream:
        """Generate the answer to `prompt`: text, token ids, or the messages of a chat.

        A list of prompts is computed together and returns a list. stream: return the answer of one
        prompt as a Stream, to be read by `for`, or by `async for` and `await stream.complete()`.

        Options: max_new_tokens (default: as many as fit); temperature (0: the likeliest token),
        top_k, top_p, min_p, seed, presence_penalty, frequency_penalty, logit_bias; stop (a string
        or several, before which the answer ends); logprobs (how many of the likeliest tokens are
        listed with each token); tools (in OpenAI's format); json_schema or regex that the answer
        must match; special (special tokens are text); template (variables of the chat template).

        Raises RequestError for unknown or invalid options, ArtifactError where the artifact has no
        tokenizer.
        """
        from mxc.runtime.completions.generate import generate, start

        if stream:
            return start(self._texts(), cast("OnePrompt", prompt), **options)
        return generate(self._texts(), prompt, **options)

    def _texts(self) -> TextModel:
        """Return the TextModel, opened at the first call."""
        from mxc.runtime.completions.opened import open_text_model

        with self._opening:
            if self._text_model is None:
                self._text_model = open_text_model(self)
            return self._text_model

    def entry(self, name: str) -> Entry:
        """Return what is known of a function. Raises RequestError for an unknown one."""
        if name not in self._entries:
            raise RequestError(
                f"{self.path}: no function {name!r}; it has: {', '.join(self._entries) or 'none'}"
            )
        return self._entries[name]


def load_parameters(archives: Items[Path]) -> Any:
    """Map some archives and return their rt.ParameterIndex.

    Raises ArtifactError for a damaged header, which IREE does not check.
    """
    parameters = rt.ParameterIndex()
    for archive in archives:
        read_archive(archive, canonical=True)
        parameters.load(str(archive))
    return parameters


def _mapped(file: Path) -> mmap.mmap:
    """A file as memory, which is released when nothing refers to it.

    VmModule.mmap calls `close` on its memory, which ends the process where an exception is on its
    way: a Model may end with the frame that raised it.
    """
    with file.open("rb") as opened:
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
