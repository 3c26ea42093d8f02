"""A runtime: threads and loaded plugins."""

from __future__ import annotations

import ctypes
import json
import os
from typing import TYPE_CHECKING, Any, Optional

from ._abi import attnkit_runtime_options, sized
from ._arguments import MOST_THREADS, c_text, integer
from ._call import Handle, make, text_of
from ._library import load

if TYPE_CHECKING:
    from ._types import Path


class Runtime(Handle):
    """threads: used by one call, 1 to 1024, 0: one per processor that the process may use; plugin_path: folders separated by ':', searched first.

    library: path of libattnkit, where ATTNKIT_LIBRARY and the place beside this package are not meant.
    device_type: 1, the CPU, or 2, CUDA, for blocks and models; 0: blocks on the CPU, models where their manifests say.
    """

    def __init__(self, threads: int = 0, plugin_path: str = "", library: Optional[Path] = None, device_type: int = 0) -> None:
        integer(threads, "threads", ctypes.c_uint32, MOST_THREADS)
        loaded = load(library)
        options = sized(attnkit_runtime_options, threads=threads, plugin_path=c_text(plugin_path, "plugin_path"),
                        device_type=device_type)
        self.threads = threads or len(os.sched_getaffinity(0))
        super().__init__(loaded, make(loaded.attnkit_runtime_destroy, loaded.attnkit_runtime_create, ctypes.byref(options)))

    def describe(self) -> Any:
        """"attnkit.runtime/1": search path, plugins with options and costs, skipped files with the reason."""
        return json.loads(text_of(self._library, self._library.attnkit_runtime_describe, self.pointer))

    def list(self) -> Any:
        """"attnkit.plugin-list/1": the loaded plugins, without calling them."""
        return json.loads(text_of(self._library, self._library.attnkit_runtime_list, self.pointer))


def version(library: Optional[Path] = None) -> str:
    """The library's version, such as "0.1.0"."""
    return str(load(library).attnkit_version().decode())


def abi_minor(library: Optional[Path] = None) -> int:
    """The minor of the ABI that the library was built for."""
    return int(load(library).attnkit_abi_minor())
