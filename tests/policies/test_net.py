"""Losses through networks: gradients against plain autograd, who learns and who does not, and what is refused."""

import gc
from importlib.util import find_spec

import pytest
import torch

from robot_rl.policies.nets.flat import FlatParams
from robot_rl.policies.nets.kernels.half_mlp import HalfMlp
from robot_rl.policies.nets.mlp import AutogradMlp, Dropout
from robot_rl.policies.nets.net import Leaves, Net, NetShape, mean_rows, step

needs_numba = pytest.mark.skipif(not find_spec("numba"), reason="needs numba (extra `fast`)")


def make(
    name="net",
    inputs=4,
    outputs=None,
    *,
    dtype=torch.float64,
    seed=0,
    lr=1e-3,
    kernel="auto",
    matmul="float32",
    **sizes,
):
    """A network without neutral values: no bias, scale or shift hides behind a 0 or a 1."""
    shape = NetShape(inputs, outputs, hidden=sizes.pop("hidden", (8, 6)), **sizes)
    generator = torch.Generator().manual_seed(seed)
    params = FlatParams({**shape.mlp().shapes(), **shape.more}, dtype=dtype)
    shape.mlp().initialise(params, generator)
    params.flat.add_(torch.randn(params.flat.shape, generator=generator, dtype=dtype), alpha=0.1)
    return Net(name, shape, params=params, lr=lr, kernel=kernel, matmul=matmul)


class Plain:
    """The same function of torch's own operators, on weights of its own."""

    def __init__(self, net, dtype=torch.float64):
        self.params = FlatParams(net.params.shapes, dtype=dtype)
        self.params.flat.copy_(net.params.flat)
        self.kernel, self.sizes = AutogradMlp(net.shape, self.params), net.sizes

    def __call__(self, *parts, member=None):
        x = torch.cat(parts, -1)
        out = self.kernel.compute(x)
        if self.sizes.outputs is None:
            out = out[..., 0]
        out = out.view(self.sizes.seeds, self.sizes.members or 1, *out.shape[1:]).transpose(0, 1)  # (E, S, ...)
        if x.dim() == 2:
            out = out[:, 0]
        if self.sizes.members is None:
            return out[0]
        return out if member is None else out[member]

    def __getitem__(self, name):
        return self.params.view[name]


def gradients(plain, loss):
    names = list(plain.params.view)
    leaves = [plain.params.view[name] for name in names]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return {name: torch.zeros_like(leaf) if g is None else g for name, leaf, g in zip(names, leaves, found)}


def assert_gradients(net, plain, loss, rtol=1e-9, atol=1e-11):
    for name, grad in gradients(plain, loss).items():
        torch.testing.assert_close(net.params.grad_view[name], grad, rtol=rtol, atol=atol, msg=name)


def rows(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("kernel", ["explicit", "autograd"])
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.parametrize("members", [1, 2, 5])
@pytest.mark.parametrize("seeds", [None, 1, 3])
def test_gradients_of_several_open_passes_equal_plain_autograd(kernel, layer_norm, members, seeds):
    """One loss over four passes: other actions, another number of rows, one member, some members."""
    net = make(members=members, layer_norm=layer_norm, seeds=seeds or 1, kernel=kernel)
    lead = () if seeds is None else (seeds,)
    state, action = rows(*lead, 9, 3), rows(*lead, 9, 1, seed=1)
    some = [members - 1, 0] if members > 1 else [0]

    def loss_of(call):
        first = call(state, action)
        second = call(state, -action)
        third = call(torch.cat([state, state], -2), torch.cat([action, action + 1], -2))
        last = call(state, action * 0.5, member=0), call(state, action + 2, member=some)
        parts = [first * second, third.square(), last[0].square().expand_as(first), last[1].tanh()]
        return torch.stack([mean_rows(part) for part in parts]).sum()

    expected = loss_of(plain := Plain(net))
    loss = loss_of(net)
    torch.testing.assert_close(loss, expected)
    net.step(loss)
    assert_gradients(net, plain, expected)


def test_shapes_of_answers():
    x, wide = rows(7, 4), rows(3, 7, 4)
    assert make()(x).shape == (7,)
    assert make(outputs=1)(x).shape == (7, 1)  # one action is still an axis
    assert make(outputs=2, seeds=3)(wide).shape == (3, 7, 2)
    assert make(members=2, seeds=3)(wide).shape == (2, 3, 7)
    assert make(members=1)(x).shape == (1, 7)  # an ensemble of one is still an ensemble
    assert make(members=2, seeds=3)(wide, member=1).shape == (3, 7)
    assert make(members=5, outputs=2)(x, member=[4, 1]).shape == (2, 7, 2)


def test_actor_through_critic_leaves_the_critic_alone():
    actor, critic = make("actor", 3, 2, seed=1), make("critic", 5, members=2)
    state = rows(9, 3)
    critic.step(mean_rows(critic(state, rows(9, 2)).square()))
    before = critic.params.flat.clone(), critic.params.grad.clone()

    def loss_of(actor, critic):
        action = actor(state).tanh()
        return mean_rows(-critic(state, action).amin(0) + action.square().sum(-1))

    plain = Plain(actor)
    expected = loss_of(plain, Plain(critic))
    actor.step(loss_of(actor, critic))
    assert_gradients(actor, plain, expected)
    assert torch.equal(critic.params.flat, before[0])
    assert torch.equal(critic.params.grad, before[1])


def test_one_step_of_several_networks_and_a_temperature():
    actor, critic = make("actor", 3, 2, seed=1), make("critic", 5)
    params = FlatParams({"log": ()}, dtype=torch.float64)
    temperature = Leaves("temperature", params, lr=0.1, free=["log"])
    state = rows(9, 3)
    pair = Plain(actor), Plain(critic)
    scale = params.view["log"].detach().clone().requires_grad_()

    def loss_of(actor, critic, log):
        return mean_rows(log.exp() * critic(state, actor(state)).square())

    expected = loss_of(*pair, scale)
    (slope,) = torch.autograd.grad(expected, scale, retain_graph=True)
    loss = loss_of(actor, critic, temperature["log"])
    step(loss, actor, critic, temperature)
    for net, plain in zip((actor, critic), pair):
        names = list(plain.params.view)
        grads = torch.autograd.grad(expected, [plain.params.view[n] for n in names], retain_graph=True)
        for name, grad in zip(names, grads):
            torch.testing.assert_close(net.params.grad_view[name], grad, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(params.grad_view["log"], slope)
    assert params.flat[0] == pytest.approx(-0.1)  # Adam's first step is lr, against a positive slope


def test_what_stands_beside_the_output_learns_with_it():
    """A Gaussian's log-density: gradients of mean and log standard deviation, over two steps."""
    net = make(inputs=3, outputs=2, more={"log_std": (1, 2)}, lr=0.0)
    state, action = rows(1, 9, 3), rows(1, 9, 2, seed=1)
    for _ in range(2):

        def loss_of(net):
            log_std = net["log_std"][:, None]
            return mean_rows((0.5 * ((action - net(state)) / log_std.exp()).square() + log_std).sum(-1))

        expected = loss_of(plain := Plain(net))
        net.step(loss_of(net))
        assert_gradients(net, plain, expected)


def test_a_step_is_torchs_adam():
    net = make(lr=3e-2)
    plain = Plain(net)
    names = list(plain.params.view)
    adam = torch.optim.Adam([plain.params.view[n] for n in names], lr=3e-2)
    for i in range(5):
        x = rows(9, 4, seed=i)
        adam.zero_grad()
        mean_rows(plain(x).square()).backward()
        adam.step()
        net.step(mean_rows(net(x).square()))
    for name in names:
        torch.testing.assert_close(net.params.view[name], plain.params.view[name].detach())


def test_mean_over_rows_sums_over_members_and_seeds():
    x = torch.tensor([[[1.0, 3.0], [2.0, 2.0]], [[0.0, 4.0], [5.0, 5.0]]])  # means 2, 2, 2, 5
    assert mean_rows(x).item() == 11.0
    assert mean_rows(torch.tensor([4.0])).item() == 4.0


def test_dropout_reaches_the_gradient():
    net = make(hidden=(50,), lr=0.0)
    x = rows(9, 4)

    def gradient(rate):
        drop = Dropout(rate, torch.Generator().manual_seed(3)) if rate else None
        net.step(mean_rows(net(x, drop=drop).square()))
        return net.params.grad.clone()

    assert torch.equal(gradient(0.3), gradient(0.3))
    assert not torch.allclose(gradient(0.3), gradient(0.0))


def test_a_subset_of_members_leaves_no_old_gradient_behind():
    net = make(members=2, lr=0.0)
    x = rows(9, 4)
    net.step(mean_rows(net(x).square()))
    net.step(mean_rows(net(x, member=0).square()))
    assert net.params.grad_view["weight0"][0].abs().sum() > 0
    assert not net.params.grad_view["weight0"][1].any()


def test_gradient_by_an_input_alone():
    net = make(members=2)
    state, action = rows(9, 3), rows(9, 1).requires_grad_()
    (slope,) = torch.autograd.grad(net(state, action).sum(), action)
    (expected,) = torch.autograd.grad(Plain(net)(state, action).sum(), action)
    torch.testing.assert_close(slope, expected)
    assert not net.params.grad.any()


def test_target_follows_and_never_learns():
    net = make(members=2)
    target = net.target_copy("target")
    x = rows(9, 4)
    assert torch.equal(target(x), net(x))
    assert not target(x).requires_grad
    start = net.params.flat.clone()
    net.step(mean_rows(net(x).square()))
    assert torch.equal(target.params.flat, start)
    target.soft_update(net, 0.25)
    torch.testing.assert_close(target.params.flat, 0.75 * start + 0.25 * net.params.flat)


def test_no_grad_records_nothing():
    net = make()
    with torch.no_grad():
        assert not net(rows(9, 4)).requires_grad


def test_saved_and_loaded_network_takes_the_same_step():
    one, other = make(seed=0), make(seed=1)
    x = rows(9, 4)
    one.step(mean_rows(one(x).square()))
    other.load_state_dict(one.state_dict())
    for net in (one, other):
        net.step(mean_rows(net(x).square()))
    assert torch.equal(one.params.flat, other.params.flat)


# ---------------------------------------------------------------- bfloat16


@needs_numba
@pytest.mark.parametrize("layer_norm", [False, True])
@pytest.mark.filterwarnings("ignore:this processor has no products of bfloat16")
def test_bf16_passes_have_buffers_of_their_own_and_give_them_back(layer_norm):
    """Three passes open in one loss give the sum of three passes of kernels that know one pass each."""
    sizes = {"inputs": 5, "members": 2, "hidden": (64, 64), "layer_norm": layer_norm, "dtype": torch.float32}
    net = make(**sizes, matmul="bf16", lr=0.0)
    assert isinstance(net.kernel, HalfMlp)
    x, weight = rows(32, 5).float(), rows(2, 32, seed=1).float()
    total = torch.zeros_like(net.params.grad)
    for scale in (1.0, -1.0, 2.0):
        alone = make(**sizes, matmul="bf16")
        alone.kernel.forward(x * scale)
        alone.kernel.backward((weight * scale / 32)[..., None])
        total += alone.params.grad

    def loss_of(call):
        return torch.stack([mean_rows(weight * scale * call(x * scale)) for scale in (1.0, -1.0, 2.0)]).sum()

    plain = Plain(net, torch.float32)
    exact = gradients(plain, loss_of(plain))
    for _ in range(3):
        net.step(loss_of(net))
        torch.testing.assert_close(net.params.grad, total, rtol=1e-5, atol=1e-6)
        for name, grad in exact.items():
            assert (net.params.grad_view[name] - grad).norm() < 0.05 * grad.norm(), name
        loss_of(net)  # a graph that dies without a backward pass gives its buffers back, too
    gc.collect()
    with torch.no_grad():
        net(x)
    assert sum(len(waiting) for waiting in net.kernel._rooms.values()) == 2  # of three passes; the last holds one


# ---------------------------------------------------------------- refusals


def test_backward_after_the_step_is_refused():
    net = make()
    out = net(rows(9, 4))
    net.step(mean_rows(net(rows(9, 4)).square()))
    with pytest.raises(RuntimeError, match=r"weights of net changed after this forward pass.*call the network again"):
        net.step(mean_rows(out))


def test_plain_leaf_used_after_the_step_is_refused():
    """Fused Adam raises the version counter: autograd itself sees that a value it saved has changed."""
    net = make(inputs=3, outputs=2, more={"log_std": (2,)}, lr=0.1)
    scale = net["log_std"].exp() * net["log_std"]
    net.step(mean_rows((net(rows(9, 3)) * net["log_std"]).sum(-1)))
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        net.step(scale.sum() + mean_rows(net(rows(9, 3)).sum(-1)))


def test_second_backward_of_a_pass_is_refused():
    net = make()
    loss = mean_rows(net(rows(9, 4)))
    loss.backward(retain_graph=True, inputs=net.leaves)
    with pytest.raises(RuntimeError, match="has had its backward pass"):
        net.step(loss)


def test_second_derivative_is_refused():
    net = make()
    x = rows(9, 4).requires_grad_()
    with pytest.raises(RuntimeError, match="second derivative through net is not written out"):
        torch.autograd.grad(net(x).sum(), x, create_graph=True)


def test_input_changed_in_place_is_refused():
    net, x = make(), rows(9, 4)
    loss = mean_rows(net(x))
    x += 1.0
    with pytest.raises(RuntimeError, match="input of net was changed in place"):
        net.step(loss)


def test_loss_without_the_network_is_refused_and_nothing_moves():
    one, other = make("one"), make("other")
    before = one.params.flat.clone()
    with pytest.raises(ValueError, match="does not depend on other"):
        step(mean_rows(one(rows(9, 4))), one, other)
    assert torch.equal(one.params.flat, before)
    with pytest.raises(ValueError, match="depends on no network"):
        one.step(mean_rows(one(rows(9, 4)).detach()))


def test_loss_of_many_numbers_is_refused():
    net = make()
    with pytest.raises(ValueError, match=r"the loss has shape \(9,\), expected one number: wrap it in mean_rows"):
        net.step(net(rows(9, 4)))


def test_target_that_is_stepped_or_asked_for_a_gradient_is_refused():
    net = make(inputs=3)
    target = net.target_copy("target")
    with pytest.raises(ValueError, match="target is a target network: it moves by soft_update"):
        step(mean_rows(net(rows(9, 3))), target)
    actor = make("actor", 3, 3)
    with pytest.raises(ValueError, match="target is a target network, which no gradient passes"):
        target(actor(rows(9, 3)))


def test_refused_step_leaves_networks_usable():
    net = make()
    with pytest.raises(ValueError, match="depends on no network"):
        net.step(torch.tensor(1.0))
    plain, x = Plain(net), rows(9, 4)
    expected = mean_rows(plain(x).square())
    net.step(mean_rows(net(x).square()))
    assert_gradients(net, plain, expected)


def test_slopes_are_those_of_autograd_and_a_changed_network_is_refused():
    net = Net("net", NetShape(5, None, (8, 7), members=3), lr=0.1, generator=torch.Generator().manual_seed(0))
    state, action = torch.randn(1, 6, 3), torch.randn(1, 6, 2)
    value, slope = net.with_slopes(state, action)
    wanted = action.clone().requires_grad_()
    expected = net(state, wanted)
    torch.testing.assert_close(value, expected)
    for e in range(3):
        found = torch.autograd.grad(net(state, wanted, member=e).sum(), wanted)[0]
        torch.testing.assert_close(slope[e], found)
    net.step(value.sum())
    with pytest.raises(RuntimeError, match="changed after this pass"):
        net.step(slope.sum())


def test_slopes_of_seeds_side_by_side_are_refused():
    net = Net("net", NetShape(5, None, (8,), seeds=2), generator=torch.Generator().manual_seed(0))
    with pytest.raises(ValueError, match="2 seeds side by side"):
        net.with_slopes(torch.randn(2, 6, 3), torch.randn(2, 6, 2))
