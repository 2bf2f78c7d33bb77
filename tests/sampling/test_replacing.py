"""Which samplers are replaced, when they are called silent, and what is said about it."""

import pytest

from walle.sampling.replacing import News, Replacement, Restarts, Silence, begins_new_episodes


def test_so_many_replacements_are_allowed_in_a_run():
    restarts = Restarts(2)
    assert [restarts.refusal(0, round_) for round_ in (4, 5)] == ["", ""]
    assert restarts.refusal(1, 6) == "sampler.restarts=2 allows no further replacement"
    assert Restarts(0, "learner.restarts").refusal(0, 0).startswith("learner.restarts=0 allows no")


def test_the_same_round_is_repeated_twice_at_most():
    restarts = Restarts(10)
    assert [restarts.refusal(0, 4) for _ in range(2)] == ["", ""]
    assert restarts.refusal(0, 4) == "its round 4 failed 3 times: the fault comes back"
    assert restarts.refusal(1, 4) == restarts.refusal(0, 5) == ""  # another sampler or round may


def test_a_refusal_is_known_before_it_counts():
    restarts = Restarts(1)
    assert [restarts.reason_against(0, 4) for _ in range(3)] == [""] * 3
    assert restarts.refusal(0, 4) == ""
    assert restarts.reason_against(0, 5) == restarts.refusal(0, 5) != ""


def test_news_are_kept_until_somebody_listens():
    news, heard = News(), []
    news.say("first")
    news.replaced("sampler-1", 4, "sampler-1 (pid 7) was killed by SIGKILL")
    news.listen(heard.append)
    news.say("last")
    first, replacement, last = heard
    assert (first, last) == ("first", "last")
    assert (replacement.sampler, replacement.round) == ("sampler-1", 4)
    assert replacement.why == "(pid 7) was killed by SIGKILL"
    assert replacement.when.endswith("+00:00")


def test_news_pass_from_one_to_the_other():
    ours, theirs, heard = News(), News(), []
    ours.say("early")
    ours.listen(theirs.tell)
    ours.say("late")
    theirs.listen(heard.append)
    assert heard == ["early", "late"]


def test_a_replacement_is_one_line():
    found = Replacement("sampler-1", "now", 4, "(pid 7) exited with 3")
    assert found.line == "sampler-1 (pid 7) exited with 3; a new one repeats round 4"
    assert found._replace(exact=False).line.endswith("the run is not the same bit for bit)")
    assert begins_new_episodes("sampler-1").startswith("sampler-1 begins new episodes: ")


class Clock:
    """A clock that a test sets."""

    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def overdue(silence):
    return [(found.sampler, found.seconds, found.remedy) for found in silence.overdue()]


def test_a_silent_sampler_is_named_once_and_then_replaced(clock):
    silence = Silence(3, 10.0, clock)
    assert silence.wait_s() is None
    silence.update(1, owes=True)
    assert silence.wait_s() == 10
    clock.now += 9
    assert (silence.wait_s(), overdue(silence)) == (1, [])
    clock.now += 1
    assert overdue(silence) == [(1, 10, "tell")]
    assert (silence.wait_s(), overdue(silence)) == (10, [])
    clock.now += 10
    assert (silence.wait_s(), overdue(silence)) == (0, [(1, 20, "replace")])


def test_nobody_is_replaced_unnamed(clock):
    """The agent may have been busy, or the machine asleep, for longer than both limits."""
    silence = Silence(1, 10.0, clock)
    silence.update(0, owes=True)
    clock.now += 1000
    assert overdue(silence) == [(0, 1000, "tell")]
    assert overdue(silence) == [(0, 1000, "replace")]


def test_the_time_runs_from_when_the_sampler_owes_first(clock):
    silence = Silence(2, 10.0, clock)
    silence.update(0, owes=True)
    clock.now += 6
    silence.update(0, owes=True)
    silence.update(1, owes=True)
    assert silence.wait_s() == 4
    clock.now += 4
    assert overdue(silence) == [(0, 10, "tell")]
    clock.now += 6
    assert overdue(silence) == [(1, 10, "tell")]


@pytest.mark.parametrize("how", ["delivers", "owes nothing"])
def test_a_sign_of_life_ends_the_silence(clock, how):
    silence = Silence(1, 10.0, clock)
    silence.update(0, owes=True)
    clock.now += 10
    assert overdue(silence) == [(0, 10, "tell")]
    if how == "delivers":
        silence.heard(0, took_s=10.0)
    else:
        silence.update(0, owes=False)
    assert (silence.wait_s(), overdue(silence)) == (None, [])
    silence.update(0, owes=True)
    clock.now += 10
    assert overdue(silence) == [(0, 10, "tell")]  # named again


def test_without_a_limit_it_is_ten_times_the_longest_round_and_a_minute_at_least(clock):
    silence = Silence(2, None, clock)
    assert silence.limit_s == 60
    silence.heard(0, took_s=5.0)
    assert silence.limit_s == 60
    silence.heard(1, took_s=8.0)
    silence.heard(0, took_s=1.0)
    assert silence.limit_s == 80
    silence.update(0, owes=True)
    assert silence.wait_s() == 80
