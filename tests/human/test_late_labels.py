"""Words about episodes that are over, or that nobody has driven yet, and what a resume knows of thrown-away ones."""
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false

from robot_rl.human.options import SessionOptions
from tests.human.test_loop import Script, build


def test_label_after_the_end_of_a_demonstration_is_about_it(tmp_path):
    ticks = [{"enable": True, "value": 0.01}] * 30 + [{}, {"press": ("success",)}] + [{}] * 40
    loop = build(tmp_path, Script(ticks), options=SessionOptions(task_reward="labels"))
    loop._episode(demo=True)
    loop._episode(demo=True)
    assert loop.labels.said == "success, episode 0"
    assert loop.demos == 1
    assert len(loop.memory.views["demo"]) == 30


def test_two_words_in_one_tick_are_about_the_same_episode(tmp_path):
    ticks = [{}] * 40 + [{"press": ("success", "failure")}] + [{}] * 60
    loop = build(tmp_path, Script(ticks), options=SessionOptions(task_reward="labels"))
    loop._episode(demo=False)
    loop._episode(demo=False)
    assert [line["label"] for line in loop.labels.list()] == ["failure", ""]
