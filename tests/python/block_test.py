"""attnkit.Block: one mechanism by itself."""

import array
import unittest

import attnkit
from attnkit._abi import ATTN_KEY, ATTN_LEARNED, ATTN_OUTPUT, ATTN_QUERY, attn_request, sized
from attnkit.block import options_text
from support import RUNTIME, PackageTest


class Block(PackageTest):
    def test_ports(self):
        with attnkit.Block(RUNTIME, "leap", "decoder.cross", 32, 4, options="factor = 2") as block:
            kinds = {port.name: (port.kind, port.shape) for port in block.ports}
        self.assertEqual(kinds["q"], (ATTN_QUERY, (0, 4, 0, 8)))
        self.assertEqual(kinds["k"], (ATTN_KEY, (0, 4, 0, 8)))
        self.assertEqual(kinds["q_w1"], (ATTN_LEARNED, (4, 8)))
        self.assertEqual([kind for kind, _ in kinds.values()].count(ATTN_OUTPUT), 1)

    def test_fill_and_plan(self):
        block = attnkit.Block(RUNTIME, "leap", "decoder.cross", 32, 4)
        port = next(port for port in block.ports if port.kind == ATTN_LEARNED)
        values = [array.array("f", bytes(4 * port.shape[0] * port.shape[1])) for _ in range(2)]
        for numbers in values:
            block.fill(port, 7, numbers.buffer_info()[0])
        self.assertEqual(values[0], values[1])
        self.assertTrue(any(values[0]))
        request = sized(attn_request, device_type=1, dtype_code=2, dtype_bits=32, dtype_lanes=1, workers=2, batch=1, queries=5, keys=6)
        self.assertGreater(block.plan(request).flops, 0)

    def test_refusals(self):
        self.refused("5 heads do not divide d_model 32", attnkit.Block, RUNTIME, "relu", "encoder.self", 32, 5)
        self.refused("role 'self'", attnkit.Block, RUNTIME, "relu", "self", 32, 4)
        self.refused("did you mean \"relu\"", attnkit.Block, RUNTIME, "rel", "encoder.self", 32, 4)
        block = attnkit.Block(RUNTIME, "relu", "encoder.self", 32, 4)
        self.refused("workers", block.plan, sized(attn_request))
        block.close()
        self.refused("closed", block.plan, sized(attn_request))

    def test_options_as_toml(self):
        self.assertEqual(options_text({"a": 1, "b": 1e-7, "c": True, "d": "ß\"\n"}), 'a = 1, b = 1e-07, c = true, d = "ß\\"\\n"')


if __name__ == "__main__":
    unittest.main()
