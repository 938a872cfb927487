import pytest

from robot_rl.data.scores import episode_limit, normalized_score, normalized_std, reference_scores


@pytest.mark.parametrize(
    ("name", "episode_return", "score"),
    [
        ("halfcheetah-medium-v2", 12135.0, 100.0),
        ("hopper_medium_expert_v2", -20.272305, 0.0),
        ("ant-random-v2", -325.6, 0.0),
        ("antmaze-umaze-v2", 0.5, 50.0),  # not the scores of ant
        ("kitchen-mixed-v0", 3.0, 75.0),
        ("maze2d-umaze-v1", 92.855, 50.0),  # halfway between 23.85 and 161.86
        ("maze2d-umaze-dense-v1", 193.66285642381482, 100.0),
        ("maze2d-eval-large-v1", 302.22, 100.0),
        # (1000 - -20.272305) / (3234.3 - -20.272305) = 1020.272305 / 3254.572305
        ("Hopper-medium-replay-v0", 1000.0, 31.348890),
    ],
)
def test_normalized_score_known_points(name: str, episode_return: float, score: float) -> None:
    assert normalized_score(name, episode_return) == pytest.approx(score, abs=1e-5)


def test_normalized_std_is_scaled_and_not_shifted() -> None:
    # 100 * 10 / (3234.3 + 20.272305)
    assert normalized_std("hopper-medium-v2", 10.0) == pytest.approx(0.307260, abs=1e-6)


@pytest.mark.parametrize("name", ["maze2d-umaze", "reacher-v2", "x"])
def test_reference_scores_unknown_lists_the_known(name: str) -> None:
    with pytest.raises(ValueError, match=r"no reference score.*hopper"):
        reference_scores(name)


@pytest.mark.parametrize(
    ("name", "limit"),
    [
        ("walker2d-medium-v2", 1000),
        ("antmaze-umaze-diverse-v1", 700),
        ("antmaze-large-play-v1", 1000),
        ("pen-human-v1", 100),
        ("door-cloned-v1", 200),
        ("kitchen-partial-v0", 280),
        ("maze2d-medium-dense-v1", 600),
        ("unknown-v0", None),
    ],
)
def test_episode_limit_by_name(name: str, limit: int) -> None:
    assert episode_limit(name) == limit
