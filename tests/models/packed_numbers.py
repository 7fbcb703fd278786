"""What is packed for a model, as numbers: elements and scales from the bytes of the archive."""

import numpy as np
from numpy.typing import NDArray

from mxc.artifact.manifest import BLOCKS, SCALES
from mxc.compiler.checkpoints.files.tensors import DTYPES
from mxc.compiler.models.blocks.weights import TENSOR_SCALES
from mxc.compiler.models.model import BoundModel
from mxc.compiler.packing.items import PackingFindings, PackItem, archive_bytes
from mxc.formats.formats import F32, INT4, INT8
from mxc.formats.packing import decode_elements, decode_scales

Numbers = dict[str, NDArray[np.float32]]


def read(item: PackItem) -> NDArray[np.uint8]:
    return archive_bytes(item, item.reader(), 0, item.units[0], PackingFindings())


def numbers(model: BoundModel) -> Numbers:
    """What is packed for each parameter, as float32 in the parameter's shape."""
    found: Numbers = {}
    items = {item.key: item for item in model.pack_items({})}
    for bound in model.bound:
        key, shape, format = bound.key, bound.parameter.shape, bound.blocks
        if format is None:
            raw = read(items[key]).view(DTYPES[items[key].dtype])
            found[key] = raw.astype(np.float32).reshape(shape)
            continue
        rows = int(np.prod(shape[:-1]))
        elements = decode_elements(read(items[key + BLOCKS]).reshape(rows, -1), format)
        if format.unit_scales:
            scales = np.ones((rows, 1), np.float32)
        elif format.scale == F32:
            # Integers are whole numbers here, of which elements are multiples of the least.
            whole = format.element in (INT4, INT8)
            scales = read(items[key + SCALES]).view(np.float32).reshape(rows, -1)
            scales = scales / format.element.min_positive if whole else scales
        else:
            scales = decode_scales(read(items[key + SCALES]).reshape(rows, -1), format)
        if format.tensor_scale:
            scales = scales * read(items[key + TENSOR_SCALES]).view(np.float32)[:, None]
        values = elements.reshape(rows, scales.shape[1], -1) * scales[..., None]
        found[key] = values.reshape(shape)
    return found
