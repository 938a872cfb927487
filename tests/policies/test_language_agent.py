"""The language agent: masks, cached log-probabilities, stops, batches and saving."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("transformers", reason="needs transformers (extra `language`)")
from robot_rl.advantage import ClipRange, Pipeline, Stage, policy_loss
from robot_rl.checkpoint import load_state, save_state
from robot_rl.policies.language.agent import LanguageAgent, LanguageAgentOptions, pipeline_of, policy_term
from robot_rl.policies.language.agent_model import Conversation
from robot_rl.policies.language.agent_rollout import expert_dialogues, flat, to_batch, token_logp
from robot_rl.policies.language.agent_words import WordTokenizer
from robot_rl.sim.text import TextVectorEnv
from robot_rl.sim.worlds.text_guess import TextGuess
from robot_rl.sim.worlds.text_maze import TextMaze
from robot_rl.sim.worlds.text_tools import TextTools

TINY: dict[str, Any] = {
    "hidden": 16,
    "layers": 2,
    "heads": 2,
    "groups": 2,
    "group_size": 3,
    "minibatch": 4,
    "epochs": 1,
}


def agent_on(world, **options):
    env = TextVectorEnv(world, 2, 0)
    options = {**TINY, "warmup_dialogues": 0, **options}
    agent = LanguageAgent(LanguageAgentOptions(**options), env.io)
    agent.attach(env)
    return agent, env


def test_word_tokenizer_by_hand():
    words = WordTokenizer(("ask", "yes", "3"))
    assert words.observation("yes 3") == [4, 5, 2]
    assert words.utterance("ask 3 other") == [3, 5, 0, 1]
    assert words.text([3, 5, 1, 4]) == "ask 3"
    with pytest.raises(ValueError, match="'yes' twice"):
        WordTokenizer(("yes", "yes"))


def test_expert_dialogue_masks_are_exact():
    env = TextVectorEnv(TextTools(), 1, 0)
    words = WordTokenizer(env.vocabulary)
    one = expert_dialogues(env, words, [4])[0]
    world = TextTools()
    item = world.reset(4).split()[-1]
    shelf, number = f"s{world._shelf[item]}", f"n{world._number[world._shelf[item]]}"
    expected = f"which number {item} <say> find {item} <stop> shelf {shelf} <say> open {shelf} <stop> "
    expected += f"number {number} <say> answer {number} <stop>"
    assert " ".join(words.words[i] for i in one.tokens) == expected
    #                      prompt + say    find          answer + say  open          answer + say  answer
    assert one.written == [False] * 4 + [True] * 3 + [False] * 3 + [True] * 3 + [False] * 3 + [True] * 3
    assert one.spans == [(4, 6), (10, 12), (16, 18)]
    assert np.flatnonzero(one.reward).tolist() == [6, 12, 18]
    assert one.outcome == pytest.approx(one.optimum)
    batch = to_batch([one], critic=False)
    assert batch.steps.loss_mask.tolist() == one.written
    assert batch.turns.start.tolist() == [4, 10, 16]
    assert batch.turns.end.tolist() == [6, 12, 18]
    assert batch.episodes.outcome[0] == pytest.approx(0.9)


@pytest.mark.parametrize("world", [TextGuess(), TextMaze()])
def test_cached_log_probabilities_equal_a_full_forward_pass(world):
    agent, _ = agent_on(world, longest=3)
    with torch.no_grad():  # a value head that says something
        agent.model.value.weight.normal_()
    dialogues = agent.collect([1, 1, 2, 3, 4])
    assert len({len(one.tokens) for one in dialogues}) > 1  # ragged, so that holes in the cache are tried
    logp, value, _ = token_logp(agent.model, dialogues)
    written = flat([one.written for one in dialogues])
    np.testing.assert_allclose(
        flat([one.logp for one in dialogues])[written], logp.detach().numpy()[written], atol=2e-5
    )
    np.testing.assert_allclose(
        flat([one.value for one in dialogues])[written], value.detach().numpy()[written], atol=2e-5
    )
    assert not flat([one.logp for one in dialogues])[~written].any()
    alone = token_logp(agent.model, [dialogues[3]])[0]
    start = sum(len(one.tokens) for one in dialogues[:3])
    np.testing.assert_allclose(alone.detach(), logp.detach()[start : start + len(alone)], atol=2e-5)


class Script:
    """Stands where a model stands and writes a fixed text whatever it hears."""

    def __init__(self, agent, rows):
        self.core, self.value, self.rows, self.size = agent.model.core, agent.model.value, rows, agent.tokenizer.size
        self.at = [0] * len(rows)
        self.say = WordTokenizer.SAY

    def cache(self):
        return None

    def __call__(self, ids, mask, *, cache=None, position=None):
        real = mask[:, -ids.shape[1] :].bool()
        logits = torch.full((*ids.shape, self.size), -30.0)
        for i in range(len(ids)):
            for t in range(ids.shape[1]):
                if real[i, t]:
                    self.at[i] = 0 if ids[i, t] == self.say else self.at[i] + 1
                    logits[i, t, self.rows[i][min(self.at[i], len(self.rows[i]) - 1)]] = 30.0
        return logits, torch.zeros(ids.shape)


def test_stop_ends_an_utterance_and_the_limit_cuts_it():
    agent, _ = agent_on(TextGuess(numbers=4))
    words = agent.tokenizer
    ask, two, stop = (*words.utterance("ask 2"),)
    script: Any = Script(agent, [[ask, two, stop, ask], [ask, ask, two, two]])
    talk = Conversation(script, 2)
    talk.feed([words.observation("numbers 4"), words.observation("yes")])
    said = talk.write(stop, 3, None)
    assert said.ids == [[ask, two, stop], [ask, ask, two]]
    assert said.stopped == [True, False]
    assert [len(logp) for logp in said.logp] == [3, 3]


def test_missing_stop_enters_the_dialogue_unwritten():
    agent, _ = agent_on(TextGuess(numbers=4, max_turns=2), longest=2)
    words = agent.tokenizer
    stop = words.stop
    with torch.no_grad():  # never the stop, so that every utterance is cut after two tokens
        agent.model.core.get_output_embeddings().weight[stop] = -100 * torch.ones(16)
    one = agent.collect([0], deterministic=True)[0]
    for first, last in one.spans:
        if stop not in one.tokens[first : last + 1] and last + 1 < len(one.tokens):
            assert last - first == 1
            assert one.tokens[last + 1] == stop
            assert not one.written[last + 1]


def test_context_limit_truncates_with_a_value_of_what_follows():
    agent, _ = agent_on(TextMaze(), context=60, advantage="turn_gae")
    with torch.no_grad():
        agent.model.value.bias.fill_(0.5)
    dialogues = agent.collect([1, 2, 3])
    assert all(len(one.tokens) <= 60 for one in dialogues)
    cut = [one for one in dialogues if one.truncated]
    assert cut
    assert [one.next_value for one in cut] == pytest.approx([0.5] * len(cut))
    batch = to_batch(dialogues, critic=True)
    assert batch.steps.truncated.sum() == len(cut)


def test_prompt_without_room_for_an_utterance_is_refused():
    agent, env = agent_on(TextMaze(), context=8)
    with pytest.raises(ValueError, match="up to 4: context is 8, expected"):
        agent.collect([1, 2])
    seen = env.reset(seed=3)[0]
    heard = agent.tokenizer.observation(str(seen["text"][0]))
    assert len(heard) > 4
    agent.policy.act(seen)
    assert agent.policy._talk is not None
    assert agent.policy._talk.columns <= 8
    assert agent.policy._history[0][:4] == heard[-4:]


def test_turn_gae_of_dialogues_by_hand():
    agent, _ = agent_on(TextTools(shelves=2, items=2, max_turns=6), advantage="turn_gae", warmup_dialogues=4)
    agent.warm_up()
    with torch.no_grad():
        agent.model.value.weight.normal_(generator=torch.Generator().manual_seed(0))
    dialogues = agent.collect(range(6))
    batch = to_batch(dialogues, critic=True)
    credit = Pipeline([Stage("turn_gae", options={"gamma": 0.9, "gae_lambda": 0.8})])(batch)
    for one, begin in zip(dialogues, batch.episodes.start):
        ids = torch.tensor([one.tokens])
        with torch.no_grad():
            said = agent.model(ids, torch.ones_like(ids))[1][0].numpy()  # V of what follows each token
        # The state of a turn is everything in front of the utterance.
        value = [said[first - 1] for first, _ in one.spans] + [one.next_value if one.truncated else 0.0]
        if one.truncated:
            assert one.next_value == pytest.approx(said[-1], abs=1e-4)
        after = 0.0
        for turn in range(len(one.spans) - 1, -1, -1):
            first, last = one.spans[turn]
            reward = sum(one.reward[first : last + 1])
            after = reward + 0.9 * value[turn + 1] - value[turn] + 0.9 * 0.8 * after
            rows = slice(begin + first, begin + last + 1)
            assert credit.advantage[rows] == pytest.approx(np.full(last + 1 - first, after), abs=1e-4)
            assert credit.returns[begin + first] == pytest.approx(after + value[turn], abs=1e-4)
            assert list(credit.value_weight[rows]) == [1.0] + [0.0] * (last - first)
    assert any(len(one.spans) > 2 for one in dialogues)
    assert any(one.truncated for one in dialogues)


@pytest.mark.parametrize(
    ("advantage", "options"),
    [
        ("gigpo", {}),
        ("grpo", {}),
        ("trloo", {}),
        ("rloo", {}),
        ("turn_gae", {}),
        ("bilevel", {}),
        ("gae", {"gamma": 1.0}),
        ("reinforce_pp", {}),
        ("ema_grpo", {}),
        ("async_areal", {}),
    ],
)
def test_any_estimator_by_name_makes_an_update(advantage, options):
    imitation = {
        "warmup_dialogues": 4,
        "warmup_steps": 40,
        "warmup_lr": 0.01,
        "group_size": 6,
    }  # enough for outcomes that differ
    agent, _ = agent_on(TextGuess(numbers=2), advantage=advantage, advantage_options=options, **imitation)
    agent.warm_up()
    before = [x.clone() for x in agent.model.parameters()]
    seen = []
    agent.run(1, lambda step, metrics: seen.append((step, metrics)) or True)
    step, metrics = seen[0]
    assert step == agent.env_steps > 0
    assert all(np.isfinite(x) for x in metrics.values())
    assert ("train/value_loss" in metrics) == (advantage in ("turn_gae", "bilevel", "gae", "async_areal"))
    assert any((a != b).any() for a, b in zip(before, agent.model.parameters()))


def test_pipeline_by_name_takes_gamma_options_and_pipelines():
    assert pipeline_of("gigpo", {}, gamma=0.7, loss={}).estimators[0][0].options["gamma"] == 0.7
    assert pipeline_of("gigpo", {"gamma": 0.5}, gamma=0.7, loss={}).estimators[0][0].options["gamma"] == 0.5
    for name in ("turn_gae", "bilevel", "trloo", "mapo"):  # whatever counts turns has the learner's discount per turn
        assert pipeline_of(name, {}, gamma=0.7, loss={}).estimators[0][0].options["gamma"] == 0.7
    assert "gamma" not in pipeline_of("gae", {}, gamma=0.7, loss={}).estimators[0][0].options
    ready = Pipeline([Stage("rloo")])
    assert pipeline_of(ready, {}, gamma=0.9, loss={}) is ready
    with pytest.raises(ValueError, match="unknown temporal or group stage 'nothing'"):
        pipeline_of("nothing", {}, gamma=0.9, loss={})
    with pytest.raises(ValueError, match="ready pipeline"):
        pipeline_of(ready, {"a": 1}, gamma=0.9, loss={})


def test_policy_acts_as_the_rollout_writes_and_forgets_ended_rows():
    agent, env = agent_on(TextGuess(), warmup_dialogues=8, warmup_steps=30)
    agent.warm_up()
    obs, _ = env.reset(seed=3)
    texts, dialogues = [], agent.collect([9], deterministic=True)
    for _ in range(6):
        action = agent.policy.act(obs, deterministic=True)
        assert action.value.shape == (2, 1)
        texts.append(action.value[0, 0])
        obs, _, terminated, truncated, _ = env.step(np.asarray(action.value))
        ended = terminated | truncated
        if ended.any():
            agent.policy.reset(ended)
    # The first utterance depends on the prompt alone, which is the same for every secret.
    first, last = dialogues[0].spans[0]
    assert texts[0] == agent.tokenizer.text(dialogues[0].tokens[first : last + 1])
    fresh = agent.policy.act({"text": obs["text"]}, deterministic=True)
    history = [list(row) for row in agent.policy._history]
    agent.policy.reset(np.array([True, False]))
    assert agent.policy._history[0] == []
    assert agent.policy._history[1] == history[1]
    assert fresh.logp is not None
    assert (fresh.logp <= 0).all()


def test_policy_remembers_across_turns_what_a_full_pass_would_say():
    agent, _ = agent_on(TextTools(), context=100)
    heard = [["which number gear", "which number bolt"], ["shelf s3", "what"], ["number n4", "shelf s1"]]
    for text in heard:
        agent.policy.act({"text": np.array(text, object)}, deterministic=True)
    before = [list(row) for row in agent.policy._history]
    agent.policy.reset(np.array([False, False]))  # drops the cache, keeps the dialogues
    more = agent.policy.act({"text": np.array(["what", "what"], object)}, deterministic=True)
    ids = [[*row, *agent.tokenizer.observation("what")] for row in before]
    for row in range(2):
        talk = Conversation(agent.model, 1)
        talk.feed([ids[row]])
        said = talk.write(agent.tokenizer.stop, 4, None)
        assert more.value[row, 0] == agent.tokenizer.text(said.ids[0])


def test_saved_run_goes_on_exactly(tmp_path):
    first, _ = agent_on(TextGuess(numbers=4), advantage="ema_grpo", warmup_dialogues=4, warmup_steps=2)
    first.run(1)
    save_state(tmp_path / "learner.pt", first.state_dict())
    env = TextVectorEnv(TextGuess(numbers=4), 2, 0)
    options: dict[str, Any] = TINY
    second = LanguageAgent(LanguageAgentOptions(advantage="ema_grpo", **options), env.io, seed=5)
    second.load_state_dict(load_state(tmp_path / "learner.pt"))
    second.attach(env)
    assert second.env_steps == first.env_steps
    target = first.env_steps + 1
    first.run(target)
    second.run(target)
    for a, b in zip(first.model.parameters(), second.model.parameters()):
        assert torch.equal(a, b)
    save_state(tmp_path / "policy.pt", first.policy.state_dict())
    third = LanguageAgent(
        LanguageAgentOptions(**options), env.io, seed=5
    )  # no environment: the words come with the weights
    third.policy.load_state_dict(load_state(tmp_path / "policy.pt"))
    heard = {"text": np.array(["numbers 4", "yes"], object)}
    said = [agent.policy.act(heard, deterministic=True) for agent in (first, third)]
    assert said[0].value.tolist() == said[1].value.tolist()
    np.testing.assert_array_equal(said[0].logp, said[1].logp)


def save_local_model(folder, vocabulary, name, **options):
    """A folder as transformers writes it: words as tokens, random weights of a named family."""
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    ids = {word: i for i, word in enumerate(("<unk>", "<eos>", ">", *vocabulary))}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(ids, unk_token="<unk>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    wrapped = transformers.PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", eos_token="<eos>")
    wrapped.save_pretrained(folder)
    config = transformers.AutoConfig.for_model(name, vocab_size=len(ids), **options)
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.save_pretrained(folder)
    return model


WINDOWED = {
    "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "sliding_window": 5,
    "num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 256, "initializer_range": 0.4,
    "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("mistral", {}),  # every layer looks at a window
        ("gemma2", {"layer_types": ["sliding_attention", "full_attention"]}),  # one of each
        ("qwen2", {"layer_types": ["full_attention", "full_attention"]}),  # says a window and has none
    ],
)
def test_windows_of_attention_reach_as_far_in_the_rollout_as_in_the_update(tmp_path, name, options):
    """Dialogues of unequal length in one cache leave holes, which a window of columns would count as tokens."""
    torch.manual_seed(0)
    save_local_model(tmp_path, TextMaze().vocabulary, name, **WINDOWED, **options)
    agent, _ = agent_on(TextMaze(), model=str(tmp_path), context=200, longest=3)
    dialogues = agent.collect([1, 1, 2, 3, 4, 5])
    assert len({len(one.tokens) for one in dialogues}) > 1
    assert min(len(one.tokens) for one in dialogues) > 10
    written = flat([one.written for one in dialogues])
    logp = token_logp(agent.model, dialogues)[0].detach().numpy()
    np.testing.assert_allclose(flat([one.logp for one in dialogues])[written], logp[written], atol=1e-4)
    # One dialogue alone has neither holes nor padding: there the library's own masks say what is right.
    one = dialogues[3]
    ids = torch.tensor([one.tokens])
    with torch.no_grad():
        alone = agent.model.core(input_ids=ids).logits[0, :-1].log_softmax(-1).gather(1, ids[0, 1:, None])[:, 0]
    start = sum(len(one.tokens) for one in dialogues[:3])
    np.testing.assert_allclose(logp[start + 1 : start + len(one.tokens)], alone, atol=1e-4)
    agent.learn(dialogues)


def test_update_that_disagrees_with_the_rollout_stops(tmp_path):
    """Weights that changed between playing and learning stand for anything that makes the two differ."""
    agent, _ = agent_on(TextGuess(numbers=4))
    dialogues = agent.collect([1, 1, 2, 2])
    before = [x.clone() for x in agent.model.parameters()]
    with torch.no_grad():
        agent.model.core.get_input_embeddings().weight.mul_(3.0)
        expected = token_logp(agent.model, dialogues[:4])[0].numpy() - flat([one.logp for one in dialogues])
    worst = np.abs(expected[flat([one.written for one in dialogues])]).max()
    assert worst > 0.02
    now = [x.clone() for x in agent.model.parameters()]
    with pytest.raises(ValueError, match=r"differ by up to .* between the rollout's cache and the full pass"):
        agent.learn(dialogues)
    assert all(torch.equal(a, b) for a, b in zip(now, agent.model.parameters()))  # nothing was learnt from it
    with torch.no_grad():
        for x, y in zip(agent.model.parameters(), before):
            x.copy_(y)
    agent.learn(dialogues)


def test_local_model_folder_is_used_without_network(tmp_path):
    saved = save_local_model(
        tmp_path, TextGuess().vocabulary, "gpt2", n_embd=16, n_layer=1, n_head=2, n_positions=128, dtype="bfloat16"
    )
    assert saved.dtype == torch.bfloat16
    agent, _ = agent_on(TextGuess(), model=str(tmp_path), context=128, warmup_dialogues=2, warmup_steps=2)
    agent.warm_up()
    one = agent.collect([0], deterministic=True)[0]
    assert agent.tokenizer.stop == 1
    assert agent.model.core.dtype == torch.float32
    logp, _, _ = token_logp(agent.model, [one])
    written = np.array(one.written)
    np.testing.assert_allclose(np.array(one.logp)[written], logp.detach().numpy()[written], atol=2e-4)


def test_first_update_has_ratio_one_and_learning_rate_rises_then_falls():
    agent, _ = agent_on(TextGuess(numbers=2), lr=0.02, lr_warmup=4, anneal=True, minibatch=6, warmup_steps=0)
    rates, kls = [], []
    update = agent._update

    def watch(dialogues, rows, **given):
        out = update(dialogues, rows, **given)
        rates.append(agent._optimiser.param_groups[0]["lr"])
        kls.append(out["kl"])
        return out

    agent._update = watch  # type: ignore[method-assign]
    agent.run(400)
    assert kls[0] == pytest.approx(0.0, abs=1e-5)  # the policy that acted is the one that learns
    assert rates[0] == pytest.approx(0.02 / 4)
    assert max(rates) <= 0.02
    assert rates[-1] < max(rates)


@pytest.mark.parametrize("dual", [None, 3.0])
def test_fused_policy_term_has_loss_and_gradient_of_the_plain_loss(dual):
    draw = torch.Generator().manual_seed(0)
    logp = (torch.randn(64, generator=draw) - 1.0).requires_grad_()
    rows = {"old": logp.detach() + 0.4 * torch.randn(64, generator=draw), "advantage": torch.randn(64, generator=draw)}
    rows |= {"mask": torch.rand(64, generator=draw) < 0.7, "episode": torch.arange(64) // 16, "turn": torch.arange(64)}
    options = {"clip": (0.2, 0.28), "aggregation": "token_mean", "dual_clip": dual, "decoupled": False}
    found, term = policy_term(logp, rows, options)
    plain = policy_loss(
        logp,
        rows["old"],
        rows["advantage"],
        mask=rows["mask"],
        clip=ClipRange((0.2, 0.28), dual=dual),
        aggregation="token_mean",
    )
    assert found == pytest.approx(plain.item(), abs=1e-6)
    ours, theirs = (torch.autograd.grad(loss, logp)[0] for loss in (term, plain))
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=0)
    # a loss of whole turns is no loss of single tokens: it is left to the plain one
    turns = {"clip": 0.2, "ratio_unit": "turn", "aggregation": "turn_mean"}
    found, term = policy_term(logp, rows, turns)
    assert found == pytest.approx(term.item())


def test_imitation_stops_at_its_loss():
    agent, _ = agent_on(TextGuess(numbers=2), warmup_dialogues=4, warmup_steps=400, warmup_lr=0.01, warmup_stop=0.8)
    steps = []
    step = agent._step
    agent._step = lambda *given: steps.append(1) or step(*given)  # type: ignore[method-assign]
    loss = agent.warm_up()["warmup/loss"]
    assert len(steps) < 400
    assert 0.2 < loss < 1.2


def test_groups_by_prompt_pool_what_the_player_cannot_tell_apart():
    agent, _ = agent_on(TextGuess(numbers=4))
    dialogues = agent.collect([1, 2, 3, 3])
    assert to_batch(dialogues, critic=False).episodes.group_id.tolist() == [0, 1, 2, 2]
    assert to_batch(dialogues, critic=False, group_by="prompt").episodes.group_id.tolist() == [0, 0, 0, 0]
    with pytest.raises(ValueError, match="group_by"):
        agent_on(TextGuess(), group_by="luck")


def test_last_token_of_an_utterance_waits_for_the_next_feed():
    agent, _ = agent_on(TextGuess(numbers=4))
    talk = Conversation(agent.model, 2)
    talk.feed([agent.tokenizer.observation("numbers 4")] * 2)
    before = talk.columns
    said = talk.write(agent.tokenizer.stop, 3, None)
    assert talk.columns == before + max(len(ids) for ids in said.ids) - 1
    talk.feed([agent.tokenizer.observation("yes"), []])
    alone = Conversation(agent.model, 1)
    alone.feed([[*agent.tokenizer.observation("numbers 4"), *said.ids[1]]])
    torch.testing.assert_close(talk.logits[1], alone.logits[0], atol=1e-5, rtol=1e-4)


def test_wrong_use_is_refused():
    env = TextVectorEnv(TextGuess(), 1, 0)
    agent = LanguageAgent(LanguageAgentOptions(), env.io)
    with pytest.raises(ValueError, match="attach"):
        agent.run(1)
    with pytest.raises(ValueError, match="no model yet"):
        agent.policy.act({"text": np.array(["x"], object)})
    with pytest.raises(TypeError, match="own loop"):
        agent.update(iter(()))
    with pytest.raises(ValueError, match="group_size"):
        LanguageAgent(LanguageAgentOptions(group_size=0), env.io)


def test_the_documented_command_trains_with_the_estimator_of_its_name(tmp_path, robot_rl):
    small = ["hidden=16", "heads=2", "groups=2", "group_size=2", "warmup_dialogues=2", "warmup_steps=1"]
    words = ["train", "env=text/tools", "env.world.items=2", "policy=language/agent", "advantage=trloo", "gamma=0.9"]
    words += [f"policy.{item}" for item in small] + ["total_steps=20", "eval_episodes=1", "final_episodes=1"]
    done = robot_rl(*words, "video_episodes=0", "name=run")
    assert done.returncode == 0, done.stderr
    saved = next(tmp_path.rglob("config.yaml")).read_text()
    assert "advantage: trloo" in saved[saved.index("policy:") :]
