"""What is packed for a model, as numbers: elements and scales from the bytes of the archive."""

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import BLOCKS, SCALES
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.models.model import BoundModel
from mxc.compiler.packing.items import PackingFindings, PackItem, archive_bytes
from mxc.formats.formats import FORMATS
from mxc.formats.packing import decode_elements, decode_scales

Numbers = dict[str, NDArray[np.float32]]


def read(item: PackItem) -> NDArray[np.uint8]:
    return archive_bytes(item, item.reader(), 0, item.units[0], PackingFindings())


def numbers(model: BoundModel) -> Numbers:
    """What is packed for each parameter, as float32 in the parameter's shape."""
    found: Numbers = {}
    items = {item.key: item for item in model.pack_items({})}
    for bound in model.bound:
        key, shape = bound.key, bound.parameter.shape
        if bound.format not in FORMATS:
            raw = read(items[key]).view(DTYPES[items[key].dtype])
            found[key] = raw.astype(np.float32).reshape(shape)
            continue
        format = FORMATS[bound.format]
        rows = int(np.prod(shape[:-1]))
        elements = decode_elements(read(items[key + BLOCKS]).reshape(rows, -1), format)
        scales = decode_scales(read(items[key + SCALES]).reshape(rows, -1), format)
        if format.tensor_scale:
            scales = scales * read(items[f"{key}_tensor_scales"]).view(np.float32)[:, None]
        values = elements.reshape(rows, -1, format.block) * scales[..., None]
        found[key] = values.reshape(shape)
    return found
