"""Arrays without numpy: shaped memoryviews, and an array that is lent by DLPack alone."""

import array
import ctypes

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.argtypes, new_capsule.restype = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p), ctypes.py_object


def shaped(values, *shape, kind="f"):
    return memoryview(array.array(kind, values)).cast("B").cast(kind, shape)


class DLTensor(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
                ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("byte_offset", ctypes.c_uint64), ("manager", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class Lent:
    """Numbers that are no buffer of Python, only a capsule, as those of torch; strides None: contiguous."""

    def __init__(self, values, shape, strides=None, kind="f", device=1):
        self.values = array.array(kind, values)
        self.shape = (ctypes.c_int64 * len(shape))(*shape)
        self.strides = None if strides is None else (ctypes.c_int64 * len(shape))(*strides)
        self.tensor = DLTensor(self.values.buffer_info()[0], device, 0, len(shape), 2 if kind == "f" else 0, 32, 1,
                               ctypes.addressof(self.shape), self.strides and ctypes.addressof(self.strides), 0)

    def __dlpack_device__(self):
        return self.tensor.device_type, 0

    def __dlpack__(self):
        return new_capsule(ctypes.addressof(self.tensor), b"dltensor", None)

    def __len__(self):
        return self.shape[0]
