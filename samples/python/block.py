"""One mechanism by itself: three tokens, causal."""

import array

import attnkit


def column(*values):
    return memoryview(array.array("f", values)).cast("B").cast("f", (1, 1, len(values), 1))


block = attnkit.Block(attnkit.Runtime(threads=1), "relu", "decoder.self", d_model=1, heads=1)
tensors = {"q": column(1, 1, 1), "k": column(1, 3, 4), "v": column(10, 20, 40)}
print(*block.run(block.request(queries=3, keys=3), tensors).output.cast("B").cast("f"))
