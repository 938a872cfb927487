"""Batched kinematics against MuJoCo's own, and against numbers by hand."""
# pyright: reportAttributeAccessIssue=false
# (MuJoCo's compiled modules carry no type information)

from __future__ import annotations

import math

import mujoco
import numpy as np
import pytest
import torch

from robot_rl.sim.arm import HOME, downward, scene
from robot_rl.sim.kinematics import Chain, rotation_error

# A slide, a hinge beside its body's origin, oblique axes, turned bodies, a limit from a default class.
_ODD = """
<mujoco>
  <compiler angle="radian" autolimits="true"/>
  <default><default class="half"><joint range="-0.5 0.7"/></default></default>
  <worldbody>
    <body name="a" pos="0.1 0.2 0.3" quat="0.9 0.1 -0.3 0.2">
      <joint name="rail" type="slide" axis="1 1 0"/><geom size="0.1"/>
      <body name="b" pos="0 0.4 0" childclass="half">
        <joint name="crank" axis="0.2 1 -0.4" pos="0.05 -0.02 0.1"/><geom size="0.1"/>
        <body name="c" pos="0 0 0.2" quat="1 0 0.5 0">
          <body name="d" pos="0.3 0 0"><joint name="last" axis="1 0 0" range="-1 1"/><geom size="0.1"/>
            <site name="end" pos="0.1 0.1 0" quat="0.5 0.5 -0.5 0.5"/>
          </body>
        </body>
      </body>
    </body>
  </worldbody>
</mujoco>
"""


def _model(mjcf: str) -> mujoco.MjModel:
    return mujoco.MjModel.from_xml_string(mjcf)


# Positions that count from elsewhere than the pose in which the file shows the joints.
_SHIFTED = _ODD.replace('name="rail"', 'name="rail" ref="0.1"').replace('name="crank"', 'name="crank" ref="-0.4"')


@pytest.mark.parametrize(("mjcf", "site"), [(scene(), "tip"), (_ODD, "end"), (_SHIFTED, "end")])
def test_chain_pose_and_jacobian_equal_mujocos(mjcf: str, site: str) -> None:
    model = _model(mjcf)
    chain = Chain(model, site)
    data = mujoco.MjData(model)
    index, count = model.site(site).id, len(chain.joints)
    q = np.random.default_rng(0).uniform(-2.0, 2.0, (40, count))
    position, rotation, jacobian = chain.jacobian(q)
    for i in range(len(q)):
        data.qpos[:] = 0.0
        data.qpos[:count] = q[i]
        mujoco.mj_forward(model, data)
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jacSite(model, data, linear, angular, index)
        np.testing.assert_allclose(position[i], data.site_xpos[index], atol=1e-6)
        np.testing.assert_allclose(rotation[i].ravel(), data.site_xmat[index], atol=1e-6)
        np.testing.assert_allclose(jacobian[i], np.vstack([linear, angular])[:, :count], atol=1e-6)


def test_chain_limits_equal_the_compiled_models() -> None:
    for mjcf, site in ((scene(), "tip"), (_ODD, "end")):
        model = _model(mjcf)
        chain = Chain(model, site)
        for j, name in enumerate(chain.joints):
            limited = bool(model.joint(name).limited[0])
            expected = model.joint(name).range if limited else (-math.inf, math.inf)
            assert (chain.low[j], chain.high[j]) == pytest.approx(tuple(expected))


def test_solve_two_iterations_follow_a_move_of_five_centimetres() -> None:
    chain = Chain(_model(scene()), "tip")
    home = np.array([HOME])
    position, _ = chain.forward(home)
    rng = np.random.default_rng(1)
    direction = rng.normal(size=(64, 3))
    wanted = position + 0.05 * direction / np.linalg.norm(direction, axis=1, keepdims=True)
    q = chain.solve(np.repeat(home, 64, axis=0), wanted, downward(np.zeros(64)))
    reached, rotation = chain.forward(q)
    assert np.abs(reached - wanted).max() < 5e-4
    assert np.abs(rotation - downward(np.zeros(1))).max() < 5e-3


def test_solve_out_of_reach_stays_finite_and_within_limits() -> None:
    chain = Chain(_model(scene()), "tip")
    q = chain.solve(np.array([HOME]), np.array([[2.0, 0.0, 0.5]]), downward(np.zeros(1)), iterations=50)
    assert np.isfinite(q).all()
    assert (q >= chain.low).all()
    assert (q <= chain.high).all()


def test_chain_torch_gives_what_numpy_gives() -> None:
    chain = Chain(_model(scene()), "tip")
    q = np.random.default_rng(2).uniform(-1.0, 1.0, (5, 6))
    for ours, theirs in zip(chain.jacobian(torch.from_numpy(q)), chain.jacobian(q)):
        assert isinstance(ours, torch.Tensor)
        np.testing.assert_allclose(np.asarray(ours), theirs, atol=1e-12)
    position, rotation = chain.forward(q)
    wanted = position + 0.02
    moved = chain.solve(torch.from_numpy(q), torch.from_numpy(wanted), torch.from_numpy(rotation))
    np.testing.assert_allclose(np.asarray(moved), chain.solve(q, wanted, rotation), atol=1e-9)


def test_chain_float32_stays_float32() -> None:
    position, rotation = Chain(_model(scene()), "tip").forward(np.zeros((1, 6), np.float32))
    assert position.dtype == rotation.dtype == np.float32


def test_rotation_error_turn_about_z_gives_its_sine() -> None:
    angle = 0.1
    turn = np.array([[[math.cos(angle), -math.sin(angle), 0], [math.sin(angle), math.cos(angle), 0], [0, 0, 1]]])
    # Half the sum of column cross products: (ex x ex' + ey x ey' + ez x ez') / 2 = (0, 0, 2 sin(0.1)) / 2.
    np.testing.assert_allclose(rotation_error(np.eye(3)[None], turn), [[0, 0, math.sin(angle)]], atol=1e-12)


@pytest.mark.parametrize(
    ("mjcf", "message"),
    [
        (scene(), "no site 'hook' in the model"),
        (_ODD.replace('name="end"', 'name="hook"').replace('type="slide"', 'type="ball"'), "'rail' is no hinge or sl"),
        ("<mujoco><worldbody><site name='hook'/></worldbody></mujoco>", "no joint lies between"),
    ],
)
def test_chain_refuses_what_it_cannot_read(mjcf: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Chain(_model(mjcf), "hook")
