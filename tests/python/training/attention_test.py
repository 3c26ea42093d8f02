"""Attention: projections, adapters, wait-k, padding, carried sequences, plugins from elsewhere, and what is refused."""

import copy
import os
from contextlib import nullcontext
from unittest import mock

import torch
import torch.nn.functional as F
from support import D_MODEL, HEADS, KEYS, QUERIES, TorchTest, attnkit, inputs, key_of, main, placements

from attnkit.torch import _ops
from attnkit.torch.attention import sequence_type

WIDTH = D_MODEL // HEADS


def attention(name="softmax", **options):
    return attnkit.torch.Attention(name, **{"d_model": D_MODEL, "heads": HEADS, **options})


def heads(x):
    return x.unflatten(-1, (HEADS, WIDTH)).transpose(1, 2)


class Attention(TorchTest):
    def test_is_torchs_own_attention(self):
        block, (x, context, rows) = attention(role="decoder.cross"), inputs("decoder.cross")
        mask = (torch.arange(KEYS) < rows["context_lengths"][:, None])[:, None, None]
        o = F.scaled_dot_product_attention(heads(block.q(x)), heads(block.k(context)), heads(block.v(context)), attn_mask=mask)
        expected = block.o(o.transpose(1, 2).flatten(2))
        got = block(x, context, context_lengths=rows["context_lengths"])
        with torch.no_grad():
            self.assert_close(got, expected)

    def test_adapters_and_head_norm(self):
        block, (x, _, _) = attention("relu", head_norm=True, adapters=True), inputs("encoder.self")
        with torch.no_grad():
            for p in block.relu.adapter.parameters():
                p.add_(torch.randn_like(p) / 4)
            plain, adapter = attention("relu"), block.relu.adapter
            plain.load_state_dict({name: t for name, t in block.state_dict().items() if "adapter" not in name})
            plain.q.weight.mul_(adapter.q_scale[:, None])
            plain.q.bias.mul_(adapter.q_scale).add_(adapter.q_shift)
            plain.k.weight.mul_(adapter.k_scale[:, None])
            plain.k.bias.mul_(adapter.k_scale).add_(adapter.k_shift)
            plain.o.weight.copy_(torch.eye(D_MODEL))
            plain.o.bias.zero_()
            o = plain(x).unflatten(-1, (HEADS, WIDTH))
            o = (o * torch.rsqrt(o.square().mean(-1, keepdim=True) + 1e-5)).flatten(2)
            self.assert_close(block(x), F.linear(o * adapter.gain, block.o.weight, block.o.bias), 1e-5)

    def test_mechanisms_share_projections(self):
        block = attention("softmax")
        before = set(block.state_dict())
        block.add("leap", factor=2)
        self.assertEqual({name.split(".")[0] for name in set(block.state_dict()) - before}, {"leap"})
        x = torch.randn(2, QUERIES, D_MODEL)
        with torch.no_grad():
            other = block(x)
            block.mechanism = "softmax"
            self.assertFalse(torch.allclose(block(x), other))

    def test_seeds_repeat(self):
        def made():
            torch.manual_seed(7)
            return attention("performer").state_dict()

        first, second = made(), made()
        for name in first:
            self.assertTrue(first[name].equal(second[name]), name)
        self.assertFalse(attention("performer").performer.omega.equal(first["performer.omega"]))

    def test_tables_are_buffers(self):
        block = attention("performer")
        self.assertNotIn("performer.omega", dict(block.named_parameters()))
        self.assertIn("performer.omega", dict(block.named_buffers()))

    def test_copies_are_apart(self):
        block = attention("leap", factor=2)
        twin = copy.deepcopy(block)
        with torch.no_grad():
            twin.leap.q_w1.zero_()
        self.assertNotEqual(block.leap.q_w1.abs().sum().item(), 0)

    def test_padding_changes_nothing(self):
        for name, role, block in placements():
            x, context, rows = inputs(role)
            longer = {key: None if t is None else torch.cat([t, torch.full_like(t[:, :2], 9.0)], 1) for key, t in
                      (("x", x), ("context", context))}
            with self.subTest(name, role=role), torch.no_grad():
                got = block(longer["x"], longer["context"], **rows)[1, :4]
                self.assert_close(got, block(x, context, **rows)[1, :4], 1e-5)

    def test_wait_k_shows_prefixes(self):
        block, (x, context, _) = attention("leap", role="decoder.cross", factor=2), inputs("decoder.cross")
        visible = torch.tensor([[1, 2, 3, 4, KEYS]] * 2)
        with torch.no_grad():
            got = block(x, context, visible=visible)
            for i in range(QUERIES):
                self.assert_close(got[:, i], block(x, context[:, :visible[0, i]])[:, i])

    def test_sequences_are_carried(self):
        first, second, x = attention("luna"), attention("luna"), torch.randn(2, QUERIES, D_MODEL)
        with torch.no_grad():
            aux = {}
            first(x, aux=aux)
            self.assertEqual(list(aux), ["p"])
            kept = aux["p"].clone()
            with_p, without = second(x, aux=aux), second(x)
        self.assertFalse(torch.allclose(with_p, without))
        self.assertFalse(aux["p"].equal(kept))

    def test_autocast_runs_in_f32(self):
        block, x = attention("relu"), torch.randn(2, QUERIES, D_MODEL)
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
            out = block(x)
        with torch.no_grad():
            self.assert_close(out.float(), block(x), 0.05)

    def test_a_plugin_from_elsewhere(self):
        self.build("c++", "-std=c++20", "-O1", "samples/hello_plugin/mean.cpp")
        block, x = attention("mean", decay=1.0), torch.randn(2, QUERIES, D_MODEL)
        self.assertEqual({name.split(".")[0] for name in block.state_dict()}, {"v", "o"})
        with torch.no_grad():
            self.assert_close(block(x), block.o(block.v(x).mean(1, keepdim=True)).expand_as(x))


class Cuda(TorchTest):
    """The inputs of a CUDA variant, by one that computes on the CPU: there is no GPU here."""

    def test_lists_go_to_the_device_of_x(self):
        seen = []
        with mock.patch("attnkit.torch.attention.run", side_effect=lambda key, inputs, rows, *sizes: seen.extend(rows) or [inputs[0]]):
            attention("relu", role="decoder.cross").to("meta")(
                torch.empty(2, QUERIES, D_MODEL, device="meta"), torch.empty(2, KEYS, D_MODEL, device="meta"), lengths=[1, 2], total=[1, 2],
                context_lengths=[1, 2], context_total=[1, 2], visible=[[1] * QUERIES] * 2)
        self.assertEqual([t.device.type for t in seen], ["meta"] * 5)

    def test_stream_and_scratch(self):
        self.build("cc", "-DPLUGIN_NAME=\"mean\"", "tests/abi/plugins/mean-cuda.c", name="mean-cuda", device=_ops.CUDA)
        key, v, given = key_of("mean", "encoder.self", D_MODEL, HEADS, False, WIDTH, {}), torch.randn(2, HEADS, QUERIES, WIDTH), []

        class Call(_ops._Call):
            def call(self, function, argument):
                given.append(_ops._EXEC.unpack(self.exec.raw))
                super().call(function, argument)

        stream = mock.Mock(cuda_stream=0xC0DA)
        with (mock.patch.object(_ops, "_device", lambda *_: (_ops.CUDA, 0, v.device)), mock.patch.object(_ops, "_Call", Call),
              mock.patch.object(torch.cuda, "current_stream", lambda _: stream), mock.patch.object(torch.cuda, "device", nullcontext)):
            out, = _ops._forward(key, [v], [None] * 5, QUERIES, QUERIES, False)
        self.assert_close(out, v.mean(2, keepdim=True).expand_as(v))
        (_, workers, _, scratch_bytes, handle, pool, parallel_for), = given
        self.assertEqual((workers, scratch_bytes, handle, pool, parallel_for), (1, 0, 0xC0DA, 0, 0))

    def test_sixteen_bits(self):
        """Outputs and gradients of every variant, on the emulator, where they answer for the CPU, beside those in f32."""
        emulated = attnkit.Runtime(threads=1, plugin_path=os.environ["ATTNKIT_EMULATED"])
        of = attnkit.torch.runtime()
        self.addCleanup(attnkit.torch.use_runtime, of)
        variants = {p["name"] for p in emulated.list()["plugins"] if p["file"].startswith(os.environ["ATTNKIT_EMULATED"])}
        self.assertGreaterEqual(len(variants), 15)
        for name, role, block in list(placements()):
            if name not in variants:
                continue
            x, context, rows = inputs(role)
            expected = trained(block, x, context, rows)
            largest = max(rms(t) for t in expected[1:])  # small gradients are sums in which large numbers cancel
            for dtype, tolerance in ((torch.float16, 1e-3), (torch.bfloat16, 8e-3)):
                with self.subTest(f"{name} in {role}, {dtype}"):
                    attnkit.torch.use_runtime(emulated)
                    with mock.patch("attnkit.torch.attention.sequence_type", lambda *_: dtype):
                        self.assertTrue(_ops.bound(block.get_submodule(name)._key).takes(*_ops._TYPES[dtype], True))
                        got = trained(block, x, context, rows)
                    attnkit.torch.use_runtime(of)
                    self.assertFalse(got[0].equal(expected[0]), "nothing was rounded")
                    self.assertEqual({t.dtype for t in got}, {torch.float32})
                    self.assertLessEqual(rms(got[0] - expected[0]), tolerance * rms(expected[0]))
                    for t, reference in zip(got[1:], expected[1:]):
                        self.assertLessEqual(rms(t - reference), tolerance * largest)

    def test_the_type_of_sequences(self):
        key = attention("relu").relu._key
        x, taken = mock.Mock(dtype=torch.float32, device=torch.device("cuda")), []
        with mock.patch("attnkit.torch.attention.takes_halves", lambda *arguments: taken.append(arguments[1:]) or arguments[1] == torch.bfloat16):
            self.assertEqual(sequence_type(key, x), torch.float32)
            x.dtype = torch.bfloat16
            self.assertEqual(sequence_type(key, x), torch.bfloat16)
            x.dtype = torch.float16  # which this variant refuses
            self.assertEqual(sequence_type(key, x), torch.float32)
            with torch.no_grad():
                sequence_type(key, x)
        self.assertEqual(taken, [(torch.bfloat16, True), (torch.float16, True), (torch.float16, False)])
        for dtype, expected in ((torch.float64, torch.float64), (torch.bfloat16, torch.float32)):
            self.assertEqual(sequence_type(key, torch.empty(1, dtype=dtype)), expected)


def rms(t):
    return t.square().mean().sqrt().item()


def trained(block, x, context, rows):
    """The output, and the gradients of x and of all parameters."""
    block.zero_grad()
    x = x.clone().requires_grad_()
    out = block(x, context, **rows)
    (out * torch.linspace(-1, 1, out.numel()).view_as(out)).sum().backward()
    return [out.detach(), x.grad, *(p.grad.clone() for p in block.parameters() if p.grad is not None)]


class Refused(TorchTest):
    def test_what_cannot_be_made(self):
        self.refused("did you mean \"leap\"", attention, "leapp")
        self.refused("did you mean \"factor\"", attention, "leap", factr=3)
        self.refused("5 heads do not divide d_model 12", attention, heads=5)
        self.refused("bias 'q': one of all, all_but_k, qkv, none, or a list of gate, in, k, o, out, q, v, is needed", attention, bias="q")
        self.refused("bias ['w']: one of all", attention, bias=["w"])
        self.refused("encoder.self, decoder.self, decoder.cross", attention, role="self")
        self.refused("no causal form", attention, "linformer", role="decoder.self", code=attnkit.UNSUPPORTED)
        for part, options in (("attention_scale nan: it must be 1e-06 to 1e+06", {"attention_scale": float("nan")}),
                              ("attention_scale 0: it", {"attention_scale": 0}), ("norm_eps -1: it must be 1e-15 to 1", {"norm_eps": -1}),
                              ("causal 'yes': True, False or None", {"causal": "yes"})):
            self.refused(part, attention, **options)
        for name in ("d_model", "heads", "kv_heads", "key_width", "head_width"):
            with self.assertRaisesRegex(TypeError, f"{name} must be an int, not float"):
                attention(**{name: 2.0})
        for name, value in (("attention_scale", torch.tensor(0.5)), ("norm_eps", "1")):
            with self.assertRaisesRegex(TypeError, f"{name} must be a number, not {type(value).__name__}"):
                attention(**{name: value})
        block = attention("leap", factor=2)
        tensors = block.state_dict()
        self.refused("the block has leap already", block.add, "leap", factor=4)
        self.assertTrue(all(t is tensors[name] or t.equal(tensors[name]) for name, t in block.state_dict().items()))

    def test_what_does_not_fit(self):
        block = attention("relu", role="decoder.cross")
        x, context, _ = inputs("decoder.cross")
        self.refused("cross attention needs the context", block, x)
        self.refused("q_len[0] is 9", block, x, context, lengths=[9, 1])
        self.refused("visible", block, x, context, visible=torch.ones(2, 3))
        for lengths in ([1.5, 2], torch.tensor([float("nan"), 2]), torch.tensor([1, float("inf")])):
            self.refused("rows are counted in whole numbers", block, x, context, lengths=lengths)
        for lengths in (torch.tensor([2**32 + 1, 2]), [2**32 + 1, 2]):
            self.refused("q_len[0] is 2147483647", block, x, context, lengths=lengths)
        self.assertTrue(block(x, context, lengths=torch.tensor([1.0, 2.0])).equal(block(x, context, lengths=[1, 2])))
        features = attention("performer")
        features.performer.omega.requires_grad_()
        self.refused('port "omega" is a table, which has no gradient', features, inputs("encoder.self")[0])
        self.refused("q_len must be a contiguous torch.int32 tensor of shape (2,)", block, x, context, lengths=[1, 2, 3])
        self.refused("port \"k\" has size 1 in dimension 0, not 2", block, x, context[:1])
        self.refused("x must be rows (B, N, 12) of a floating-point type, not (2, 5, 11) of torch.float32", block, x[..., 1:], context)
        self.refused("context must be rows (B, N, 12) of a floating-point type, not (2, 6, 13) of torch.float32", block, x, F.pad(context, (0, 1)))
        self.refused("x must be rows (B, N, 12) of a floating-point type, not (2, 12) of torch.float32", block, x[:, 0], context)
        self.refused("x must be rows (B, N, 12) of a floating-point type, not (2, 5, 12) of torch.int64", block, x.long(), context)
        for lengths in ("ab", [[1], [2, 3]], [None, 1], object):
            self.refused("a tensor or a list of numbers is needed", block, x, context, lengths=lengths)

    def test_a_batch_of_none(self):
        block, x = attention("cosformer"), torch.zeros(0, QUERIES, D_MODEL, requires_grad=True)
        made = block(x, lengths=torch.zeros(0, dtype=torch.int32), total=torch.zeros(0))
        self.assertEqual(made.shape, x.shape)
        made.sum().backward()
        self.assertEqual(x.grad.shape, x.shape)

    def test_rows_that_are_not_projected_may_lie_anyhow(self):
        x = torch.randn(2, D_MODEL, QUERIES).transpose(1, 2)
        for name in ("ssru", "s4d"):
            block = attention(name, causal=True)
            self.assertTrue(block(x).equal(block(x.contiguous())), name)

    def test_strides(self):
        key, q = attention().softmax._key, torch.randn(2, HEADS, WIDTH, QUERIES).transpose(2, 3)
        self.refused("port \"q\": the innermost stride must be 1, not 5: call .contiguous() on it", _ops.run, key, [q, q, q], [None] * 5,
                     QUERIES, QUERIES)
        half = torch.randn(2, HEADS, QUERIES, WIDTH).half()
        self.refused("computes in f32 only and was asked for 16-bit elements of DLPack code 2", _ops.run, key, [half] * 3, [None] * 5, QUERIES, QUERIES,
                     code=attnkit.UNSUPPORTED)
        self.refused("port \"v\": torch.float16 where this call has torch.float32", _ops.run, key, [half.float(), half.float(), half],
                     [None] * 5, QUERIES, QUERIES)

    def test_devices(self):
        key, t = attention().softmax._key, torch.randn(2, HEADS, QUERIES, WIDTH)
        self.refused("tensors are on cpu, meta; all of a block must be on the CPU, or all on one CUDA device", _ops._forward, key,
                     [t, t, t.to("meta")], [None] * 5, QUERIES, QUERIES, False)
        self.refused("skyformer has no CUDA variant here: move the block and its inputs to the CPU", _ops.bound, attention("skyformer").skyformer._key,
                     _ops.CUDA, code=attnkit.UNSUPPORTED)

    def test_a_mechanism_without_gradients(self):
        self.build("cc", "-DPLUGIN_NAME=\"mean\"", "tests/abi/plugins/mean.c")
        block, x = attention("mean"), torch.randn(2, QUERIES, D_MODEL)
        self.refused("mean: has no backward pass, so it cannot be trained: run it without gradients", block, x, code=attnkit.UNSUPPORTED)
        with torch.no_grad():
            block(x)


if __name__ == "__main__":
    main()
