"""attnkit::forward and attnkit::backward as torch's own checks, compiler and exporter see them."""

import functools
import threading

import torch
from torch.autograd import forward_ad
from torch.utils.checkpoint import checkpoint
from support import D_MODEL, HEADS, KEYS, QUERIES, TorchTest, attnkit, bound, inputs, key_of, main, placements, trains

from attnkit.torch import _ops

WIDTH = D_MODEL // HEADS


def sequence(rows, dtype=torch.float32):
    return torch.randn(2, rows, HEADS, WIDTH, dtype=dtype).transpose(1, 2)


def leap(role="decoder.cross"):
    """A call of leap: the arguments of attnkit::forward without train."""
    key = key_of("leap", role, D_MODEL, HEADS, role == "decoder.self", WIDTH, {"factor": 2})
    tensors = [sequence(QUERIES), sequence(KEYS), sequence(KEYS)]
    tensors += [torch.randn(port.shape) for port in bound(key).inputs[3:]]
    q_len, k_len = (torch.tensor(values, dtype=torch.int32) for values in ([QUERIES, 2], [KEYS, 3]))
    return key, tensors, [q_len, k_len, None, None, None], QUERIES, KEYS


class Operators(TorchTest):
    def test_opcheck(self):
        key, tensors, rows, queries, keys = leap()
        forward, backward = torch.ops.attnkit.forward.default, torch.ops.attnkit.backward.default
        torch.library.opcheck(forward, (key, tensors, rows, queries, keys, False))
        # What a run saves ends in bytes that nobody writes or reads; so torch fills them alike, and two runs can be compared.
        torch.use_deterministic_algorithms(True)
        self.addCleanup(torch.use_deterministic_algorithms, False)
        torch.library.opcheck(forward, (key, tensors, rows, queries, keys, True))
        made = forward(key, tensors, rows, queries, keys, True)
        wanted = [i % 2 == 0 for i in range(len(tensors))]
        torch.library.opcheck(backward, (key, tensors, made, [torch.randn_like(made[0])], rows, queries, keys, wanted))

    def test_gradients(self):
        checked = []
        for name, role, attention in placements():
            attention.double()
            x, context, rows = inputs(role, torch.float64)
            if not trains(attention, x, context, rows):
                continue
            tensors = [t.requires_grad_() for t in (x, context) if t is not None] + list(attention.parameters())
            with self.subTest(name, role=role):
                self.assertTrue(torch.autograd.gradcheck(lambda x, *more: attention(x, context, **rows), tensors, fast_mode=True))
                checked.append(name)
                rows["visible"] = torch.tensor([[1, 2, 2, 4, KEYS], [0, 1, 3, 3, KEYS]])
                if role == "decoder.cross" and rows.pop("context_lengths") is not None and trains(attention, x, context, rows):
                    self.assertTrue(torch.autograd.gradcheck(lambda x, *more: attention(x, context, **rows), tensors, fast_mode=True))
        trained = {"bigbird", "cosformer", "efficient", "latte", "leap", "linear", "linformer", "local", "luna", "nystromformer", "performer",
                   "reformer", "relu", "rope_linear", "s4d", "skyformer", "softmax", "ssru"}
        self.assertLessEqual(trained, set(checked))
        print("gradients of", *sorted(set(checked)))

    def test_gradients_are_the_same_in_f32(self):
        for name, role, attention in placements():
            x, context, rows = inputs(role)
            if not trains(attention, x, context, rows):
                continue
            given = torch.randn(x.shape)
            attention(x, context, **rows).backward(given)
            single = [p.grad for p in attention.parameters()]
            attention.double().zero_grad()
            attention(x.detach().double(), None if context is None else context.double(), **rows).backward(given.double())
            for grad, p in zip(single, attention.parameters()):
                self.assert_close(grad.double(), p.grad, 2e-5)

    def test_strides_do_not_matter(self):
        key, tensors, rows, queries, keys = leap()
        expected, = torch.ops.attnkit.forward.default(key, tensors, rows, queries, keys, False)
        wide = torch.zeros(2, HEADS, QUERIES, 3 * WIDTH)
        wide[..., WIDTH:2 * WIDTH] = tensors[0]
        q = wide[..., WIDTH:2 * WIDTH]
        got, = torch.ops.attnkit.forward.default(key, [q, *tensors[1:]], rows, queries, keys, False)
        self.assertTrue(got.equal(expected))
        self.assertEqual(got.transpose(1, 2).stride(), (QUERIES * D_MODEL, D_MODEL, WIDTH, 1))
        # A gradient that is one number for all elements, which has strides of 0.
        leaf = tensors[0].clone().requires_grad_()
        _ops.run(key, [leaf, *tensors[1:]], rows, queries, keys)[0].sum().backward()
        again = tensors[0].clone().requires_grad_()
        _ops.run(key, [again, *tensors[1:]], rows, queries, keys)[0].backward(torch.ones_like(expected))
        self.assertTrue(leaf.grad.equal(again.grad))

    def test_any_number_of_threads_at_once(self):
        key, tensors, rows, queries, keys = leap()
        leaves = [[t.clone().requires_grad_() for t in tensors] for _ in range(4)]
        threads = [threading.Thread(target=lambda mine=mine: [
            _ops.run(key, mine, rows, queries, keys)[0].square().sum().backward() for _ in range(50)]) for mine in leaves]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for mine in leaves[1:]:
            for a, b in zip(leaves[0], mine):
                self.assertTrue(a.grad.equal(b.grad))

    def test_two_backwards_give_the_same(self):
        key, tensors, rows, queries, keys = leap()
        leaves = [t.requires_grad_() for t in tensors]
        out = _ops.run(key, leaves, rows, queries, keys)[0].square().sum()
        first = torch.autograd.grad(out, leaves, retain_graph=True)
        for a, b in zip(first, torch.autograd.grad(out, leaves)):
            self.assertTrue(a.equal(b))

    def test_checkpointing_gives_the_same(self):
        attention = attnkit.torch.Attention("leap", role="decoder.cross", d_model=D_MODEL, heads=HEADS, factor=2)
        x, context, rows = inputs("decoder.cross")
        found = []
        for checkpointed in ({}, {"use_reentrant": False}, {"use_reentrant": True}):
            mine = [t.clone().requires_grad_() for t in (x, context)]
            attention.zero_grad()
            run = functools.partial(attention, **rows)
            (checkpoint(run, *mine, **checkpointed) if checkpointed else run(*mine)).square().sum().backward()
            found.append([*(t.grad for t in mine), *(p.grad for p in attention.parameters())])
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                self.assertTrue(a.equal(b))

    def test_checkpointing_of_carried_sequences_gives_the_same(self):
        """In the form that Attention.forward names: the dict is made of arguments."""
        layers = [attnkit.torch.Attention("luna", d_model=D_MODEL, heads=HEADS) for _ in range(3)]
        start, found = torch.randn(2, QUERIES, D_MODEL), []

        def run(layer, y, p):
            aux = {"p": p}
            return layer(y, aux=aux), aux["p"]

        for checkpointed in ({}, {"use_reentrant": False}, {"use_reentrant": True}):
            leaves = [start.clone().requires_grad_(), *(t for layer in layers for t in layer.parameters())]
            y, p = leaves[0], None
            for layer in layers:
                layer.zero_grad()
                y, p = checkpoint(run, layer, y, p, **checkpointed) if checkpointed else run(layer, y, p)
            (y.square().sum() + p.square().sum()).backward()
            found.append([leaf.grad for leaf in leaves])
        for other in found[1:]:
            for a, b in zip(found[0], other, strict=True):
                self.assertTrue(a.equal(b))

    def test_no_second_derivative(self):
        """Also where nothing behind a mechanism asks for one: torch would take its gradients for constants."""
        key, tensors, rows, queries, keys = leap()
        leaf = tensors[0].requires_grad_()
        frozen = attnkit.torch.Attention("softmax", d_model=D_MODEL, heads=HEADS)
        frozen.o.requires_grad_(False)
        raw = attnkit.torch.Attention("ssru", role="decoder.self", d_model=D_MODEL, heads=HEADS)
        x = torch.randn(2, QUERIES, D_MODEL, requires_grad=True)
        for made, of in ((lambda: _ops.run(key, tensors, rows, queries, keys)[0], leaf), (lambda: frozen(x), x), (lambda: raw(x), x)):
            grad, = torch.autograd.grad(made().sum(), of, create_graph=True)
            self.assertTrue(grad.equal(torch.autograd.grad(made().sum(), of)[0]))
            self.refused("no second derivative", grad.square().sum().backward, code=attnkit.UNSUPPORTED)
        block = attnkit.torch.Attention("softmax", d_model=D_MODEL, heads=HEADS)
        grad, = torch.autograd.grad((x + block(x)).square().sum(), x, create_graph=True)
        self.refused("no second derivative", torch.autograd.grad, grad.square().sum(), block.o.weight, code=attnkit.UNSUPPORTED)

    def test_no_derivative_forwards(self):
        x, block = torch.randn(2, QUERIES, D_MODEL), attnkit.torch.Attention("relu", d_model=D_MODEL, heads=HEADS)

        def dual(x, along):
            with forward_ad.dual_level():
                return block(forward_ad.make_dual(x, along))

        with forward_ad.dual_level():
            block(x)
        for _ in range(2):
            self.refused("relu has no derivative forwards", torch.func.jvp, block, (x,), (x,), code=attnkit.UNSUPPORTED)
            self.refused("relu has no derivative forwards", torch.func.jacfwd(block), x, code=attnkit.UNSUPPORTED)
            self.refused("relu has no derivative forwards", dual, x, x, code=attnkit.UNSUPPORTED)
            with torch.no_grad():
                self.refused("relu has no derivative forwards", dual, x, x, code=attnkit.UNSUPPORTED)
            block.requires_grad_(False)

    def test_empty_batches(self):
        key, tensors, _, queries, keys = leap()
        none = [t[:0].requires_grad_() if t.dim() == 4 else t for t in tensors]
        out = _ops.run(key, none, [None] * 5, queries, keys)[0]
        self.assertEqual(out.shape, (0, HEADS, QUERIES, WIDTH))
        out.sum().backward()


class Compiled(TorchTest):
    def block(self):
        return attnkit.torch.Attention("leap", role="decoder.cross", d_model=D_MODEL, heads=HEADS, head_norm=True, adapters=True, factor=2)

    def test_compile(self):
        attention = self.block()
        compiled = torch.compile(attention, fullgraph=True, backend="aot_eager")
        for n in (QUERIES, QUERIES + 2):
            x, context = torch.randn(2, n, D_MODEL, requires_grad=True), torch.randn(2, KEYS, D_MODEL)
            made = []
            for run in (attention, compiled):
                attention.zero_grad()
                out = run(x, context, context_lengths=torch.tensor([KEYS, 3]))
                out.square().sum().backward()
                made.append([out.detach(), *(p.grad for p in attention.parameters())])
            for a, b in zip(*made):
                self.assert_close(b, a)

    def test_export_with_dynamic_sizes(self):
        attention = self.block().eval()
        batch, n, m = (torch.export.Dim(name, min=2, max=64) for name in ("batch", "n", "m"))
        with torch.no_grad():
            program = torch.export.export(attention, (torch.randn(3, 7, D_MODEL), torch.randn(3, 9, D_MODEL)),
                                          dynamic_shapes={"x": {0: batch, 1: n}, "context": {0: batch, 1: m}})
            x, context = torch.randn(2, QUERIES, D_MODEL), torch.randn(2, KEYS, D_MODEL)
            self.assert_close(program.module()(x, context), attention(x, context))
        self.assertIn("attnkit.forward", program.graph_module.code)


if __name__ == "__main__":
    main()
