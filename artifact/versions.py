"""The installed versions of mxc and IREE."""

from importlib import metadata


def mxc_version() -> str:
    """The installed version of mxc, as the manifest states it."""
    return metadata.version("mxc")


def iree_version() -> str:
    """The installed version of IREE, as the manifest states it: that of compiler and runtime."""
    return metadata.version("iree-base-runtime")
