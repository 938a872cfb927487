"""What this project reads of MuJoCo 3.17, which ships no types: its classes are compiled."""

from collections.abc import Sequence
from typing import Any

import numpy as np

class _View:
    act: np.ndarray
    adr: np.ndarray
    armature: np.ndarray
    axis: np.ndarray
    biasprm: np.ndarray
    biastype: np.ndarray
    conaffinity: np.ndarray
    contype: np.ndarray
    ctrl: np.ndarray
    ctrllimited: np.ndarray
    damping: np.ndarray
    dim: np.ndarray
    dofadr: np.ndarray
    forcelimited: np.ndarray
    forcerange: np.ndarray
    fovy: np.ndarray
    friction: np.ndarray
    frictionloss: np.ndarray
    gainprm: np.ndarray
    gap: np.ndarray
    gear: np.ndarray
    geomadr: np.ndarray
    group: np.ndarray
    id: int
    inertia: np.ndarray
    jntnum: np.ndarray
    limited: np.ndarray
    margin: np.ndarray
    mass: np.ndarray
    mode: np.ndarray
    name: str
    noise: np.ndarray
    pos: np.ndarray
    priority: np.ndarray
    qpos0: np.ndarray
    qpos: np.ndarray
    qposadr: np.ndarray
    quat: np.ndarray
    qvel: np.ndarray
    range: np.ndarray
    rgba: np.ndarray
    simple: np.ndarray
    size: np.ndarray
    stiffness: np.ndarray
    time: np.ndarray
    type: np.ndarray
    user: np.ndarray

class _DataView:
    ctrl: np.ndarray
    data: np.ndarray
    force: np.ndarray
    id: int
    length: np.ndarray
    name: str
    qacc: np.ndarray
    qacc_warmstart: np.ndarray
    qfrc_actuator: np.ndarray
    qfrc_applied: np.ndarray
    qfrc_bias: np.ndarray
    qpos: np.ndarray
    qvel: np.ndarray
    subtree_com: np.ndarray
    velocity: np.ndarray
    xanchor: np.ndarray
    xaxis: np.ndarray
    xipos: np.ndarray
    xmat: np.ndarray
    xpos: np.ndarray

class _Contact:
    geom: np.ndarray
    geom1: np.ndarray
    geom2: np.ndarray
    dist: np.ndarray
    frame: np.ndarray
    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> _Contact: ...

class MjModel:
    actuator_biasprm: np.ndarray
    actuator_biastype: np.ndarray
    actuator_ctrllimited: np.ndarray
    actuator_ctrlrange: np.ndarray
    actuator_dyntype: np.ndarray
    actuator_forcelimited: np.ndarray
    actuator_forcerange: np.ndarray
    actuator_gainprm: np.ndarray
    actuator_gaintype: np.ndarray
    actuator_gear: np.ndarray
    actuator_trnid: np.ndarray
    actuator_trntype: np.ndarray
    body_geomadr: np.ndarray
    body_geomnum: np.ndarray
    body_gravcomp: np.ndarray
    body_inertia: np.ndarray
    body_ipos: np.ndarray
    body_iquat: np.ndarray
    body_jntadr: np.ndarray
    body_jntnum: np.ndarray
    body_mass: np.ndarray
    body_mocapid: np.ndarray
    body_parentid: np.ndarray
    body_pos: np.ndarray
    body_quat: np.ndarray
    body_rootid: np.ndarray
    body_subtreemass: np.ndarray
    body_weldid: np.ndarray
    cam_bodyid: np.ndarray
    cam_fovy: np.ndarray
    dof_armature: np.ndarray
    dof_damping: np.ndarray
    dof_frictionloss: np.ndarray
    eq_data: np.ndarray
    eq_active0: np.ndarray
    eq_obj1id: np.ndarray
    eq_objtype: np.ndarray
    eq_obj2id: np.ndarray
    eq_type: np.ndarray
    geom_aabb: np.ndarray
    geom_dataid: np.ndarray
    geom_bodyid: np.ndarray
    geom_conaffinity: np.ndarray
    geom_contype: np.ndarray
    geom_friction: np.ndarray
    geom_pos: np.ndarray
    geom_quat: np.ndarray
    geom_rbound: np.ndarray
    geom_size: np.ndarray
    geom_type: np.ndarray
    jnt_actfrclimited: np.ndarray
    jnt_actfrcrange: np.ndarray
    jnt_axis: np.ndarray
    jnt_bodyid: np.ndarray
    dof_bodyid: np.ndarray
    jnt_dofadr: np.ndarray
    jnt_limited: np.ndarray
    jnt_pos: np.ndarray
    jnt_qposadr: np.ndarray
    jnt_range: np.ndarray
    jnt_stiffness: np.ndarray
    jnt_type: np.ndarray
    key_qpos: np.ndarray
    mesh_face: np.ndarray
    mesh_faceadr: np.ndarray
    mesh_facenum: np.ndarray
    mesh_vert: np.ndarray
    mesh_vertadr: np.ndarray
    mesh_vertnum: np.ndarray
    nbody: int
    ncam: int
    neq: int
    ngeom: int
    njmax: int
    njnt: int
    nmesh: int
    ntex: int
    npair: int
    nq: int
    nsensor: int
    nsensordata: int
    nsite: int
    ntendon: int
    nu: int
    nv: int
    pair_friction: np.ndarray
    pair_geom1: np.ndarray
    pair_geom2: np.ndarray
    plugin: np.ndarray
    qpos0: np.ndarray
    sensor_adr: np.ndarray
    sensor_dim: np.ndarray
    sensor_needstage: np.ndarray
    signature: int
    site_bodyid: np.ndarray
    site_pos: np.ndarray
    site_quat: np.ndarray
    tendon_adr: np.ndarray
    tendon_num: np.ndarray
    tendon_stiffness: np.ndarray
    wrap_prm: np.ndarray
    wrap_objid: np.ndarray
    wrap_type: np.ndarray
    opt: MjOption
    stat: Any
    vis: Any
    @staticmethod
    def from_xml_path(filename: str, /) -> MjModel: ...
    @staticmethod
    def from_xml_string(xml: str, /) -> MjModel: ...
    @staticmethod
    def from_binary_path(filename: str, /) -> MjModel: ...
    def joint(self, name: int | str, /) -> _View: ...
    def body(self, name: int | str, /) -> _View: ...
    def site(self, name: int | str, /) -> _View: ...
    def geom(self, name: int | str, /) -> _View: ...
    def cam(self, name: int | str, /) -> _View: ...
    def camera(self, name: int | str, /) -> _View: ...
    def sensor(self, name: int | str, /) -> _View: ...
    def key(self, name: int | str, /) -> _View: ...
    def actuator(self, name: int | str, /) -> _View: ...

class MjOption:
    density: float
    disableflags: int
    enableflags: int
    @property
    def gravity(self) -> np.ndarray: ...
    @gravity.setter
    def gravity(self, value: np.ndarray | Sequence[float]) -> None: ...
    impratio: float
    noslip_iterations: int
    integrator: int
    iterations: int
    jacobian: int
    ls_iterations: int
    solver: int
    timestep: float
    tolerance: float
    wind: np.ndarray

class MjData:
    def __init__(self, model: MjModel, /) -> None: ...
    act: np.ndarray
    cam_xmat: np.ndarray
    cam_xpos: np.ndarray
    ctrl: np.ndarray
    energy: np.ndarray
    geom_xmat: np.ndarray
    geom_xpos: np.ndarray
    history: np.ndarray
    mocap_pos: np.ndarray
    mocap_quat: np.ndarray
    ncon: int
    plugin: np.ndarray
    plugin_data: np.ndarray
    qacc: np.ndarray
    qacc_warmstart: np.ndarray
    qfrc_actuator: np.ndarray
    qfrc_applied: np.ndarray
    qfrc_bias: np.ndarray
    qpos: np.ndarray
    qvel: np.ndarray
    sensordata: np.ndarray
    signature: int
    site_xmat: np.ndarray
    site_xpos: np.ndarray
    subtree_com: np.ndarray
    time: float
    xanchor: np.ndarray
    xaxis: np.ndarray
    xipos: np.ndarray
    xmat: np.ndarray
    xpos: np.ndarray
    contact: _Contact
    def joint(self, name: int | str, /) -> _DataView: ...
    def body(self, name: int | str, /) -> _DataView: ...
    def site(self, name: int | str, /) -> _DataView: ...
    def geom(self, name: int | str, /) -> _DataView: ...
    def cam(self, name: int | str, /) -> _DataView: ...
    def camera(self, name: int | str, /) -> _DataView: ...
    def sensor(self, name: int | str, /) -> _DataView: ...
    def actuator(self, name: int | str, /) -> _DataView: ...

class MjsElement:
    """One body, joint, shape … of a model that is edited; what it takes is more than what it gives back."""

    name: str
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: object) -> None: ...

class MjSpec:
    actuators: list[MjsElement]
    assets: dict[str, bytes]
    bodies: list[MjsElement]
    cameras: list[MjsElement]
    compiler: MjsElement
    default: MjsElement
    equalities: list[MjsElement]
    excludes: list[MjsElement]
    pairs: list[MjsElement]
    geoms: list[MjsElement]
    joints: list[MjsElement]
    keys: list[MjsElement]
    lights: list[MjsElement]
    materials: list[MjsElement]
    meshdir: str
    meshes: list[MjsElement]
    modelfiledir: str
    modelname: str
    option: MjOption
    sensors: list[MjsElement]
    sites: list[MjsElement]
    stat: MjsElement
    strippath: bool
    tendons: list[MjsElement]
    texturedir: str
    textures: list[MjsElement]
    visual: MjsElement
    worldbody: MjsElement
    @staticmethod
    def from_file(filename: str, /) -> MjSpec: ...
    @staticmethod
    def from_string(xml: str, /) -> MjSpec: ...
    def compile(self) -> MjModel: ...
    def copy(self) -> MjSpec: ...
    def delete(self, element: MjsElement, /) -> None: ...
    def to_xml(self) -> str: ...
    def body(self, name: str, /) -> MjsElement: ...
    def geom(self, name: str, /) -> MjsElement: ...
    def joint(self, name: str, /) -> MjsElement: ...
    def mesh(self, name: str, /) -> MjsElement: ...
    def site(self, name: str, /) -> MjsElement: ...
    def attach(self, child: MjSpec, **where: object) -> MjsElement: ...
    def add_actuator(self, **fields: object) -> MjsElement: ...
    def add_default(self, name: str, parent: MjsElement, /) -> MjsElement: ...
    def add_equality(self, **fields: object) -> MjsElement: ...
    def add_exclude(self, **fields: object) -> MjsElement: ...
    def add_key(self, **fields: object) -> MjsElement: ...
    def add_material(self, **fields: object) -> MjsElement: ...
    def add_mesh(self, **fields: object) -> MjsElement: ...
    def add_sensor(self, **fields: object) -> MjsElement: ...
    def add_texture(self, **fields: object) -> MjsElement: ...

class MjvGeom:
    mat: np.ndarray
    pos: np.ndarray
    rgba: np.ndarray
    size: np.ndarray

class MjvScene:
    maxgeom: int
    ngeom: int
    geoms: Sequence[MjvGeom]

def __getattr__(name: str) -> Any: ...
