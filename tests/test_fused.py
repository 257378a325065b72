"""The kernel in C computes what the operations of torch compute, or steps aside and says why."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from milodo.learned import fused
from milodo.learned.fused import build
from milodo.learned.per_node import PerNodeLSTM

here = pytest.mark.skipif(fused.available() is not None, reason=f"no fused kernel: {fused.available()}")
SHAPES = [
    # inputs, outputs, hidden, d, leading axes, whether h and c are the same for all of them
    (1, 1, 7, 1, (), False),
    (2, 1, 20, 300, (), False),
    (2, 2, 20, 13, (3,), True),
    (9, 9, 20, 13, (2, 3), False),
    (9, 9, 7, 300, (2,), True),
    (1, 1, 20, 13, (5,), False),
    (2, 2, 7, 1, (2, 20), True),
    (2, 2, 20, 300, (4,), True),
    (40, 30, 25, 1, (6,), False),
    (2, 1, 1, 24, (2,), False),
]


def case(inputs, outputs, hidden, d, leading, same, n=3, dtype=torch.float32):
    """A network and its inputs, all of them leaves."""
    torch.manual_seed(0)
    network = PerNodeLSTM(n, inputs, outputs, hidden).to(dtype)
    first = () if same else leading
    v, h, c = (
        torch.randn(*axes, n, rows, d, dtype=dtype, requires_grad=True)
        for axes, rows in ((leading, inputs), (first, hidden), (first, hidden))
    )
    return network, (v, h, c)


def results(network, inputs, forward=None):
    """Outputs, and the gradient of a random functional of them with respect to everything."""
    v, h, c = inputs
    state = [part.expand(*v.shape[:-2], *part.shape[-2:]) for part in (h, c)]
    outputs = (forward or network)(v, *state)
    generator = torch.Generator().manual_seed(1)
    along = [torch.randn(out.shape, generator=generator).to(out.dtype) for out in outputs]
    return [*outputs, *torch.autograd.grad(outputs, [*inputs, *network.parameters()], along)]


def exact(network, inputs):
    """The same, by torch and in fp64."""
    twin = PerNodeLSTM(network.w_x.shape[0], network.w_x.shape[-1], network.w_2.shape[-2], network.hidden).double()
    twin.load_state_dict(network.state_dict())
    return results(twin, [part.detach().double().requires_grad_() for part in inputs])


def forbid(monkeypatch):
    monkeypatch.setattr(fused, "_run", lambda *_: pytest.fail("the kernel was called"))


def agree(got, plain, truth):
    for ours, theirs, true in zip(got, plain, truth, strict=True):
        assert ours.shape == theirs.shape
        # sums that cancel lose digits in fp32 whoever computes them: torch's own error is the measure then
        assert (ours - true).abs().max() <= max(1e-5 * true.abs().max(), 4 * (theirs - true).abs().max())


@here
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_outputs_and_all_gradients_are_those_of_torch(shape, monkeypatch):
    network, inputs = case(*shape)
    got = results(network, inputs)
    monkeypatch.setenv(fused.SWITCH, "0")
    forbid(monkeypatch)
    agree(got, results(network, inputs), exact(network, inputs))


@here
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_two_runs_and_any_number_of_threads_give_the_same_bits(threads):
    network, inputs = case(2, 2, 20, 300, (9,), False, n=10)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        first = results(network, inputs)
        torch.set_num_threads(threads)
        second = results(network, inputs)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


@here
def test_an_instance_does_not_see_its_neighbours_in_a_panel():
    network, (v, h, c) = case(2, 2, 7, 13, (5,), False)
    with torch.no_grad():
        together = network(v, h, c)
        alone = [network(v[k], h[k], c[k]) for k in range(5)]
    assert all(torch.equal(part[k], one) for k in range(5) for part, one in zip(together, alone[k], strict=True))


@here
def test_saturated_gates_and_what_is_not_finite_come_out_as_torch_has_them():
    network, (v, h, c) = case(2, 1, 7, 8, (), False)
    with torch.no_grad():
        v[0, :, 0], v[0, :, 1], v[0, :, 2], v[0, 0, 3] = 1e4, -1e4, 1e30, torch.nan
        c[0, :, 4] = torch.inf
        for ours, theirs in zip(network(v, h, c), network.by_torch(v, h, c), strict=True):
            assert torch.equal(ours.isnan(), theirs.isnan()) and bool(theirs.isnan().any())
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5, equal_nan=True)


@here
def test_gradients_only_where_they_are_asked_for():
    network, (v, h, c) = case(2, 2, 20, 13, (3,), False)
    everything = results(network, (v, h, c))
    o, h_next, c_next = network(v, h, c)
    generator = torch.Generator().manual_seed(1)
    along = [torch.randn(out.shape, generator=generator) for out in (o, h_next, c_next)]
    for wanted, truth in zip((v, h, c, *network.parameters()), everything[3:], strict=True):
        assert torch.equal(torch.autograd.grad((o, h_next, c_next), wanted, along, retain_graph=True)[0], truth)
    frozen = network.requires_grad_(False)(v.detach(), h, c.detach())
    assert torch.equal(torch.autograd.grad(frozen, h, along)[0], everything[4])
    for k, only in enumerate((o, h_next, c_next)):  # the others' gradients are zero
        others = [one if q == k else torch.zeros_like(one) for q, one in enumerate(along)]
        torch.testing.assert_close(
            torch.autograd.grad(only, h, along[k], retain_graph=True)[0],
            torch.autograd.grad((o, h_next, c_next), h, others, retain_graph=True)[0],
        )


@here
def test_recomputing_instead_of_keeping_gives_the_same_bits():
    network, inputs = case(2, 2, 20, 13, (3,), False)
    again = results(network, inputs, lambda *given: checkpoint(network, *given, use_reentrant=False))
    assert all(torch.equal(one, two) for one, two in zip(results(network, inputs), again, strict=True))


@here
def test_strides_do_not_matter():
    network, (v, h, c) = case(2, 2, 7, 13, (3,), False)
    turned = [part.detach().mT.contiguous().mT for part in (v, h, c)]
    assert not turned[1].is_contiguous()
    assert all(torch.equal(one, two) for one, two in zip(network(v, h, c), network(*turned), strict=True))


def test_other_precisions_and_transformed_functions_are_left_to_torch(monkeypatch):
    forbid(monkeypatch)
    network, inputs = case(2, 2, 7, 5, (2,), False, dtype=torch.float64)
    results(network, inputs)
    network, (v, h, c) = case(2, 2, 7, 5, (2,), False)
    with torch.no_grad(), pytest.raises(RuntimeError):  # vmap knows neither the kernel nor torch's cell, and says so
        torch.func.vmap(network)(v, h, c)
    with pytest.raises(RuntimeError):  # torch's own complaint about shapes, before any memory is touched
        network(v, h[:1], c[:1])


@pytest.fixture
def forgotten():
    """A process that has not looked for the kernel yet."""
    fused._load.cache_clear()
    yield
    fused._load.cache_clear()


@pytest.mark.usefixtures("forgotten")
def test_without_a_compiler_torch_computes_and_the_reason_is_said(monkeypatch, tmp_path):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    forbid(monkeypatch)
    network, inputs = case(2, 2, 7, 5, (2,), False)
    for ours, true in zip(results(network, inputs), exact(network, inputs), strict=True):
        torch.testing.assert_close(ours.double(), true, rtol=1e-4, atol=1e-5)
    assert "no C compiler" in str(fused.available())
    assert "no C compiler" in fused.provenance()["networks"]


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize(
    ("script", "said"),
    [("echo 'per_node_lstm.c:1: error: strange' >&2; exit 1", "error: strange"), ("exit 0", "cannot be written or loaded")],
)
def test_a_compiler_that_fails_is_quoted_and_leaves_nothing_behind(script, said, monkeypatch, tmp_path):
    cc = tmp_path / "cc"
    cc.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    cc.chmod(0o755)
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(cc))
    assert said in str(fused.available())
    assert not list((tmp_path / "cache").rglob("*.so"))


@pytest.mark.usefixtures("forgotten")
def test_a_cache_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    (tmp_path / "cache").write_text("a file", encoding="utf-8")
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path / "cache"))
    if fused.available() is not None and "compiler" in str(fused.available()):
        pytest.skip("no compiler here")
    assert "cannot be written" in str(fused.available())


@here
@pytest.mark.usefixtures("forgotten")
def test_the_kernel_is_compiled_once(monkeypatch, tmp_path):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    assert fused.available() is None
    (made,) = tmp_path.rglob("*.so")
    fused._load.cache_clear()
    monkeypatch.setattr(build, "_compile", lambda *_: pytest.fail("compiled again"))
    assert fused.available() is None and made.is_file()


@here
@pytest.mark.usefixtures("forgotten")
def test_a_machine_whose_vectors_are_shorter_computes_the_same(monkeypatch, tmp_path):
    monkeypatch.setenv("MILODO_CACHE", str(tmp_path))
    monkeypatch.setattr(build, "FOR_THIS_MACHINE", "-O1")
    network, inputs = case(2, 2, 7, 25, (3,), False)
    assert fused.available() is None
    agree(results(network, inputs), results(network, inputs, network.by_torch), exact(network, inputs))
