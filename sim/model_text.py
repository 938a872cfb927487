"""A model's XML as MuJoCo reads it, which is less strict than Python, and as MuJoCo reads again what it wrote."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

if TYPE_CHECKING:
    from mujoco import MjSpec

PLAIN = "robot_rl_plain"
"""Class of defaults that are the model's own; MuJoCo looks classes up by name, and "main" may be there twice."""


def read_xml(path: Path) -> ElementTree.Element:
    """Root of a URDF or MJCF.

    Raises:
        ValueError: it is no XML.
    """
    text = path.read_bytes()
    # many URDFs have `drake:…` without saying what drake is, which MuJoCo and urdfdom do not mind
    names = set(re.findall(rb"[<\s]([A-Za-z_][\w.-]*):[A-Za-z_][\w.-]*(?=[\s=/>])", text))
    unsaid = [name for name in sorted(names) if name not in (b"xml", b"xmlns") and b"xmlns:" + name not in text]
    said = b"".join(b' xmlns:%s="%s"' % (name, name) for name in unsaid)
    text = re.sub(rb"<(robot|mujoco)\b", rb"<\1" + said, text, count=1) if said else text
    try:
        return ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        try:
            return ElementTree.fromstring(_first_element(text))
        except ElementTree.ParseError:
            raise ValueError(f"{path} is no XML: {error}") from error


def _first_element(text: bytes) -> bytes:
    """Without comments, which may not hold `--`, and what follows the root; MuJoCo minds neither."""
    text = re.sub(rb"<!--.*?-->", b"", text, flags=re.DOTALL)
    if root := re.search(rb"<(\w+)", text):
        text, end, _ = text.partition(b"</%s>" % root[1])
        text += end
    return text


def write_xml(spec: MjSpec) -> str:
    """MJCF text of a compiled model, in which every class of defaults has a name of its own.

    What `attach` brings without a prefix may have classes without a name, or with one that is there already; MuJoCo
    writes them all the same and does not read them again. Then every element says what its class said.
    """
    text = spec.to_xml()
    classes = re.findall(r'<default(?: class="([^"]*)")?>', text)
    if len(set(classes)) == len(classes):
        return text
    plain = spec.add_default(PLAIN, spec.default)
    for kind in (
        spec.geoms, spec.joints, spec.sites, spec.cameras, spec.lights, spec.meshes, spec.materials,
        spec.pairs, spec.equalities, spec.actuators,
    ):  # fmt: skip
        for element in kind:
            element.classname = plain
    root = ElementTree.fromstring(spec.to_xml())
    for outer in root.findall("default"):
        for inner in outer.findall("default"):
            if inner.get("class") != PLAIN:
                outer.remove(inner)
    for element in root.iter():
        element.attrib.pop("childclass", None)
    return ElementTree.tostring(root, encoding="unicode")
