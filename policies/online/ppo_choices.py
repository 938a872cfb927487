"""PPO where an action is one of n choices: a softmax in place of the Gaussian."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from robot_rl.advantage import FusedOptions, fused_policy_loss
from robot_rl.advantage.fused import FusedLoss
from robot_rl.policies.nets.actor_critic import activate, torch_outputs
from robot_rl.policies.online.ppo_policy import PpoPolicy
from robot_rl.types import Action, Array, Obs, action_of, choice_of


def choice_loss(outputs: Mapping[str, Array], batch: Mapping[str, Array], options: FusedOptions) -> FusedLoss:
    """`fused_policy_loss` of a softmax policy, with the gradient of its logits.

    With log-probabilities l = logits - logsumexp and p = exp(l), d l_k / d logits = onehot(k) - p, and the entropy
    H = -sum p l has d H / d logits = -p (l + H).

    Args:
        outputs: "mean" (B, n) the logits, "log_std" unused, "value" (B,).
        batch: as of `fused_policy_loss`, with "action" (B, 1) in [-1, 1].
        options: coefficients; the entropy bonus is that of the choices.
    """
    written_out = isinstance(outputs["mean"], np.ndarray)
    outputs, batch = ({name: torch.as_tensor(x) for name, x in columns.items()} for columns in (outputs, batch))
    logits = outputs["mean"].detach()
    every = logits.log_softmax(-1)
    index = choice_of(batch["action"], logits.shape[-1]).long()
    shares = every.exp()
    plain = replace(options, entropy_coef=0.0)
    found = fused_policy_loss({"logp": every.gather(-1, index)[:, 0], "value": outputs["value"]}, batch, plain)
    d_logp = found.gradients["logp"][:, None]
    d_logits = -d_logp * shares
    d_logits.scatter_add_(-1, index, d_logp)
    loss = found.loss
    if options.entropy_coef:
        entropy = -(shares * every).sum(-1, keepdim=True)
        d_logits += shares * (every + entropy) * (options.entropy_coef / len(logits))
        loss = loss - options.entropy_coef * entropy.mean()
    gradients = {"mean": d_logits, "log_std": torch.zeros_like(outputs["log_std"]), "value": found.gradients["value"]}
    log_ratio = found.log_ratio
    if written_out:
        gradients, log_ratio = {name: x.numpy() for name, x in gradients.items()}, log_ratio.numpy()
    return FusedLoss(loss, gradients, log_ratio)


class ChoicePolicy(PpoPolicy):
    """Softmax over n choices; `layout` has n outputs of the actor, and the n-th choice is the action 1."""

    def act(self, obs: Obs, *, deterministic: bool = False) -> Action:
        """Sample choices, or take the likeliest.

        Returns:
            value (B, 1) in [-1, 1]; logp (B,) of it (None when deterministic); extras "raw", the value again.
        """
        first = obs[self._keys[0]]
        if isinstance(first, Tensor):
            if first.device.type != "cpu" or self._params.device.type != "cpu" or torch.compiler.is_exporting():
                return self._act_on_device(obs, deterministic)
            found = self.act({key: obs[key].numpy() for key in self._keys}, deterministic=deterministic)
            value = torch.from_numpy(found.value)
            return Action(value, None if found.logp is None else torch.from_numpy(found.logp), {"raw": value})
        h = self.normalized(obs)
        for weight, bias in self._actor:
            h = np.dot(h, weight)
            h += bias
            activate(h, self._activation)
        logits = np.dot(h, self._np["actor_weight"]) + self._np["actor_bias"]
        if deterministic:
            chosen = logits.argmax(-1)
        else:  # the largest of logits with Gumbel noise is a sample of the softmax
            chosen = (logits + self._rng.gumbel(size=logits.shape).astype(np.float32)).argmax(-1)
        value = action_of(chosen[:, None].astype(np.float32), logits.shape[-1])
        if deterministic:
            return Action(value, None, {"raw": value})
        top = logits.max(-1)
        total = np.log(np.exp(logits - top[:, None]).sum(-1)) + top
        return Action(value, np.take_along_axis(logits, chosen[:, None], -1)[:, 0] - total, {"raw": value})

    @torch.no_grad()
    def _act_on_device(self, obs: Obs, deterministic: bool) -> Action:
        logits = torch_outputs(self._views, self._layout, self.normalized_on_device(obs), self._activation)["mean"]
        every = logits.log_softmax(-1)
        if deterministic:
            chosen = every.argmax(-1, keepdim=True)
        else:
            chosen = torch.multinomial(every.exp(), 1, generator=self._device_rng)
        value = action_of(chosen.float(), logits.shape[-1])
        return Action(value, None if deterministic else every.gather(-1, chosen)[:, 0], {"raw": value})
