"""`fused_policy_loss` against the plain composition of `policy_loss`, a squared error and an entropy under autograd."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robot_rl.advantage import ClipRange, policy_loss
from robot_rl.advantage.backends import available, use_backend
from robot_rl.advantage.fused import FusedLoss, FusedOptions, fused_policy_loss

CPU = [name for name in ("numba", "numpy") if name in available()]
OPTIONS = [
    FusedOptions(),
    FusedOptions(clip=(0.1, 0.28), dual_clip=1.5, value_clip=0.3, value_coef=0.7, entropy_coef=0.02),
    FusedOptions(clip=0.05, dual_clip=3.0, log_std_range=(-0.4, 0.5)),
]


def plain(outputs: dict[str, Tensor], batch: dict[str, Tensor], o: FusedOptions) -> Tensor:
    """Each term as its paper writes it; means over the rows of the mask."""
    rows, entropy = outputs.get("logp"), None
    if rows is None:
        log_std = outputs["log_std"].clamp(*o.log_std_range).expand_as(outputs["mean"])
        normal = torch.distributions.Normal(outputs["mean"], log_std.exp())
        rows, entropy = normal.log_prob(batch["action"]).sum(-1), normal.entropy().sum(-1)
    use = batch.get("mask", torch.ones_like(batch["logp"], dtype=torch.bool))
    loss = policy_loss(
        rows, batch["logp"], batch["advantage"], mask=batch.get("mask"), clip=ClipRange(o.clip, dual=o.dual_clip)
    )
    if "value" in outputs:
        value, target = outputs["value"][use], batch["target"][use]
        square = (value - target) ** 2
        if o.value_clip is not None:
            old = batch["value"][use]
            near = old + (value - old).clamp(-o.value_clip, o.value_clip)
            square = torch.maximum(square, (near - target) ** 2)
        loss = loss + o.value_coef * square.sum() / use.sum().clamp(min=1)
    if entropy is not None:
        loss = loss - o.entropy_coef * entropy[use].sum() / use.sum().clamp(min=1)
    return loss


def minibatch(
    kind: str, seed: int, masked: bool, shape: tuple[int, ...] = (64,)
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Outputs and rows in float64 whose ratios lie on both sides of every bound."""
    g = torch.Generator().manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(*size, generator=g, dtype=torch.float64)

    batch = {"advantage": draw(*shape), "target": draw(*shape), "value": draw(*shape)}
    outputs = {"value": batch["value"] + 0.5 * draw(*shape)}
    if kind == "tokens":
        batch["logp"] = draw(*shape) - 2
        outputs["logp"] = batch["logp"] + 0.4 * draw(*shape)
    else:
        dims = 3
        outputs["mean"], batch["action"] = draw(*shape, dims), draw(*shape, dims)
        outputs["log_std"] = 0.3 * (draw(dims) if kind == "free" else draw(*shape, dims))
        z = (batch["action"] - outputs["mean"]) / outputs["log_std"].exp()
        logp = (-0.5 * z * z - outputs["log_std"] - 0.5 * math.log(2 * math.pi)).sum(-1)
        batch["logp"] = logp + 0.4 * draw(*shape)
    if masked:
        batch["mask"] = torch.rand(shape, generator=g) < 0.7
    return outputs, batch


def compare(
    found: FusedLoss, outputs: dict[str, Tensor], batch: dict[str, Tensor], o: FusedOptions, atol: float
) -> None:
    leaves = {name: x.double().clone().requires_grad_() for name, x in outputs.items()}
    expected = plain(leaves, {k: x if x.dtype == torch.bool else x.double() for k, x in batch.items()}, o)
    expected.backward()
    assert float(found.loss) == pytest.approx(expected.item(), abs=atol)
    assert set(found.gradients) == set(outputs)
    for name, leaf in leaves.items():
        assert leaf.grad is not None
        gradient = torch.as_tensor(found.gradients[name])
        assert gradient.dtype == outputs[name].dtype
        assert gradient.shape == outputs[name].shape
        torch.testing.assert_close(gradient.double(), leaf.grad, atol=atol, rtol=0)


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize(("options", "kind"), itertools.product(OPTIONS, ["free", "state", "tokens"]))
@pytest.mark.parametrize("masked", [False, True])
def test_loss_and_gradients_equal_the_plain_composition(
    backend: str, options: FusedOptions, kind: str, masked: bool
) -> None:
    options = FusedOptions(**{**vars(options), "entropy_coef": 0.0}) if kind == "tokens" else options
    with use_backend(backend):
        for seed in range(6):
            outputs, batch = minibatch(kind, seed, masked)
            compare(fused_policy_loss(outputs, batch, options), outputs, batch, options, atol=1e-12)
            # In float32 a log density near -10 is known to 1e-6, and so is the ratio, here as in torch.
            single = [{k: x if x.dtype == torch.bool else x.float() for k, x in y.items()} for y in (outputs, batch)]
            compare(fused_policy_loss(single[0], single[1], options), single[0], single[1], options, atol=5e-6)


@pytest.mark.parametrize("backend", CPU)
@pytest.mark.parametrize("kind", ["free", "state", "tokens"])
def test_edges_one_row_no_row_no_critic_and_nan_below_the_mask(backend: str, kind: str) -> None:
    with use_backend(backend):
        for mask in (None, torch.tensor([True]), torch.tensor([False])):
            outputs, batch = minibatch(kind, 3, False, (1,))
            batch |= {} if mask is None else {"mask": mask}
            compare(fused_policy_loss(outputs, batch), outputs, batch, FusedOptions(), atol=1e-12)
        outputs, batch = minibatch(kind, 4, True)
        actor = {name: x for name, x in outputs.items() if name != "value"}
        compare(fused_policy_loss(actor, batch), actor, batch, FusedOptions(), atol=1e-12)
        expected = fused_policy_loss(outputs, batch, OPTIONS[1] if kind != "tokens" else FusedOptions(value_clip=0.3))
        for column in (*outputs.values(), *batch.values()):
            if column.dtype != torch.bool and column.shape[0] == 64:
                column[~batch["mask"]] = float("nan")
        found = fused_policy_loss(outputs, batch, OPTIONS[1] if kind != "tokens" else FusedOptions(value_clip=0.3))
        assert float(found.loss) == float(expected.loss)
        for name in outputs:
            assert torch.equal(found.gradients[name], expected.gradients[name])
            if outputs[name].shape[0] == 64:
                assert (found.gradients[name][~batch["mask"]] == 0).all()
        assert (found.log_ratio[~batch["mask"]] == 0).all()


@pytest.mark.parametrize("backend", CPU)
def test_padded_tokens_arrays_half_precision_and_strided_rows(backend: str) -> None:
    with use_backend(backend):
        outputs, batch = minibatch("tokens", 5, True, (4, 9))
        compare(fused_policy_loss(outputs, batch), outputs, batch, FusedOptions(), atol=1e-12)
        arrays = [{k: x.numpy() for k, x in y.items()} for y in (outputs, batch)]
        found = fused_policy_loss(arrays[0], arrays[1])
        assert all(isinstance(x, np.ndarray) for x in (*found.gradients.values(), found.log_ratio))
        compare(found, outputs, batch, FusedOptions(), atol=1e-12)
        half = {name: x.bfloat16() for name, x in outputs.items()}
        compare(fused_policy_loss(half, batch), half, batch, FusedOptions(), atol=2e-3)
        mixed, gaussian = minibatch("free", 6, True)
        mixed["log_std"] = mixed["log_std"].float()
        compare(fused_policy_loss(mixed, gaussian), mixed, gaussian, FusedOptions(), atol=1e-6)
        turned = {name: x.T.contiguous().T for name, x in outputs.items()}
        compare(fused_policy_loss(turned, batch), outputs, batch, FusedOptions(), atol=1e-12)


@pytest.mark.parametrize("backend", CPU)
def test_log_ratio_is_what_the_update_logs(backend: str) -> None:
    outputs, batch = minibatch("tokens", 0, False)
    outputs["logp"][0] = batch["logp"][0] + 50.0
    with use_backend(backend):
        found = fused_policy_loss(outputs, batch)
    torch.testing.assert_close(found.log_ratio, (outputs["logp"] - batch["logp"]).clamp(-20, 20))
    assert found.gradients["logp"][0] == 0  # beyond the clamp nothing is learnt from the row


def test_gradients_reach_a_network_as_those_of_the_plain_loss() -> None:
    """Handed to autograd, as a learner does: the weights' gradients are those of the composition."""
    torch.manual_seed(0)
    body, log_std = torch.nn.Linear(5, 4).double(), torch.nn.Parameter(torch.zeros(3, dtype=torch.float64))
    x = torch.randn(64, 5, dtype=torch.float64)
    _, batch = minibatch("free", 1, True)

    def outputs() -> dict[str, Tensor]:
        out = body(x)
        return {"mean": out[:, :3], "log_std": log_std, "value": out[:, 3]}

    options = OPTIONS[1]
    plain(outputs(), batch, options).backward()
    expected = [p.grad.clone() for p in (*body.parameters(), log_std) if p.grad is not None]
    for p in (*body.parameters(), log_std):
        p.grad = None
    made = outputs()
    found = fused_policy_loss(made, batch, options)
    torch.autograd.backward([made[name] for name in found.gradients], list(found.gradients.values()))
    for p, want in zip((*body.parameters(), log_std), expected):
        torch.testing.assert_close(p.grad, want, atol=1e-12, rtol=0)


@pytest.mark.parametrize("kind", ["free", "state", "tokens"])
def test_tensors_on_a_device_stay_there(kind: str) -> None:
    """The "meta" device has shapes and no values: whatever would read one, or leave the device, raises."""
    outputs, batch = minibatch(kind, 0, True)
    away = [{k: x.to("meta") for k, x in y.items()} for y in (outputs, batch)]
    options = OPTIONS[1] if kind != "tokens" else FusedOptions(dual_clip=2.0, value_clip=0.2)
    found = fused_policy_loss(away[0], away[1], options)
    for x in (found.loss, found.log_ratio, *found.gradients.values()):
        assert isinstance(x, Tensor)
        assert x.device.type == "meta"


def test_the_form_for_devices_equals_the_plain_composition() -> None:
    """The same torch code that a device runs, here inside `torch.compile`, which takes the same way."""
    for kind in ("free", "state", "tokens"):
        outputs, batch = minibatch(kind, 2, True)
        options = OPTIONS[1] if kind != "tokens" else FusedOptions(dual_clip=2.0, value_clip=0.2)
        torch._dynamo.reset()
        traced: Any = torch.compile(fused_policy_loss, fullgraph=True, backend="eager")
        compare(traced(outputs, batch, options), outputs, batch, options, atol=1e-12)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"outputs": {"mean": torch.zeros(4, 2)}}, "log_std is missing"),
        ({"outputs": {"logp": torch.zeros(4)}, "options": FusedOptions(entropy_coef=0.1)}, "entropy_coef needs"),
        ({"outputs": {"logp": torch.zeros(3)}}, r"logp has shape \(4,\), expected \(3,\)"),
        ({"batch": {"logp": torch.zeros(4)}}, "expected advantage too"),
        ({"outputs": {"mean": torch.zeros(4), "log_std": torch.zeros(1)}}, "expected \\(B, A\\)"),
    ],
)
def test_wrong_call_is_refused(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "outputs": {"logp": torch.zeros(4)},
        "batch": {"logp": torch.zeros(4), "advantage": torch.zeros(4)},
        **change,
    }
    with pytest.raises(ValueError, match=words):
        fused_policy_loss(**given)
    with pytest.raises(ValueError, match="dual_clip is"):
        FusedOptions(dual_clip=0.5)
    with pytest.raises(ValueError, match="value_clip is"):
        FusedOptions(value_clip=-1.0)
