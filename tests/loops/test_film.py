"""A film shows at most 25 pictures of each second, and says how far it is."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from robot_rl.loops.evaluate import FilmCamera


@pytest.mark.parametrize(
    ("control_hz", "every", "hz"),
    [(10.0, 1, 10.0), (25.0, 1, 25.0), (40.0, 2, 20.0), (50.0, 2, 25.0), (500.0, 20, 25.0)],
)
def test_a_film_shows_at_most_so_many_pictures_of_a_second(control_hz: float, every: int, hz: float) -> None:
    drawn, told = [0], []

    def render() -> list[np.ndarray]:
        drawn[0] += 1
        return [np.full((2, 2, 3), drawn[0], np.uint8)]

    env: Any = SimpleNamespace(io=SimpleNamespace(control_hz=control_hz), render=render)
    film = FilmCamera(env, 0.2)
    film.tell = told.append
    assert (film.hz, film.most) == (hz, int(0.2 * hz))
    for step in range(2 * every * film.most):
        film()
        assert drawn[0] == min(1 + step // every, film.most)
    assert told == list(range(1, film.most + 1))
    assert [int(frame[0, 0, 0]) for frame in film.frames] == told


def test_what_cannot_be_drawn_gives_no_film() -> None:
    env: Any = SimpleNamespace(io=SimpleNamespace(control_hz=20.0), render=lambda: None)
    with pytest.raises(ValueError, match="draws nothing, so there is no film"):
        FilmCamera(env, 1.0)()
